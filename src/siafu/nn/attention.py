"""GAT's attention over the edges of a CSR, edge by edge in plain torch.

Shapes: N rows, C columns (owned rows first, then halo rows), E edges, H heads, D width of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from siafu.ops import CSR, DrawKey, dropout_pairs


@dataclass(frozen=True)
class EdgeDropout:
    """Dropping attention weights by draws keyed with the global ids of an edge's two ends."""

    p: float
    key: DrawKey
    ids_C: Tensor
    ids_N: Tensor


def with_self_loops(csr: CSR) -> CSR:
    """Return the edges without loops, then one loop a row; weights are dropped (GAT has none)."""
    num_rows = csr.num_rows
    rows_N = torch.arange(num_rows, device=csr.indptr.device)
    rows_E = csr.rows()
    kept = csr.index != rows_E
    all_rows = torch.cat([rows_E[kept], rows_N])
    order = torch.argsort(all_rows, stable=True)
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows_N.device)
    indptr[1:] = torch.bincount(all_rows, minlength=num_rows).cumsum(0)
    index = torch.cat([csr.index[kept], rows_N.to(csr.index.dtype)])[order]
    return CSR(indptr, index, csr.num_cols)


def attend(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_NH: Tensor,
    *,
    slope: float,
    dropout: EdgeDropout,
) -> Tensor:
    """Return out_NHD = sum over edges of softmax(leaky_relu(left_j + right_i)) z_j."""
    rows_E = csr.rows()
    cols_E = csr.index.long()
    score_EH = functional.leaky_relu(
        left_CH.index_select(0, cols_E) + right_NH.index_select(0, rows_E), slope
    )
    # Any shift leaves the softmax unchanged, so the maximum needs no gradient.
    top_NH = score_EH.new_full(right_NH.shape, -torch.inf)
    top_NH.scatter_reduce_(0, rows_E.unsqueeze(1).expand_as(score_EH), score_EH.detach(), "amax")
    raw_EH = (score_EH - top_NH.index_select(0, rows_E)).exp()
    norm_NH = torch.zeros_like(right_NH).index_add(0, rows_E, raw_EH)
    alpha_EH = raw_EH / norm_NH.index_select(0, rows_E)
    ids = dropout.ids_C[cols_E], dropout.ids_N[rows_E]
    alpha_EH = dropout_pairs(alpha_EH, *ids, dropout.key, dropout.p)
    message_EHD = alpha_EH.unsqueeze(2) * z_CHD.index_select(0, cols_E)
    out_NHD = z_CHD.new_zeros(csr.num_rows, *z_CHD.shape[1:])
    return out_NHD.index_add(0, rows_E, message_EHD)

"""The constants of aggregations: degrees, GCN's normalisation, self loops and their edge data.

Shapes: N rows, C columns (owned rows first), M rows written, E edges.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.ops import CSR, neighbour_sum, sum_into


@dataclass(frozen=True)
class GcnScales:
    """The parts of GCN's normalisation: D^-1/2 by column, and a row's weight in its own sum."""

    root_C: Tensor
    own_N1: Tensor


def gcn_scales(root_C: Tensor, loop_N: Tensor, dtype: torch.dtype) -> GcnScales:
    """Return the scales in the rows' dtype; columns are owned rows first."""
    own_N1 = (root_C[: len(loop_N)].square() * loop_N).unsqueeze(1)
    return GcnScales(root_C.to(dtype), own_N1.to(dtype))


def owned_degree(csr: CSR) -> Tensor:
    """Return degree_N: edge weights summed over each node's in-edges, the added loop included."""
    return summed_weights(csr) + added_loop(csr)


def summed_weights(csr: CSR) -> Tensor:
    """Return float64 [N]: the weights of each row's in-edges, or their number, summed."""
    ones_C1 = torch.ones(csr.num_cols, 1, dtype=torch.float64, device=csr.indptr.device)
    weight = None if csr.weight is None else csr.weight.double()
    return neighbour_sum(CSR(csr.indptr, csr.index, csr.num_cols, weight), ones_C1)[:, 0]


def added_loop(csr: CSR, *, first_row: int = 0) -> Tensor:
    """Return loop_N: 1 where a node has no loop of its own, else 0.

    `first_row` is which column the first row is.
    """
    has_loop_N = torch.zeros(csr.num_rows, dtype=torch.bool, device=csr.device)
    # In pieces, since a row number for every edge would be as large as the edges themselves.
    for lo, hi in csr.row_spans():
        bounds = csr.indptr[lo : hi + 1]
        rows_E = torch.arange(lo, hi, device=csr.device).repeat_interleave(bounds.diff())
        loops = csr.index[bounds[0] : bounds[-1]] == rows_E + first_row
        has_loop_N[rows_E[loops]] = True
    return (~has_loop_N).double()


def inverse_root(degree: Tensor) -> Tensor:
    """Return degree^-1/2, with 0 where the degree is not positive."""
    return torch.where(degree > 0, degree.clamp(min=1e-300).rsqrt(), torch.zeros_like(degree))


def inverse_count(csr: CSR) -> Tensor:
    """Return float64 [M]: 1 / the number of a row's in-edges, 1 where there are none."""
    return 1.0 / csr.degree().clamp(min=1).double()


def with_self_loops(csr: CSR, columns_M: Tensor | None = None) -> tuple[CSR, Tensor]:
    """Return the edges without loops and then one loop per row, and where each edge comes from.

    `columns_M` tells which column each row is; without it row i is column i. The second result is
    the number of each edge in `csr`; the loop of row i has number E + i. Weights are dropped, since
    attention has none of them.
    """
    if columns_M is None:
        columns_M = torch.arange(csr.num_rows, device=csr.device)
    indptr = torch.zeros_like(csr.indptr)
    index, numbers = [csr.index[:0]], [csr.indptr[:0]]
    # In pieces, so that nothing beside the result is as large as the edges.
    for lo, hi in csr.row_spans():
        bounds = csr.indptr[lo : hi + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        rows_M = torch.arange(lo, hi, device=csr.device)
        rows_E = rows_M.repeat_interleave(bounds.diff())
        kept_E = csr.index[start:end] != columns_M[rows_E]
        degree_M = torch.bincount(rows_E[kept_E] - lo, minlength=hi - lo) + 1
        ends_M = degree_M.cumsum(0)
        indptr[lo + 1 : hi + 1] = ends_M + indptr[lo]
        is_loop = torch.zeros(int(ends_M[-1]), dtype=torch.bool, device=csr.device)
        is_loop[ends_M - 1] = True
        columns = torch.empty(len(is_loop), dtype=csr.index.dtype, device=csr.device)
        columns[is_loop] = columns_M[lo:hi].to(columns.dtype)
        columns[~is_loop] = csr.index[start:end][kept_E]
        number = torch.empty(len(is_loop), dtype=torch.int64, device=csr.device)
        number[is_loop] = rows_M + csr.num_edges
        number[~is_loop] = kept_E.nonzero().squeeze(1) + start
        index.append(columns)
        numbers.append(number)
    return CSR(indptr, torch.cat(index), csr.num_cols), torch.cat(numbers)


def loop_data(csr: CSR, data_E: Tensor, columns_M: Tensor | None = None) -> Tensor:
    """Return [M, ...]: the mean of `data_E` over each row's in-edges that are no loops.

    `columns_M` tells which column each row is; without it row i is column i.
    """
    flat = data_E.reshape(len(data_E), data_E[:1].numel() if len(data_E) else 1)
    out = flat.new_zeros(csr.num_rows, flat.size(1))
    for lo, hi in csr.row_spans():
        piece = csr.slice_rows(lo, hi)
        rows_E = torch.arange(hi - lo, device=csr.device).repeat_interleave(piece.degree())
        own_M = torch.arange(lo, hi, device=csr.device) if columns_M is None else columns_M[lo:hi]
        counts_E = (piece.index != own_M[rows_E]).to(flat.dtype)
        count_M = torch.zeros(hi - lo, dtype=flat.dtype, device=flat.device)
        count_M.index_add_(0, rows_E, counts_E)
        order = torch.arange(piece.num_edges, dtype=torch.int32, device=csr.device)
        mean = CSR(piece.indptr, order, piece.num_edges, counts_E)
        start = int(csr.indptr[lo])
        rows = flat[start : start + piece.num_edges]
        sum_into(mean, rows.contiguous(), out[lo:hi], row_scale_M=1.0 / count_M.clamp(min=1))
    return out.view(csr.num_rows, *data_E.shape[1:])

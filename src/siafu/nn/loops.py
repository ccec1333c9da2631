"""The self loop GAT gives every vertex."""

import torch

from siafu.ops import CSR


def with_self_loops(csr: CSR) -> CSR:
    """Return the edges without loops, then one loop a row; weights are dropped (GAT has none)."""
    rows_N = torch.arange(csr.num_rows, device=csr.device)
    rows_E = rows_N.repeat_interleave(csr.degree())
    kept = csr.index != rows_E
    all_rows = torch.cat([rows_E[kept], rows_N])
    order = torch.argsort(all_rows, stable=True)
    indptr = torch.zeros_like(csr.indptr)
    indptr[1:] = torch.bincount(all_rows, minlength=csr.num_rows).cumsum(0)
    index = torch.cat([csr.index[kept], rows_N.to(csr.index.dtype)])[order]
    return CSR(indptr, index, csr.num_cols)

"""The self loop that attention gives every vertex."""

import torch
from torch import Tensor

from siafu.ops import CSR


def with_self_loops(csr: CSR, columns_M: Tensor | None = None) -> tuple[CSR, Tensor]:
    """Return the edges without loops and then one loop a row, and where each edge comes from.

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

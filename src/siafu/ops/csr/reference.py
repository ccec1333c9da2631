"""Compressed-row kernels in plain torch: for machines without Numba or Triton, and odd types.

Shapes: M destination rows, C source columns, E edges, D width. Edges are taken a slice at a time,
so memory stays bounded at any E x D. On CUDA `index_add_` sums in no fixed order.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from siafu.ops.contract import NO_LONG_ROWS, Edges, LongRows

DTYPES = frozenset({torch.float32, torch.float64})

LONG_ROW = None

SLICE_ELEMENTS = 1 << 22
"""Gathered elements held at once: 16 MB of float32."""


def sum_into(
    edges: Edges,
    x_CD: Tensor,
    out_MD: Tensor,
    *,
    accumulate: bool,
    long_rows: LongRows | None = None,
    own_K: Tensor | None = None,
) -> None:
    """See `contract.CsrKernels`."""
    if not accumulate:
        out_MD.zero_()
    for lo, hi, row in _slices(edges, x_CD.size(1)):
        index = edges.index[lo:hi]
        message = x_CD.index_select(0, index)
        if edges.weight_E is not None:
            message *= edges.weight_E[lo:hi, None]
        if edges.col_scale_C is not None:
            message *= edges.col_scale_C.index_select(0, index)[:, None]
        if edges.row_scale_M is not None:
            message *= edges.row_scale_M.index_select(0, row)[:, None]
        out_MD.index_add_(0, row, message)
    add_own(x_CD, out_MD, own_K)


def add_own(x_CD: Tensor, out_MD: Tensor, own_K: Tensor | None) -> None:
    """Add own[i] * x[i] to the first K rows."""
    if own_K is not None:
        out_MD[: len(own_K)].addcmul_(own_K[:, None].to(x_CD.dtype), x_CD[: len(own_K)])


def cut_rows(indptr: Tensor) -> LongRows:
    """See `contract.CsrKernels`."""
    return NO_LONG_ROWS


def max_into(edges: Edges, x_CD: Tensor, out_MD: Tensor, edge_MD: Tensor) -> None:
    """See `contract.CsrKernels`."""
    none = torch.iinfo(edge_MD.dtype).max
    out_MD.fill_(-torch.inf)
    edge_MD.fill_(none)
    width = x_CD.size(1)
    for lo, hi, row in _slices(edges, width):
        message = x_CD.index_select(0, edges.index[lo:hi])
        out_MD.scatter_reduce_(0, row[:, None].expand(-1, width), message, "amax")
    for lo, hi, row in _slices(edges, width):
        message, best = x_CD.index_select(0, edges.index[lo:hi]), out_MD.index_select(0, row)
        is_best = (message == best) | (message.isnan() & best.isnan())
        number = torch.arange(lo, hi, dtype=edge_MD.dtype, device=row.device)[:, None]
        candidate = torch.where(is_best, number, none)
        edge_MD.scatter_reduce_(0, row[:, None].expand(-1, width), candidate, "amin")
    empty_M1 = (edges.indptr.diff() == 0)[:, None]
    out_MD.masked_fill_(empty_M1, 0)
    edge_MD.masked_fill_(empty_M1, -1)


def max_fold_into(
    edges: Edges,
    number_E: Tensor,
    rows_M: Tensor | None,
    x_CD: Tensor,
    value_MD: Tensor,
    edge_MD: Tensor,
) -> None:
    """See `contract.CsrKernels`."""
    fold_by(max_into, edges, number_E, rows_M, x_CD, (value_MD, edge_MD))


def fold_by(
    maximum: Callable[[Edges, Tensor, Tensor, Tensor], None],
    edges: Edges,
    number_E: Tensor,
    rows_M: Tensor | None,
    x_CD: Tensor,
    held: tuple[Tensor, Tensor],
) -> None:
    """Fold what `maximum`, a `max_into`, finds in a block."""
    if len(edges.index) == 0:
        return
    best_MD, number_MD = held if rows_M is None else (t.index_select(0, rows_M) for t in held)
    value_MD, place_MD = torch.empty_like(best_MD), torch.empty_like(number_MD)
    maximum(edges, x_CD, value_MD, place_MD)
    found_MD = number_E[place_MD.clamp(min=0).long()].to(number_MD.dtype)
    tied = (value_MD == best_MD) | (value_MD.isnan() & best_MD.isnan())
    above = (value_MD > best_MD) | (value_MD.isnan() & ~best_MD.isnan())
    wins = (above | (tied & (found_MD < number_MD))) & (place_MD >= 0)
    news = torch.where(wins, value_MD, best_MD), torch.where(wins, found_MD, number_MD)
    for tensor, new in zip(held, news, strict=True):
        tensor.copy_(new) if rows_M is None else tensor.index_copy_(0, rows_M, new)


def max_grad_into(
    index: Tensor,
    edge_MD: Tensor,
    grad_MD: Tensor,
    grad_CD: Tensor,
    *,
    first: int = 0,
    rows_M: Tensor | None = None,
    indptr: Tensor | None = None,
) -> None:
    """`index_put_` sorts before it adds on CUDA, so the order of additions is fixed there too."""
    if len(index) == 0:
        return
    if rows_M is not None:
        edge_MD, grad_MD = edge_MD.index_select(0, rows_M), grad_MD.index_select(0, rows_M)
    edge_MD = edge_MD - first
    # others add 0 to some source: leaving them out would make the device wait for a count
    used_MD = torch.where((edge_MD >= 0) & (edge_MD < len(index)), grad_MD, 0)
    source_MD = index[edge_MD.clamp(min=0, max=len(index) - 1)].long()
    column_MD = torch.arange(grad_MD.size(1), device=index.device).expand_as(grad_MD)
    grad_CD.index_put_((source_MD, column_MD), used_MD, accumulate=True)


def transpose(
    indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See `contract.CsrKernels`."""
    sorted_index, order = torch.sort(index, stable=True)
    starts = torch.arange(num_cols + 1, device=index.device, dtype=index.dtype)
    return torch.searchsorted(sorted_index, starts), _row_of(indptr, order).to(dtype)


def transpose_order(indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype) -> Tensor:
    """See `contract.CsrKernels`."""
    return torch.sort(index, stable=True).indices.to(dtype)


def _row_of(indptr: Tensor, edge: Tensor) -> Tensor:
    """Return the row each edge number belongs to."""
    return torch.searchsorted(indptr, edge, right=True) - 1


def _slices(edges: Edges, width: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (first edge, last edge + 1, destination row of each) in order."""
    step = max(1, SLICE_ELEMENTS // max(1, width))
    for lo in range(0, len(edges.index), step):
        hi = min(lo + step, len(edges.index))
        yield lo, hi, _row_of(edges.indptr, torch.arange(lo, hi, device=edges.index.device))

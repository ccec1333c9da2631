"""Compressed-row kernels for CPU, compiled by Numba.

Shapes: M destination rows, C source columns, E edges, D width. A thread owns the rows (or columns)
that it writes, so results do not depend on the number of threads.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Edges, LongRows
from siafu.ops.csr import reference
from siafu.ops.numba_jit import callee, kernel, line_width, prefetch, strict_kernel
from siafu.ops.threads import num_chunks, num_threads, run_chunks

DTYPES = frozenset({torch.float32, torch.float64})

LONG_ROW = reference.LONG_ROW
cut_rows = reference.cut_rows

Array = NDArray[Any]

TILE = 16
"""Widths that are multiples of this get machine code of their own, up to `WIDEST`."""

WIDEST = 320
"""Columns taken at a time where the width divides: rows in flight must fit in level-1 cache."""

_FEW_EDGES = 4
"""Edges per row up to which whole rows are looked at once per edge, not entry by entry."""

AHEAD = 8
"""Edges between the row asked for and the row used."""


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
    indptr, index = edges.indptr.numpy(), edges.index.numpy()
    weight, row_scale, col_scale = (_array(t) for t in edges[2:])
    bounds = equal_edges(indptr, num_chunks(len(index) * x_CD.size(1)))
    parts, tiles = cut_width(x_CD.size(1))
    x, out = narrow(x_CD, parts), narrow(out_MD, parts)
    for part in range(parts):

        def work(lo: int, hi: int, part: int = part) -> None:
            span = (lo, hi, parts, part)
            sum_rows(indptr, index, weight, row_scale, col_scale, x, out, accumulate, span, tiles)

        run_chunks(work, bounds)
    reference.add_own(x_CD.detach(), out_MD.detach(), own_K)


def max_into(edges: Edges, x_CD: Tensor, out_MD: Tensor, edge_MD: Tensor) -> None:
    """See `contract.CsrKernels`."""
    indptr, index = edges.indptr.numpy(), edges.index.numpy()
    bounds = equal_edges(indptr, num_chunks(len(index) * x_CD.size(1)))
    parts, tiles = cut_width(x_CD.size(1))
    x, out, edge = narrow(x_CD, parts), narrow(out_MD, parts), narrow(edge_MD, parts)
    for part in range(parts):

        def work(lo: int, hi: int, part: int = part) -> None:
            _max_rows(indptr, index, x, out, edge, (lo, hi, parts, part), tiles)

        run_chunks(work, bounds)


def max_fold_into(
    edges: Edges,
    number_E: Tensor,
    rows_M: Tensor | None,
    x_CD: Tensor,
    value_MD: Tensor,
    edge_MD: Tensor,
) -> None:
    """See `contract.CsrKernels`."""
    indptr, index, number = edges.indptr.numpy(), edges.index.numpy(), number_E.numpy()
    bounds = equal_edges(indptr, num_chunks(len(index) * x_CD.size(1)))
    parts, tiles = cut_width(x_CD.size(1))
    x, value, edge = (narrow(tensor, parts) for tensor in (x_CD, value_MD, edge_MD))
    rows = _array(rows_M)
    for part in range(parts):

        def work(lo: int, hi: int, part: int = part) -> None:
            span = (lo, hi, parts, part)
            _fold_max_rows(indptr, index, number, rows, x, value, edge, span, tiles)

        run_chunks(work, bounds)


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
    """Threads share out columns, not rows: two rows may add to one source, two columns never."""
    arrays = index.numpy(), edge_MD.numpy(), grad_MD.numpy(), grad_CD.numpy(), _array(rows_M), first
    width = grad_MD.size(1)
    entries = grad_MD.numel() if rows_M is None else len(rows_M) * width
    chunks = min(num_chunks(entries), num_threads(), max(1, width // TILE))
    bounds = [width * number // chunks for number in range(chunks + 1)]
    if indptr is not None and len(index) * width < _FEW_EDGES * entries:
        starts = indptr.numpy()
        run_chunks(lambda lo, hi: _max_grad_edges(starts, *arrays, lo, hi), bounds)
        return
    run_chunks(lambda lo, hi: _max_grad_columns(*arrays, lo, hi), bounds)


def transpose(
    indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See `contract.CsrKernels`."""
    return _counting_sort(indptr, index, num_cols, dtype, place_rows=True)


def transpose_order(indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype) -> Tensor:
    """See `contract.CsrKernels`."""
    return _counting_sort(indptr, index, num_cols, dtype, place_rows=False)[1]


def _counting_sort(
    indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype, *, place_rows: bool
) -> tuple[Tensor, Tensor]:
    """Return (starts [C + 1], edges by column); an edge is placed as its row or its number."""
    rows, columns = indptr.numpy(), index.numpy()
    # one chunk a thread: each keeps a counter for every column
    chunks = min(num_chunks(len(columns)), num_threads())
    bounds = equal_edges(rows, chunks)
    places = np.zeros((chunks, num_cols), np.int64)
    run_chunks(
        lambda c, _: _count_columns(columns[rows[bounds[c]] : rows[bounds[c + 1]]], places[c]),
        range(chunks + 1),
    )
    starts = np.zeros(num_cols + 1, np.int64)
    _counts_to_places(places, starts)
    placed = torch.empty(len(columns), dtype=dtype)
    out = placed.numpy()
    run_chunks(
        lambda c, _: _place(rows, columns, places[c], out, (bounds[c], bounds[c + 1]), place_rows),
        range(chunks + 1),
    )
    return torch.from_numpy(starts), placed


def _array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.detach().numpy()


@lru_cache(maxsize=256)
def cut_width(width: int) -> tuple[int, tuple[int, ...] | None]:
    """Return how many equal parts rows are taken in, and a tuple that tells the compiler the width.

    The tuple's length is part of its type. An integer's value is not, and a closure over the width
    could not be cached on disk.
    """
    parts = next((k for k in range(1, width + 1) if width % k == 0 and width // k <= WIDEST), 1)
    if width // parts < WIDEST // 4:  # a width with large prime factors
        parts = 1
    is_whole = width // parts % TILE == 0 and width // parts <= WIDEST
    return parts, (0,) * (width // parts // TILE) if is_whole else None


def narrow(rows_ND: Tensor, parts: int) -> Array:
    """Return row n as rows n * parts and following.

    Kernels never add an offset to a column: the sum of two signed numbers may be negative, and
    Numba's test for that keeps the loop from becoming vector code.
    """
    return rows_ND.detach().view(len(rows_ND) * parts, rows_ND.size(1) // parts).numpy()


def equal_edges(indptr: Array, chunks: int) -> list[int]:
    """Return row bounds of chunks with about as many edges each."""
    if chunks == 1:
        return [0, len(indptr) - 1]
    # whole numbers: for floating-point targets numpy would convert all of indptr
    targets = np.linspace(0, indptr[-1], chunks + 1).astype(np.int64)[1:-1]
    return [0, *np.searchsorted(indptr[:-1], targets).tolist(), len(indptr) - 1]


@callee
def _ask_row(x: Array, row: int, width: int) -> None:
    """Ask for the cache lines of a row that will be needed soon."""
    for f in range(0, width, line_width(x)):
        prefetch(x, row, f)


@callee
def _part_row(number: int, parts: int, part: int) -> Any:
    """Return where a row's part lies; unsigned, since Numba tests signed indices for wrapping."""
    return np.uint64(number * parts + part)


@callee
def _factor(
    weight: Array | None,
    row_scale: Array | None,
    col_scale: Array | None,
    index: Array,
    e: int,
    i: int,
    one: Any,
) -> Any:
    product = one
    if weight is not None:
        product *= weight[e]
    if row_scale is not None:
        product *= row_scale[i]
    if col_scale is not None:
        product *= col_scale[index[e]]
    return product


@kernel
def sum_rows(  # noqa: PLR0913 - flat, so that Numba drops the branches of absent factors
    indptr: Array,
    index: Array,
    weight: Array | None,
    row_scale: Array | None,
    col_scale: Array | None,
    x: Array,
    out: Array,
    accumulate: bool,
    span: tuple[int, int, int, int],
    tiles: tuple[int, ...] | None,
) -> None:
    """Sum the rows from span[0] to span[1]."""
    row_lo, row_hi, parts, part = span
    width = x.shape[1] if tiles is None else len(tiles) * TILE
    last, one = len(index) - 1, x.dtype.type(1)
    for i in range(row_lo, row_hi):
        to = _part_row(i, parts, part)
        if not accumulate:
            for f in range(width):
                out[to, f] = 0
        e, end = indptr[i], indptr[i + 1]
        # four edges per step: a quarter of the loads and stores of the output row
        while e + 4 <= end:
            for step in range(4):
                _ask_row(x, _part_row(index[min(e + AHEAD + step, last)], parts, part), width)
            j0, j1 = _part_row(index[e], parts, part), _part_row(index[e + 1], parts, part)
            j2, j3 = _part_row(index[e + 2], parts, part), _part_row(index[e + 3], parts, part)
            w0 = _factor(weight, row_scale, col_scale, index, e, i, one)
            w1 = _factor(weight, row_scale, col_scale, index, e + 1, i, one)
            w2 = _factor(weight, row_scale, col_scale, index, e + 2, i, one)
            w3 = _factor(weight, row_scale, col_scale, index, e + 3, i, one)
            for f in range(width):
                out[to, f] += (w0 * x[j0, f] + w1 * x[j1, f]) + (w2 * x[j2, f] + w3 * x[j3, f])
            e += 4
        # what four leave over
        while e < end:
            _ask_row(x, _part_row(index[min(e + AHEAD, last)], parts, part), width)
            j0 = _part_row(index[e], parts, part)
            w0 = _factor(weight, row_scale, col_scale, index, e, i, one)
            for f in range(width):
                out[to, f] += w0 * x[j0, f]
            e += 1


@strict_kernel
def _max_rows(
    indptr: Array,
    index: Array,
    x: Array,
    out: Array,
    edge: Array,
    span: tuple[int, int, int, int],
    tiles: tuple[int, ...] | None,
) -> None:
    row_lo, row_hi, parts, part = span
    width = x.shape[1] if tiles is None else len(tiles) * TILE
    last = len(index) - 1
    for i in range(row_lo, row_hi):
        to = _part_row(i, parts, part)
        e, end = indptr[i], indptr[i + 1]
        if e == end:
            for f in range(width):
                out[to, f], edge[to, f] = 0, -1
            continue
        # The first edge is the best so far; the others come in pairs, which halves the stores.
        j0 = _part_row(index[e], parts, part)
        for f in range(width):
            out[to, f], edge[to, f] = x[j0, f], e
        e += 1
        while e < end:
            pair = e + 1 if e + 1 < end else e  # an odd edge is compared with itself
            _ask_row(x, _part_row(index[min(e + AHEAD, last)], parts, part), width)
            _ask_row(x, _part_row(index[min(e + AHEAD + 1, last)], parts, part), width)
            j0, j1 = _part_row(index[e], parts, part), _part_row(index[pair], parts, part)
            # in the narrow type already: selecting between int64 would halve the vectors
            e0, e1 = edge.dtype.type(e), edge.dtype.type(pair)
            for f in range(width):
                best, where = _better(x[j0, f], e0, out[to, f], edge[to, f])
                out[to, f], edge[to, f] = _better(x[j1, f], e1, best, where)
            e += 2


@callee
def _better(value: Any, e: Any, best: Any, where: Any) -> Any:
    """Return the larger value and its edge; an equal one stays, and the first NaN wins over all.

    NaN must reach the loss rather than vanish in a comparison.
    """
    is_better = (value > best) | ((value != value) & (best == best))
    return value if is_better else best, e if is_better else where


@strict_kernel
def _fold_max_rows(  # noqa: PLR0913 - flat, as above
    indptr: Array,
    index: Array,
    number: Array,
    rows: Array | None,
    x: Array,
    out: Array,
    edge: Array,
    span: tuple[int, int, int, int],
    tiles: tuple[int, ...] | None,
) -> None:
    row_lo, row_hi, parts, part = span
    width = x.shape[1] if tiles is None else len(tiles) * TILE
    last = len(index) - 1
    for i in range(row_lo, row_hi):
        e, end = indptr[i], indptr[i + 1]
        if e == end:
            continue
        to = _part_row(i if rows is None else rows[i], parts, part)
        while e + 1 < end:  # in pairs, which halves the stores
            _ask_row(x, _part_row(index[min(e + AHEAD, last)], parts, part), width)
            _ask_row(x, _part_row(index[min(e + AHEAD + 1, last)], parts, part), width)
            j0, j1 = _part_row(index[e], parts, part), _part_row(index[e + 1], parts, part)
            n0, n1 = edge.dtype.type(number[e]), edge.dtype.type(number[e + 1])
            for f in range(width):
                best, where = _better_or_earlier(x[j0, f], n0, out[to, f], edge[to, f])
                out[to, f], edge[to, f] = _better_or_earlier(x[j1, f], n1, best, where)
            e += 2
        if e < end:  # in a small stage of many, most rows have one edge
            _ask_row(x, _part_row(index[min(e + AHEAD, last)], parts, part), width)
            j0, n0 = _part_row(index[e], parts, part), edge.dtype.type(number[e])
            for f in range(width):
                out[to, f], edge[to, f] = _better_or_earlier(x[j0, f], n0, out[to, f], edge[to, f])


@callee
def _better_or_earlier(value: Any, e: Any, best: Any, where: Any) -> Any:
    """Return the same as `_better`, but of equal values, and of NaN, that of the lower edge."""
    is_equal = (value == best) | ((value != value) & (best != best))
    is_better = (value > best) | ((value != value) & (best == best)) | (is_equal & (e < where))
    return value if is_better else best, e if is_better else where


@kernel
def _max_grad_columns(  # noqa: PLR0913 - flat, as above
    index: Array,
    edge: Array,
    grad: Array,
    out: Array,
    rows: Array | None,
    first: int,
    column_lo: int,
    column_hi: int,
) -> None:
    count = len(index)
    for q in range(edge.shape[0] if rows is None else len(rows)):
        i = q if rows is None else rows[q]
        for f in range(column_lo, column_hi):
            e = edge[i, f] - first
            if (e >= 0) & (e < count):
                out[np.uint64(index[e]), f] += grad[i, f]


@strict_kernel
def _max_grad_edges(  # noqa: PLR0913 - flat, as above
    indptr: Array,
    index: Array,
    edge: Array,
    grad: Array,
    out: Array,
    rows: Array | None,
    first: int,
    column_lo: int,
    column_hi: int,
) -> None:
    """Add the same in the same order: no branch, so that entries of a row are looked at together.

    Sums begin at 0, so adding 0 where another edge held the maximum leaves every bit as it is.
    """
    nothing = out.dtype.type(0)
    lo, hi = np.uint64(column_lo), np.uint64(column_hi)  # a sign would need a look per entry
    for q in range(len(indptr) - 1):
        i = np.uint64(q if rows is None else rows[q])
        for e in range(indptr[q], indptr[q + 1]):
            j, place = np.uint64(index[e]), edge.dtype.type(first + e)
            for f in range(lo, hi):
                out[j, f] += grad[i, f] if edge[i, f] == place else nothing


@kernel
def _count_columns(columns: Array, counts: Array) -> None:
    for e in range(len(columns)):
        counts[columns[e]] += 1


@kernel
def _counts_to_places(places: Array, starts: Array) -> None:
    """Turn counts [chunk, column] into first places, and fill the start of each column."""
    place = 0
    for j in range(places.shape[1]):
        starts[j] = place
        for c in range(places.shape[0]):
            count = places[c, j]
            places[c, j] = place
            place += count
    starts[places.shape[1]] = place


@kernel
def _place(
    indptr: Array,
    index: Array,
    places: Array,
    out: Array,
    rows: tuple[int, int],
    place_rows: bool,
) -> None:
    for i in range(rows[0], rows[1]):
        for e in range(indptr[i], indptr[i + 1]):
            j = index[e]
            out[places[j]] = i if place_rows else e
            places[j] += 1

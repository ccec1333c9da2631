"""Compressed-row kernels for CPU, compiled by Numba.

Shapes: M destination rows, C source columns, E edges, D width. A thread owns the rows (or columns)
that it writes, so results do not depend on the number of threads.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Edges
from siafu.ops.numba_jit import callee, kernel, line_width, prefetch, strict_kernel
from siafu.ops.threads import num_chunks, num_threads, run_chunks

DTYPES = frozenset({torch.float32, torch.float64})

Array = NDArray[Any]

TILE = 16
"""Widths that are multiples of this get machine code of their own, up to `WIDEST`."""

WIDEST = 256
"""Columns taken at a time: the rows in flight must fit in the first-level cache."""

AHEAD = 8
"""Edges between the row asked for and the row used."""


def sum_into(edges: Edges, x_CD: Tensor, out_MD: Tensor, *, accumulate: bool) -> None:
    """See `contract.CsrKernels`."""
    indptr, index = edges.indptr.numpy(), edges.index.numpy()
    weight, row_scale, col_scale = (_array(t) for t in edges[2:])
    x, out = x_CD.detach().numpy(), out_MD.detach().numpy()
    bounds = _equal_edges(indptr, num_chunks(len(index) * x.shape[1]))
    for first in range(0, x.shape[1], WIDEST):
        tiles = _tiles(min(WIDEST, x.shape[1] - first))

        def work(lo: int, hi: int, first: int = first, tiles: Any = tiles) -> None:
            span = (lo, hi, first)
            _sum_rows(indptr, index, weight, row_scale, col_scale, x, out, accumulate, span, tiles)

        run_chunks(work, bounds)


def max_into(edges: Edges, x_CD: Tensor, out_MD: Tensor, edge_MD: Tensor) -> None:
    """See `contract.CsrKernels`."""
    indptr, index = edges.indptr.numpy(), edges.index.numpy()
    x, out, edge = x_CD.detach().numpy(), out_MD.detach().numpy(), edge_MD.numpy()
    bounds = _equal_edges(indptr, num_chunks(len(index) * x.shape[1]))
    for first in range(0, x.shape[1], WIDEST):
        tiles = _tiles(min(WIDEST, x.shape[1] - first))

        def work(lo: int, hi: int, first: int = first, tiles: Any = tiles) -> None:
            _max_rows(indptr, index, x, out, edge, (lo, hi, first), tiles)

        run_chunks(work, bounds)


def max_grad_into(index: Tensor, edge_MD: Tensor, grad_MD: Tensor, grad_CD: Tensor) -> None:
    """Threads share out columns, not rows: two rows may add to one source, two columns never."""
    arrays = index.numpy(), edge_MD.numpy(), grad_MD.numpy(), grad_CD.numpy()
    width = grad_MD.size(1)
    chunks = min(num_chunks(grad_MD.numel()), num_threads(), max(1, width // TILE))
    run_chunks(
        lambda lo, hi: _max_grad_columns(*arrays, lo, hi),
        np.linspace(0, width, chunks + 1).astype(int).tolist(),
    )


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
    bounds = _equal_edges(rows, chunks)
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


def _tiles(width: int) -> tuple[int, ...] | None:
    """Return a tuple whose length, part of its type, tells the compiler the width.

    An argument of integer type would not, and a closure could not be cached on disk.
    """
    return (0,) * (width // TILE) if width % TILE == 0 else None


def _equal_edges(indptr: Array, chunks: int) -> list[int]:
    """Return row bounds of chunks with about as many edges each."""
    ends = np.searchsorted(indptr, np.linspace(0, indptr[-1], chunks + 1)[1:-1])
    return [0, *np.minimum(ends, len(indptr) - 1).tolist(), len(indptr) - 1]


@callee
def _ask_row(x: Array, row: int, first: int, width: int) -> None:
    """Ask for the cache lines of a row that will be needed soon."""
    for f in range(first, first + width, line_width(x)):
        prefetch(x, row, f)


@callee
def _factor(
    weight: Array | None,
    row_scale: Array | None,
    col_scale: Array | None,
    e: int,
    i: int,
    j: Any,
    one: Any,
) -> Any:
    product = one
    if weight is not None:
        product *= weight[e]
    if row_scale is not None:
        product *= row_scale[i]
    if col_scale is not None:
        product *= col_scale[j]
    return product


@kernel
def _sum_rows(  # noqa: PLR0913 - flat, so that Numba drops the branches of absent factors
    indptr: Array,
    index: Array,
    weight: Array | None,
    row_scale: Array | None,
    col_scale: Array | None,
    x: Array,
    out: Array,
    accumulate: bool,
    span: tuple[int, int, int],
    tiles: tuple[int, ...] | None,
) -> None:
    row_lo, row_hi, first = span
    width = min(WIDEST, x.shape[1] - first) if tiles is None else len(tiles) * TILE
    last, one = len(index) - 1, x.dtype.type(1)
    for i in range(row_lo, row_hi):
        if not accumulate:
            for f in range(first, first + width):
                out[i, f] = 0
        e, end = indptr[i], indptr[i + 1]
        # four edges a step: a quarter of the loads and stores of the output row
        while e + 4 <= end:
            for step in range(4):
                _ask_row(x, index[min(e + AHEAD + step, last)], first, width)
            # unsigned, since a signed index costs a test for counting from the end
            j0, j1 = np.uint64(index[e]), np.uint64(index[e + 1])
            j2, j3 = np.uint64(index[e + 2]), np.uint64(index[e + 3])
            w0 = _factor(weight, row_scale, col_scale, e, i, j0, one)
            w1 = _factor(weight, row_scale, col_scale, e + 1, i, j1, one)
            w2 = _factor(weight, row_scale, col_scale, e + 2, i, j2, one)
            w3 = _factor(weight, row_scale, col_scale, e + 3, i, j3, one)
            for f in range(first, first + width):
                out[i, f] += (w0 * x[j0, f] + w1 * x[j1, f]) + (w2 * x[j2, f] + w3 * x[j3, f])
            e += 4
        while e < end:
            _ask_row(x, index[min(e + AHEAD, last)], first, width)
            j0 = np.uint64(index[e])
            w0 = _factor(weight, row_scale, col_scale, e, i, j0, one)
            for f in range(first, first + width):
                out[i, f] += w0 * x[j0, f]
            e += 1


@strict_kernel
def _max_rows(
    indptr: Array,
    index: Array,
    x: Array,
    out: Array,
    edge: Array,
    span: tuple[int, int, int],
    tiles: tuple[int, ...] | None,
) -> None:
    row_lo, row_hi, first = span
    width = min(WIDEST, x.shape[1] - first) if tiles is None else len(tiles) * TILE
    last = len(index) - 1
    for i in range(row_lo, row_hi):
        e, end = indptr[i], indptr[i + 1]
        j = np.uint64(index[e]) if e < end else np.uint64(0)
        for f in range(first, first + width):
            out[i, f] = x[j, f] if e < end else 0
            edge[i, f] = e if e < end else -1
        e += 1
        while e < end:
            _ask_row(x, index[min(e + AHEAD, last)], first, width)
            j = np.uint64(index[e])
            for f in range(first, first + width):
                value, best = x[j, f], out[i, f]
                # the first NaN wins over all: it must reach the loss, not vanish in a comparison
                better = (value > best) | ((value != value) & (best == best))
                out[i, f] = value if better else best
                edge[i, f] = e if better else edge[i, f]
            e += 1


@kernel
def _max_grad_columns(
    index: Array, edge: Array, grad: Array, out: Array, column_lo: int, column_hi: int
) -> None:
    for i in range(edge.shape[0]):
        for f in range(column_lo, column_hi):
            e = edge[i, f]
            if e >= 0:
                out[np.uint64(index[e]), f] += grad[i, f]


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

"""The undirected graph behind a directed one, without loops or repeated edges, for METIS."""

import numpy as np

from siafu.graph import Array, Graph, index_dtype
from siafu.ops.numba_jit import strict_kernel
from siafu.partition.chunks import EDGES_AT_ONCE, forget, ranges, read


def symmetric_adjacency(graph: Graph) -> tuple[Array, Array]:
    """Return (offsets, neighbours), each edge in both directions once.

    The neighbours are in the narrowest index type, so this holds 8 bytes an edge below 2**31
    vertices.
    """
    indptr = np.array(graph.indptr)
    offsets = np.zeros(graph.num_nodes + 1, np.int64)
    for low, high in ranges(graph.num_edges, EDGES_AT_ONCE):
        _count(indptr, read(graph.src, low, high).astype(np.int64), low, offsets)
    np.cumsum(offsets, out=offsets)
    fill = offsets[:-1].copy()
    neighbours = np.empty(offsets[-1], index_dtype(graph.num_nodes))
    for low, high in ranges(graph.num_edges, EDGES_AT_ONCE):
        _fill(indptr, read(graph.src, low, high).astype(np.int64), low, fill, neighbours)
    forget(graph.indptr)
    return offsets, neighbours[: _drop_repeats(offsets, neighbours)]


@strict_kernel
def _count(indptr: Array, src: Array, low: int, offsets: Array) -> None:
    row = np.searchsorted(indptr, low, side="right") - 1
    for position in range(len(src)):
        while indptr[row + 1] <= low + position:
            row += 1
        if src[position] != row:
            offsets[row + 1] += 1
            offsets[src[position] + 1] += 1


@strict_kernel
def _fill(indptr: Array, src: Array, low: int, fill: Array, neighbours: Array) -> None:
    row = np.searchsorted(indptr, low, side="right") - 1
    for position in range(len(src)):
        while indptr[row + 1] <= low + position:
            row += 1
        vertex = src[position]
        if vertex != row:
            neighbours[fill[row]] = vertex
            neighbours[fill[vertex]] = row
            fill[row] += 1
            fill[vertex] += 1


@strict_kernel
def _drop_repeats(offsets: Array, neighbours: Array) -> int:
    """Sort each row, keep each neighbour once, close the gaps; return how many remain."""
    kept = 0
    low = 0
    for row in range(len(offsets) - 1):
        high = offsets[row + 1]
        neighbours[low:high].sort()
        for position in range(low, high):
            if position == low or neighbours[position] != neighbours[position - 1]:
                neighbours[kept] = neighbours[position]
                kept += 1
        low = high
        offsets[row + 1] = kept
    return kept

"""The undirected graph behind a directed one, without loops or repeated edges, for METIS."""

import numpy as np

from siafu.graph import Array, Graph, index_dtype
from siafu.ops.numba_jit import strict_kernel
from siafu.partition.chunks import edge_pieces


def symmetric_adjacency(graph: Graph) -> tuple[Array, Array]:
    """Return (offsets, neighbours), each edge in both directions once.

    The neighbours are in the narrowest index type, so this holds 8 bytes an edge below 2**31
    vertices.
    """
    offsets = np.zeros(graph.num_nodes + 1, np.int64)
    for window, src in edge_pieces(graph):
        _count(window.rows, src, offsets)
    np.cumsum(offsets, out=offsets)
    fill = offsets[:-1].copy()
    neighbours = np.empty(offsets[-1], index_dtype(graph.num_nodes))
    for window, src in edge_pieces(graph):
        _fill(window.rows, src, fill, neighbours)
    return offsets, neighbours[: _drop_repeats(offsets, neighbours)]


@strict_kernel
def _count(rows: tuple[Array, int, int], src: Array, offsets: Array) -> None:
    starts, first, low = rows
    at = 0
    for position in range(len(src)):
        while starts[at + 1] <= low + position:
            at += 1
        if src[position] != first + at:
            offsets[first + at + 1] += 1
            offsets[src[position] + 1] += 1


@strict_kernel
def _fill(rows: tuple[Array, int, int], src: Array, fill: Array, neighbours: Array) -> None:
    starts, first, low = rows
    at = 0
    for position in range(len(src)):
        while starts[at + 1] <= low + position:
            at += 1
        row, vertex = first + at, src[position]
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

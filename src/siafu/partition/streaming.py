"""An assignment from a few passes over the edges in the order they lie on disk, in O(N) memory.

One pass: each vertex joins the part with most of its in-neighbours so far, less full parts first
(linear deterministic greedy, Stanton and Kliot 2012). More passes: the first clusters the vertices
(Hollocou et al. 2017, as in 2PS by Mayer et al. 2022), whole clusters are dealt to parts, and the
others move vertices by the same greedy rule, which then knows every neighbour's part. Ranges of
rows replace the clusters where they cut less; comparing costs two more reads.

Loads are [P, 3]: vertices, in-edges and training vertices of each part.
"""

import numpy as np

from siafu.graph import Array, Graph
from siafu.ops.numba_jit import strict_kernel
from siafu.partition.assign import assign_contiguous, check_num_parts
from siafu.partition.chunks import EDGES_AT_ONCE, Progress, forget, quiet, ranges, read

_SLACK = 1.05
"""How far a part may exceed the mean, in each of the three."""
_CLUSTER_SHARE = 0.05
"""Largest cluster, of a part's share of edge ends: above 0.1 parts came out uneven, and the
refinement then had no room (arxiv: 0.50 of the edges cut at 0.05, 0.61 at 0.125)."""


def assign_streaming(
    graph: Graph, num_parts: int, *, passes: int = 3, progress: Progress | None = None
) -> Array:
    """Return part_of after `passes` over the edges, read in order."""
    check_num_parts(num_parts, graph.num_nodes)
    progress = progress or quiet
    indptr = np.array(graph.indptr)
    train = np.zeros(graph.num_nodes, bool) if graph.train is None else np.array(graph.train)
    forget(graph.indptr)
    if passes == 1:
        part_of = np.full(graph.num_nodes, -1, np.int32)
        _place_all(graph, indptr, train, part_of, num_parts, progress)
        return part_of
    cluster = _find_clusters(graph, indptr, num_parts, progress)
    dealt = _deal_clusters(cluster, indptr, train, num_parts)
    ranged = assign_contiguous(graph, num_parts)
    start = _least_cut(graph, indptr, train, [ranged, dealt], num_parts)
    part_of = start.copy()
    for _ in range(passes - 1):
        _place_all(graph, indptr, train, part_of, num_parts, progress)
    # The rule sees a vertex's in-neighbours alone, so on directed graphs it may lose.
    return _least_cut(graph, indptr, train, [start, part_of], num_parts)


def _find_clusters(graph: Graph, indptr: Array, num_parts: int, progress: Progress) -> Array:
    """Return a cluster for each vertex, grown along the edges in one pass."""
    cluster = np.arange(graph.num_nodes)
    volume, degree = np.zeros((2, graph.num_nodes), np.int64)
    largest = _CLUSTER_SHARE * 2 * graph.num_edges / num_parts
    for low, high in ranges(graph.num_edges, EDGES_AT_ONCE):
        src = read(graph.src, low, high).astype(np.int64)
        _join_clusters(indptr, src, low, cluster, volume, degree, largest)
        progress("cluster", high, graph.num_edges)
    return cluster


@strict_kernel
def _join_clusters(
    indptr: Array,
    src: Array,
    low: int,
    cluster: Array,
    volume: Array,
    degree: Array,
    largest: float,
) -> None:
    """For each edge, let the end in the smaller cluster join the other's, if that has room."""
    row = np.searchsorted(indptr, low, side="right") - 1
    for position in range(len(src)):
        while indptr[row + 1] <= low + position:
            row += 1
        vertex = src[position]
        if vertex == row:
            continue
        for end in (vertex, row):
            degree[end] += 1
            volume[cluster[end]] += 1
        mover, host = vertex, row
        if volume[cluster[vertex]] - degree[vertex] > volume[cluster[row]] - degree[row]:
            mover, host = row, vertex
        home, goal = cluster[mover], cluster[host]
        if home != goal and volume[home] <= largest and volume[goal] + degree[mover] <= largest:
            volume[home] -= degree[mover]
            volume[goal] += degree[mover]
            cluster[mover] = goal


def _deal_clusters(cluster: Array, indptr: Array, train: Array, num_parts: int) -> Array:
    """Return part_of that keeps clusters whole, largest first, each to the part it fits best."""
    weight_C3 = np.zeros((len(cluster), 3))
    for constraint, weight in enumerate((None, np.diff(indptr), train)):
        sums = np.bincount(cluster, weight, minlength=len(cluster))
        weight_C3[:, constraint] = sums / max(sums.sum(), 1.0)
    largest_first = np.argsort(-weight_C3.max(axis=1), kind="stable")
    return _fit_clusters(largest_first, weight_C3, num_parts)[cluster]


def _least_cut(
    graph: Graph, indptr: Array, train: Array, candidates: list[Array], num_parts: int
) -> Array:
    """Return the candidate that cuts fewest edges of those even enough, else the last."""
    even = [
        part_of
        for part_of in candidates
        if _is_even(_loads(indptr, train, part_of, num_parts), num_parts)
    ]
    if len(even) < 2:
        return even[0] if even else candidates[-1]
    cut = np.zeros(len(even), np.int64)
    for low, high in ranges(graph.num_edges, EDGES_AT_ONCE):
        src = read(graph.src, low, high).astype(np.int64)
        cut += [_cut_edges(indptr, src, low, part_of) for part_of in even]
    return even[int(cut.argmin())]


def _is_even(load_P3: Array, num_parts: int) -> bool:
    return bool((load_P3.max(axis=0) <= _room(load_P3.sum(axis=0) / num_parts)).all())


def _room(mean: Array) -> Array:
    return np.maximum(_SLACK * mean, np.ceil(mean))


@strict_kernel
def _cut_edges(indptr: Array, src: Array, low: int, part_of: Array) -> int:
    """Return how many of these edges join two parts."""
    row = np.searchsorted(indptr, low, side="right") - 1
    cut = 0
    for position in range(len(src)):
        while indptr[row + 1] <= low + position:
            row += 1
        cut += part_of[src[position]] != part_of[row]
    return cut


@strict_kernel
def _fit_clusters(order: Array, weight_C3: Array, num_parts: int) -> Array:
    """Return each cluster's part: where its weights meet the smallest loads (dot product)."""
    load_P3 = np.zeros((num_parts, 3))
    part_of = np.zeros(len(order), np.int32)
    for item in order:
        best, least = 0, np.inf
        for part in range(num_parts):
            meeting = 0.0
            for constraint in range(3):
                meeting += load_P3[part, constraint] * weight_C3[item, constraint]
            if meeting < least:
                best, least = part, meeting
        part_of[item] = best
        for constraint in range(3):
            load_P3[best, constraint] += weight_C3[item, constraint]
    return part_of


def _place_all(
    graph: Graph, indptr: Array, train: Array, part_of: Array, num_parts: int, progress: Progress
) -> None:
    """Give each vertex the part where it cuts fewest edges; vertices already placed may move."""
    load_P3 = _loads(indptr, train, part_of, num_parts)
    room = _room(np.array([graph.num_nodes, graph.num_edges, train.sum()]) / num_parts)
    near = np.zeros(num_parts, np.int64)
    row = 0
    for low, high in ranges(graph.num_edges, EDGES_AT_ONCE):
        src = read(graph.src, low, high).astype(np.int64)
        row = _place_rows(row, indptr, src, low, train, part_of, load_P3, room, near)
        progress("place", high, graph.num_edges)


@strict_kernel
def _loads(indptr: Array, train: Array, part_of: Array, num_parts: int) -> Array:
    """Return load_P3 of the vertices already placed."""
    load_P3 = np.zeros((num_parts, 3))
    for row in range(len(part_of)):
        if part_of[row] >= 0:
            load_P3[part_of[row], 0] += 1
            load_P3[part_of[row], 1] += indptr[row + 1] - indptr[row]
            load_P3[part_of[row], 2] += train[row]
    return load_P3


@strict_kernel
def _place_rows(  # noqa: PLR0913 - a kernel takes its state apart
    row: int,
    indptr: Array,
    src: Array,
    low: int,
    train: Array,
    part_of: Array,
    load_P3: Array,
    room: Array,
    near: Array,
) -> int:
    """Place the rows whose edges end in this piece; return the first row not placed.

    `near` counts the neighbours of that row by part, and is carried on to the next piece.
    """
    high = low + len(src)
    weight = np.ones(3)
    for edge_row in range(row, len(part_of)):
        for edge in range(max(low, indptr[edge_row]), min(high, indptr[edge_row + 1])):
            vertex = src[edge - low]
            if vertex != edge_row and part_of[vertex] >= 0:
                near[part_of[vertex]] += 1
        if indptr[edge_row + 1] > high:
            return edge_row
        weight[1], weight[2] = indptr[edge_row + 1] - indptr[edge_row], train[edge_row]
        home = part_of[edge_row]
        if home >= 0:
            load_P3[home] -= weight
        part = _best_part(home, weight, load_P3, room, near)
        part_of[edge_row] = part
        load_P3[part] += weight
        near[:] = 0
    return len(part_of)


@strict_kernel
def _best_part(home: int, weight: Array, load_P3: Array, room: Array, near: Array) -> int:
    """Return the part with most neighbours that has room, else the one least over its room."""
    best, most = -1, -np.inf
    refuge, least = 0, np.inf
    for part in range(len(load_P3)):
        over, full = 0.0, 0.0
        for constraint in range(3):
            after = load_P3[part, constraint] + weight[constraint]
            if weight[constraint] > 0:
                over = max(over, after / room[constraint])
            if room[constraint] > 0:
                full += load_P3[part, constraint] / room[constraint] / 3
        if over > 1:
            if over < least:
                refuge, least = part, over
            continue
        # Moving must win something; where nothing speaks for a part, the emptier one gets it.
        gain = (near[part] + 0.5 * (part == home)) * (1 - 0.5 * full) - 1e-6 * full
        if gain > most:
            best, most = part, gain
    return best if best >= 0 else refuge

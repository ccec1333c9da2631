"""An assignment from a few passes over the edges in the order they lie on disk, in O(N) memory.

One pass: each node joins the part with most of its in-neighbours so far, less full parts first
(linear deterministic greedy, Stanton and Kliot 2012). More passes: the first clusters the nodes
(Hollocou et al. 2017, as in 2PS by Mayer et al. 2022), whole clusters are dealt to parts, and the
others move nodes by the same greedy rule, which then knows every neighbour's part. Ranges of
rows replace the clusters where they cut less; comparing costs two more reads.

Loads are [P, 3]: nodes, in-edges and training nodes of each part.
"""

from collections.abc import Callable

import numpy as np

from siafu.graph import Array, Graph, Partial, index_dtype
from siafu.ops.numba_jit import strict_kernel
from siafu.partitioning.assign import assign_contiguous, check_num_parts
from siafu.partitioning.chunks import Window, edge_pieces, ranges, read
from siafu.record import Progress, silent

_SLACK = 1.05
"""How far a part may exceed the mean, in each of the three."""
_CLUSTER_SHARE = 0.01
"""Largest cluster, of a part's share of edge ends. At 0.05 clusters of a large graph mix its
communities and parts come out uneven, without room for the refinement (cut of 2 parts: arxiv 0.47
instead of 0.31, power law 0.43 instead of 0.27); at 0.0005 they say too little."""
_SMALL_CLUSTER = 64
"""Edge ends that a cluster of a small graph may have, up to five times that share."""
PASSES = 5
"""One that clusters, the others place. Five cut 1 to 37 % less than three on six graphs."""


_ROWS_AT_ONCE = 1 << 20


def assign_streaming(
    graph: Graph,
    num_parts: int,
    *,
    passes: int = PASSES,
    progress: Progress | None = None,
    partial: Partial | None = None,
) -> Array:
    """Return part_of after `passes` over the edges, read in order.

    With `partial` each pass is a step, noted now and then, and one that ended is not done again.
    """
    check_num_parts(num_parts, graph.num_nodes)
    sweep = _Sweep(graph, num_parts, progress or silent, partial)
    if passes == 1:
        return sweep.place("place", np.full(graph.num_nodes, -1, np.int32))
    start = sweep.once("start", sweep.begin)
    part_of = start.copy()
    for number in range(1, passes):
        part_of = sweep.place(f"place {number}", part_of)
    # The rule sees a node's in-neighbours alone, so on directed graphs it may lose.
    return sweep.least_cut([start, part_of])


class _Sweep:
    """Passes over the edges of one graph."""

    def __init__(
        self, graph: Graph, num_parts: int, progress: Progress, partial: Partial | None
    ) -> None:
        self.graph, self.num_parts = graph, num_parts
        self.progress, self.partial = progress, partial
        none = graph.train is None
        self.train = np.zeros(graph.num_nodes, bool) if none else np.array(graph.train)

    def once(self, step: str, make: Callable[[], Array]) -> Array:
        """Return what an earlier process made in this step, else make and save it."""
        if self.partial is None:
            return make()
        if not self.partial.has(step):
            self.partial.save(step, {"made": make()})
        made = self.partial.load(step, "made")
        assert made is not None
        return np.array(made)

    def run(
        self, step: str, state: dict[str, Array], work: Callable[[Window, Array], None]
    ) -> None:
        """Do `work` on every piece of edges; it changes `state`, which survives a kill."""
        total, start = self.graph.num_edges, 0
        if self.partial is not None and (noted := self.partial.facts(step)):
            start = int(noted["position"])
            for name, array in state.items():
                array[...] = self.partial.load(step, name)
        if self.partial is not None and self.partial.has(step):
            return
        for window, src in edge_pieces(self.graph, start):
            work(window, src)
            self.progress(step, window.high, total)
            if self.partial is not None and self.partial.is_due:
                self.partial.save(step, state, ended=False, position=window.high)
        if self.partial is not None:
            self.partial.save(step, state, position=total)

    def begin(self) -> Array:
        """Return clusters dealt to parts, or ranges of rows where those cut less."""
        dealt = self._deal(self._clusters())
        if self.partial is not None:
            self.partial.forget("cluster")
        return self.least_cut([assign_contiguous(self.graph, self.num_parts), dealt])

    def _clusters(self) -> Array:
        """Return a cluster for each node, grown along the edges in one pass."""
        n, ends = self.graph.num_nodes, 2 * self.graph.num_edges
        cluster = np.arange(n, dtype=index_dtype(n))
        volume, degree = np.zeros((2, n), index_dtype(ends))
        share = ends / self.num_parts
        largest = max(_CLUSTER_SHARE * share, min(_SMALL_CLUSTER, 5 * _CLUSTER_SHARE * share))

        def join(window: Window, src: Array) -> None:
            _join_clusters(window.rows, src, cluster, volume, degree, largest)

        self.run("cluster", {"cluster": cluster, "volume": volume, "degree": degree}, join)
        return cluster

    def _deal(self, cluster: Array) -> Array:
        """Return part_of that keeps clusters whole, largest first, each to the part it fits."""
        num_clusters = _number_from_zero(cluster)
        weight_C3 = np.zeros((num_clusters, 3))
        for low, high in ranges(len(cluster), _ROWS_AT_ONCE):
            offsets = read(self.graph.indptr, low, high + 1)
            _add_weights(cluster[low:high], offsets, self.train[low:high], weight_C3)
        weight_C3 /= np.maximum(weight_C3.sum(axis=0), 1.0)
        size = weight_C3.max(axis=1)
        largest_first = np.argsort(np.negative(size, out=size), kind="stable")
        del size
        return _fit_clusters(largest_first, weight_C3, self.num_parts)[cluster]

    def place(self, step: str, part_of: Array) -> Array:
        """Return each node's part where it cuts fewest edges; placed nodes may move."""
        load_P3 = self.loads(part_of)
        totals = np.array([self.graph.num_nodes, self.graph.num_edges, self.train.sum()])
        room = _room(totals / self.num_parts)
        near = np.zeros(self.num_parts, np.int64)

        def place(window: Window, src: Array) -> None:
            _place_rows(window.rows, src, self.train, part_of, load_P3, room, near)

        self.run(step, {"part_of": part_of, "loads": load_P3, "near": near}, place)
        return part_of

    def loads(self, part_of: Array) -> Array:
        """Return load_P3 of the nodes already placed."""
        load_P3 = np.zeros((self.num_parts, 3))
        for low, high in ranges(len(part_of), _ROWS_AT_ONCE):
            offsets = read(self.graph.indptr, low, high + 1)
            _add_weights(part_of[low:high], offsets, self.train[low:high], load_P3)
        return load_P3

    def least_cut(self, candidates: list[Array]) -> Array:
        """Return the candidate that cuts fewest edges of those even enough, else the last."""
        even = [part_of for part_of in candidates if _is_even(self.loads(part_of))]
        if len(even) < 2:
            return even[0] if even else candidates[-1]
        cut = np.zeros(len(even), np.int64)
        for window, src in edge_pieces(self.graph):
            cut += [_cut_edges(window.rows, src, part_of) for part_of in even]
            self.progress("compare", window.high, self.graph.num_edges)
        return even[int(cut.argmin())]


def _is_even(load_P3: Array) -> bool:
    return bool((load_P3.max(axis=0) <= _room(load_P3.sum(axis=0) / len(load_P3))).all())


def _room(mean: Array) -> Array:
    return np.maximum(_SLACK * mean, np.ceil(mean))


@strict_kernel
def _join_clusters(
    rows: tuple[Array, int, int],
    src: Array,
    cluster: Array,
    volume: Array,
    degree: Array,
    largest: float,
) -> None:
    """For each edge, let the end in the smaller cluster join the other's, if that has room."""
    offsets, first, low = rows
    at = 0
    for position in range(len(src)):
        while offsets[at + 1] <= low + position:
            at += 1
        row, vertex = np.int64(first + at), np.int64(src[position])
        if vertex == row:
            continue
        # Degrees are those seen so far, and a cluster's volume is the sum of its members'.
        for end in (vertex, row):
            degree[end] += 1
            volume[cluster[end]] += 1
        # The end whose cluster is smaller without it moves: it has less to leave behind.
        mover, host = vertex, row
        if volume[cluster[vertex]] - degree[vertex] > volume[cluster[row]] - degree[row]:
            mover, host = row, vertex
        home, goal = cluster[mover], cluster[host]
        if home != goal and volume[home] <= largest and volume[goal] + degree[mover] <= largest:
            volume[home] -= degree[mover]
            volume[goal] += degree[mover]
            cluster[mover] = goal


@strict_kernel
def _number_from_zero(cluster: Array) -> int:
    """Number the clusters that have nodes anew, in order; return how many there are."""
    number = np.zeros(len(cluster), cluster.dtype)
    for vertex in range(len(cluster)):
        number[cluster[vertex]] = 1
    used = 0
    for old in range(len(number)):
        if number[old]:
            number[old] = used
            used += 1
    for vertex in range(len(cluster)):
        cluster[vertex] = number[cluster[vertex]]
    return used


@strict_kernel
def _add_weights(group: Array, offsets: Array, train: Array, weight_G3: Array) -> None:
    """Add nodes, in-edges and training nodes to the group of each node, -1 for none."""
    for vertex in range(len(group)):
        if group[vertex] >= 0:
            weight_G3[group[vertex], 0] += 1
            weight_G3[group[vertex], 1] += offsets[vertex + 1] - offsets[vertex]
            weight_G3[group[vertex], 2] += train[vertex]


@strict_kernel
def _cut_edges(rows: tuple[Array, int, int], src: Array, part_of: Array) -> int:
    """Return how many of these edges join two parts."""
    offsets, first, low = rows
    at, cut = 0, 0
    for position in range(len(src)):
        while offsets[at + 1] <= low + position:
            at += 1
        cut += part_of[src[position]] != part_of[first + at]
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


@strict_kernel
def _place_rows(
    rows: tuple[Array, int, int],
    src: Array,
    train: Array,
    part_of: Array,
    load_P3: Array,
    room: Array,
    near: Array,
) -> None:
    """Place the rows that end in this piece.

    `near` counts the neighbours by part of a row that goes on in the next piece.
    """
    offsets, first, low = rows
    high = low + len(src)
    weight = np.ones(3)
    for at in range(len(offsets) - 1):
        row = first + at
        for edge in range(max(low, offsets[at]), min(high, offsets[at + 1])):
            vertex = src[edge - low]
            if vertex != row and part_of[vertex] >= 0:
                near[part_of[vertex]] += 1
        if offsets[at + 1] > high:
            return
        # Placed before, in an earlier pass, a row is taken out first, then weighed like a new one.
        weight[1], weight[2] = offsets[at + 1] - offsets[at], train[row]
        home = part_of[row]
        if home >= 0:
            load_P3[home] -= weight
        part = _best_part(home, weight, load_P3, room, near)
        part_of[row] = part
        load_P3[part] += weight
        near[:] = 0


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

"""An assignment from a few passes over the edges in the order they lie on disk, in O(N) memory.

Nodes join the clusters of their neighbours, in rounds (label propagation with bounded clusters, as
ParHIP by Meyerhenke, Sanders and Schulz 2017); METIS cuts the small graph of the clusters; then
nodes move to parts with more of their neighbours, in rounds, as long as parts stay even. Ranges of
rows are taken instead where they cut less; comparing costs one more read.

Loads are [P, 3]: nodes, in-edges and training nodes of each part.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from siafu.graph import Array, Crew, Graph, Partial, Told, index_dtype, scratch_folder
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import in_order, num_threads, run_chunks
from siafu.partitioning.assign import assign_contiguous, check_num_parts
from siafu.partitioning.both_ways import BothWays, RowPiece
from siafu.partitioning.chunks import evenly, ranges, read
from siafu.partitioning.coarse import Pairs, cut_clusters, number_from_zero
from siafu.partitioning.propagation import grow_clusters, move_rows
from siafu.record import Progress, silent

_SLACK = 1.05
"""How far a part may exceed the mean, in each of the three."""
_CLUSTER_SHARE = 0.01
"""Largest cluster, of a part's share of nodes and edge ends: METIS evens out what is smaller."""
_SMALL_CLUSTER = 64
"""Edge ends that a cluster of a small graph may have, up to five times that share."""
PASS = "pass over the edges"
ROUNDS = 4
"""Of clusters, and most of moving nodes."""
_FEW_MOVES = 0.001
"""Share of nodes below which another round of moving them is not worth a pass."""
_PASSES = (
    *(f"cluster {number}" for number in range(1, ROUNDS + 1)),
    "start",
    *(f"move {number}" for number in range(1, ROUNDS + 1)),
)
"""Steps, each of which needs what the one before ended with, and nothing else."""
_FEW_PARTS = 127
_FEWEST_PAIRS, _MOST_PAIRS = 1 << 17, 1 << 19
_EDGES_A_PAIR = 16
"""Pairs of clusters that METIS is given, and how many edge ends there are for each."""

_ROWS_AT_ONCE = 1 << 20


def assign_streaming(
    graph: Graph,
    num_parts: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    partial: Partial | None = None,
) -> Array:
    """Return part_of after a few passes over the edges, read in order.

    With `partial` each pass is a step, noted now and then: a kill costs no more than a minute, or
    the whole pass that counts pairs of clusters, or compares.
    """
    check_num_parts(num_parts, graph.num_nodes)
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    with scratch_folder() if partial is None else nullcontext(partial.scratch) as folder:
        rows = BothWays(graph, folder, partial)
        sweep = _Sweep(rows, num_parts, seed, progress or silent, partial)
        part_of = sweep.once("start", sweep.begin)
        # A byte per node, where that will do, stays in the caches while nodes look around.
        small = np.int8 if num_parts <= _FEW_PARTS else np.int32
        part_of = part_of.astype(small)
        for number in range(1, ROUNDS + 1):
            if sweep.is_past(f"move {number}"):
                continue
            part_of, moved = sweep.move(f"move {number}", part_of)
            if moved < _FEW_MOVES * graph.num_nodes:
                break
        ranges_of_rows = assign_contiguous(graph, num_parts).astype(small)
        return sweep.least_cut([ranges_of_rows, part_of]).astype(np.int32)


class _Sweep:
    """Passes over the edges of one graph, each by all ranks of a crew in step."""

    def __init__(
        self,
        rows: BothWays,
        num_parts: int,
        seed: int = 0,
        progress: Progress = silent,
        partial: Partial | None = None,
    ) -> None:
        self.rows, self.graph, self.crew = rows, rows.graph, rows.crew
        self.num_parts, self.seed = num_parts, seed
        self.progress, self.partial = progress, partial
        none = self.graph.train is None
        self.train = np.zeros(rows.num_nodes, bool) if none else np.array(self.graph.train)

    @contextmanager
    def _led(self, **told: Any) -> Iterator[None]:
        """Have the other ranks pass over the edges as well; arrays they find in files."""
        if self.crew.size == 1:
            yield
            return
        assert self.partial is not None, "ranks share a folder"
        folder = self.partial.scratch / "passing"
        folder.mkdir(exist_ok=True)
        for name, array in told["state"].items():
            np.save(folder / f"{name}.npy", array)
        told |= {"state": list(told["state"]), "folder": str(folder.absolute())}
        with self.crew.together(PASS, told | {"parts": self.num_parts}):
            yield

    def follow(self, told: Told) -> None:
        """Do what the first rank does in a pass, on arrays of its own."""
        folder = Path(told["folder"])
        state = {name: np.load(folder / f"{name}.npy") for name in told["state"]}
        start = told["start"]
        if told["step"] == "compare":
            self._count_cut(list(state.values()))
            return
        work = self._join(state, **told["with"]) if "cluster" in state else self._moving(state)
        for piece in self._pieces(start):
            work(piece)

    def _pieces(self, start: int) -> Iterator[RowPiece]:
        """Return the pieces that rows are decided in, the same on every rank."""
        return self.rows.pieces(start, shared=True, decided=True)

    def once(self, step: str, make: Callable[[], Array]) -> Array:
        """Return what an earlier process made in this step, else make it."""
        if self.is_past(step):
            return np.zeros(self.rows.num_nodes, np.int32)  # nobody will look at it
        if self.partial is not None and self.partial.has(step):
            return np.array(self.partial.load(step, "made"))
        made = make()
        self._note(step, {"made": made})
        return made

    def is_past(self, step: str) -> bool:
        """Return whether a later step has been noted, from which the work goes on."""
        later = _PASSES[_PASSES.index(step) + 1 :]
        return self.partial is not None and any(self.partial.facts(name) for name in later)

    def _note(
        self, step: str, state: dict[str, Array], *, ended: bool = True, **facts: int
    ) -> None:
        """Note how far a step is, if it is long ago that anything was."""
        if self.partial is None or not self.partial.is_due:
            return
        for name in _PASSES[: _PASSES.index(step)]:
            self.partial.forget(name)
        self.partial.save(step, state, ended=ended, **facts)

    def run(
        self, step: str, state: dict[str, Array], work: Callable[[RowPiece], int], **how: int
    ) -> int:
        """Do `work` on every piece of rows and return the sum of what it returns.

        It changes `state`, which survives a kill. `how` is what other ranks have to know of it.
        """
        start, total = 0, 0
        if self.partial is not None and (noted := self.partial.facts(step)):
            start, total = int(noted["position"]), int(noted["total"])
            for name, array in state.items():
                array[...] = self.partial.load(step, name)
        if self.partial is not None and self.partial.has(step):
            return total
        with self._led(step=step, state=state, start=start, **{"with": how}):
            for piece in self._pieces(start):
                total += work(piece)
                at = piece.whole[1]
                self.progress(step, at, self.rows.num_nodes)
                self._note(step, state, ended=False, position=at, total=total)
        self._note(step, state, position=self.rows.num_nodes, total=total)
        return total

    def begin(self) -> Array:
        """Return clusters of nodes as METIS deals them to parts."""
        cluster = self._clusters()
        num_clusters = number_from_zero(cluster)
        most = min(_MOST_PAIRS, max(_FEWEST_PAIRS, self.rows.num_ends // _EDGES_A_PAIR))
        pairs = Pairs(num_clusters, most)
        # Where there are more edges than are needed to tell the pairs, the rows are sampled.
        every = max(1, self.rows.graph.num_edges // (_EDGES_A_PAIR * most))
        pairs.add(self.rows.pieces(), cluster, every)
        pairs.merge()
        self.progress("assign", 0, None)
        return cut_clusters(pairs, self.weigh(cluster, num_clusters), self.num_parts, self.seed)[
            cluster
        ]

    def _clusters(self) -> Array:
        """Return a cluster for each node, grown along the edges in a few rounds."""
        n, ends = self.rows.num_nodes, self.rows.num_ends
        cluster = np.arange(n, dtype=index_dtype(n))
        # A node counts as much as the edges of a mean one, so that clusters are even in both.
        own = max(1, ends // n)
        weight = np.full(n, own, np.int64)

        def weigh(piece: tuple[int, int]) -> None:
            weight[slice(*piece)] += self.rows.ends(*piece)

        for _ in in_order(weigh, ranges(n, _ROWS_AT_ONCE), ahead=num_threads()):
            pass
        share = 2 * ends / self.num_parts
        largest = max(_CLUSTER_SHARE * share, min(_SMALL_CLUSTER, 5 * _CLUSTER_SHARE * share))
        state = {"cluster": cluster, "weight": weight}
        for number in range(1, ROUNDS + 1):
            if self.is_past(f"cluster {number}"):
                continue
            how = {"own": own, "largest": int(largest), "salt": number * n}
            self.run(f"cluster {number}", state, self._join(state, **how), **how)
        return cluster

    def _join(
        self, state: dict[str, Array], own: int, largest: int, salt: int
    ) -> Callable[[RowPiece], int]:
        def join(piece: RowPiece) -> int:
            mass = piece.ends + own
            cluster, weight = state["cluster"], state["weight"]
            return grow_clusters(piece, cluster, weight, mass, largest, salt, self.crew)

        return join

    def move(self, step: str, part_of: Array) -> tuple[Array, int]:
        """Return each node's part after those moved that cut fewer edges elsewhere."""
        state = {"part_of": part_of, "loads": self.weigh(part_of, self.num_parts)}
        return part_of, self.run(step, state, self._moving(state))

    def _moving(self, state: dict[str, Array]) -> Callable[[RowPiece], int]:
        part_of, load_P3 = state["part_of"], state["loads"]
        room = _room(load_P3.sum(axis=0) / self.num_parts)

        def move(piece: RowPiece) -> int:
            train = self.train[slice(*piece.whole)]
            return move_rows(piece, train, part_of, load_P3, room, self.crew)

        return move

    def weigh(self, group: Array, num_groups: int) -> Array:
        """Return nodes, in-edges and training nodes of each group."""

        weight_G3 = np.zeros((num_groups, 3))
        pieces = ranges(len(group), _ROWS_AT_ONCE)
        if num_groups > _FEW_PARTS:
            for piece in pieces:
                self._weigh_many(group, piece, weight_G3)
            return weight_G3

        def weigh(piece: tuple[int, int]) -> Array:
            low, high = piece
            offsets = read(self.graph.indptr, low, high + 1)
            sums_G3 = np.zeros_like(weight_G3)
            _add_weights(group[low:high], offsets, self.train[low:high], 0, num_groups, sums_G3)
            return sums_G3

        # Whole numbers, so that sums of sums are the same to the bit.
        for sums_G3 in in_order(weigh, pieces, ahead=num_threads()):
            weight_G3 += sums_G3
        return weight_G3

    def _weigh_many(self, group: Array, piece: tuple[int, int], weight_G3: Array) -> None:
        """Add the rows of a piece; each thread looks at all of them and adds up some groups."""
        low, high = piece
        offsets = read(self.graph.indptr, low, high + 1)

        def weigh(first: int, beyond: int) -> None:
            rows = (group[low:high], offsets, self.train[low:high])
            _add_weights(*rows, first, beyond, weight_G3)

        run_chunks(weigh, evenly(len(weight_G3), num_threads()))

    def least_cut(self, candidates: list[Array]) -> Array:
        """Return the candidate that cuts fewest edges of those even enough, else the last."""
        even = [part_of for part_of in candidates if _is_even(self.weigh(part_of, self.num_parts))]
        if len(even) < 2:
            return even[0] if even else candidates[-1]

        state = {f"candidate {number}": part_of for number, part_of in enumerate(even)}
        with self._led(step="compare", state=state, start=0, **{"with": {}}):
            cut = self._count_cut(even)
        return even[int(cut.argmin())]

    def _count_cut(self, candidates: list[Array]) -> Array:
        """Return how many edges each candidate cuts."""

        def count(piece: RowPiece) -> tuple[int, list[int]]:
            cut = [_cut_edges(piece.low, *piece.sides[0], part_of) for part_of in candidates]
            return piece.whole[1], cut

        cut = np.zeros(len(candidates), np.int64)
        for high, found in in_order(count, self.rows.pieces(shared=True), ahead=num_threads()):
            cut += found
            self.progress("compare", high, self.rows.num_nodes)
        return self.crew.added(cut)


def follow_pass(graph: Graph, crew: Crew, told: Told) -> None:
    """Take part in a pass over the edges that the first rank of a crew leads."""
    rows = BothWays(graph, Path(told["folder"]).parent, None, crew)
    _Sweep(rows, told["parts"]).follow(told)


def _is_even(load_P3: Array) -> bool:
    return bool((load_P3.max(axis=0) <= _room(load_P3.sum(axis=0) / len(load_P3))).all())


def _room(mean: Array) -> Array:
    return np.maximum(_SLACK * mean, np.ceil(mean))


@strict_kernel
def _add_weights(
    group: Array, offsets: Array, train: Array, first: int, beyond: int, weight_G3: Array
) -> None:
    """Add nodes, in-edges and training nodes to the group of each node, if it is one of these."""
    for node in range(len(group)):
        if not first <= group[node] < beyond:
            continue
        weight_G3[group[node], 0] += 1
        weight_G3[group[node], 1] += offsets[node + 1] - offsets[node]
        weight_G3[group[node], 2] += train[node]


@strict_kernel
def _cut_edges(first: int, offsets: Array, neighbours: Array, part_of: Array) -> int:
    """Return how many of these in-edges join two parts."""
    cut = 0
    for at in range(len(offsets) - 1):
        for edge in range(offsets[at], offsets[at + 1]):
            cut += part_of[neighbours[edge]] != part_of[first + at]
    return cut

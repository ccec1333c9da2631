"""The neighbours of every node, along its edges and against them, in the order of rows.

A store has the in-edges of each row. Where few edges have their reverse beside them the out-edges
are sorted into a scratch file once, so that whoever looks at a row sees all of its neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siafu.graph import ALONE, Array, Crew, Graph, Partial, Told
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import CHUNKS_A_THREAD, in_order, num_threads
from siafu.partitioning import chunks
from siafu.partitioning.chunks import append_each, read, several_at_once, windows
from siafu.partitioning.memory import sample_reverse_share

_STEP = "out-edges"
DEAL, SORT = "deal out-edges", "sort out-edges"
_ENOUGH_REVERSES = 0.9
"""Share of edges with a reverse from which the in-edges tell of all neighbours."""
_BUCKETS = 256


@dataclass(frozen=True, slots=True)
class RowPiece:
    """The neighbours of the rows low..high, of a very large row some.

    `sides` are (offsets, neighbours) of the in-edges and of the out-edges, from 0 on.
    """

    low: int
    high: int
    sides: tuple[tuple[Array, Array], tuple[Array, Array]]
    whole: tuple[int, int]
    """The rows of the piece that this is a rank's share of."""
    in_offsets: Array
    """Where the in-edges of each of those start."""
    ends: Array
    """How many edges each of those has, both ways."""

    def in_chunks(self) -> list[int]:
        """Return rows, from 0 on, that divide the piece for threads."""
        count = CHUNKS_A_THREAD * num_threads() if num_threads() > 1 else 1
        return _even_rows(self.sides[0][0], self.sides[1][0], count).tolist()


class BothWays:
    """All neighbours of the nodes of one graph, read a piece at a time."""

    def __init__(
        self, graph: Graph, folder: Path, partial: Partial | None, crew: Crew = ALONE
    ) -> None:
        """Of a crew each rank has a share of every piece; others than the first find all sorted."""
        self.graph, self.num_nodes = graph, graph.num_nodes
        self.crew = crew if partial is None else partial.crew
        self._in = (graph.indptr, graph.src)
        self._out: tuple[Array, Array] | None = None
        if graph.num_edges and sample_reverse_share(graph) < _ENOUGH_REVERSES:
            self._out = _out_edges(graph, folder, partial, is_made=self.crew.rank > 0)
        self.num_ends = graph.num_edges * (1 if self._out is None else 2)

    def ends(self, low: int, high: int) -> Array:
        """Return how many edges the rows low..high have."""
        found = np.diff(read(self._in[0], low, high + 1))
        return found if self._out is None else found + np.diff(read(self._out[0], low, high + 1))

    def _before(self, row: int) -> int:
        """Return how many ends the rows before this one have."""
        return int(self._in[0][row]) + (0 if self._out is None else int(self._out[0][row]))

    def _beyond(self, low: int, step: int) -> int:
        """Return where the piece from `low` ends: after one row, or before `step` ends."""
        most, first, last = self._before(low) + step, low + 1, self.num_nodes
        while first < last:
            middle = (first + last + 1) // 2
            first, last = (middle, last) if self._before(middle) <= most else (first, middle - 1)
        return first

    def pieces(
        self, start: int = 0, *, shared: bool = False, decided: bool = False
    ) -> Iterator[RowPiece]:
        """Yield all rows from `start` on; the next piece is read while one is worked on.

        Where they are shared, of each piece the rows that this rank looks at: an even part of ends.
        Pieces of a large graph whose rows are `decided` together are larger.
        """
        step = chunks.ends_at_once(self.num_ends, decided=decided)

        def bounds() -> Iterator[tuple[int, int]]:
            low = start
            while low < self.num_nodes:
                high = self._beyond(low, step)
                yield low, high
                low = high

        def read(piece: tuple[int, int]) -> RowPiece:
            low, high = self._share(*piece) if shared else piece
            return self._read(low, high, step, piece)

        return in_order(read, bounds(), ahead=1 if decided else 2, beside=decided)

    def _share(self, low: int, high: int) -> tuple[int, int]:
        """Return the rows of low..high that this rank looks at."""
        first, last = self._before(low), self._before(high)
        rank, size = self.crew.rank, self.crew.size

        def at(rank: int) -> int:
            if rank in (0, size):
                return high if rank else low
            most = first + (last - first) * rank // size
            inner = low + int(np.searchsorted(self._in[0][low : high + 1], most))
            if self._out is not None:
                both = self._in[0][low : high + 1] + self._out[0][low : high + 1]
                inner = low + int(np.searchsorted(both, most))
            return min(inner, high)

        return at(rank), at(rank + 1)

    def _read(self, low: int, high: int, step: int, whole: tuple[int, int]) -> RowPiece:
        first, beyond = low - whole[0], high - whole[0] + 1
        in_offsets = read(self._in[0], whole[0], whole[1] + 1)
        ends = np.diff(in_offsets)
        inside = _some_rows(in_offsets[first:beyond], self._in[1], step)
        outside = (np.zeros(high - low + 1, np.int64), np.empty(0, inside[1].dtype))
        if self._out is not None:
            out_offsets = read(self._out[0], whole[0], whole[1] + 1)
            ends += np.diff(out_offsets)
            outside = _some_rows(out_offsets[first:beyond], self._out[1], step)
        return RowPiece(low, high, (inside, outside), whole, in_offsets, ends)


def _some_rows(bounds: Array, entries: Array, step: int) -> tuple[Array, Array]:
    """Return the offsets, from 0 on, and entries of some rows; of a single huge row every k-th."""
    first, last = int(bounds[0]), int(bounds[-1])
    stride = max(1, (last - first) // step) if len(bounds) == 2 else 1
    found = read(entries, first, last, stride)
    return (bounds - first if stride == 1 else np.array([0, len(found)])), found


def _out_edges(
    graph: Graph, folder: Path, partial: Partial | None, *, is_made: bool
) -> tuple[Array, Array]:
    """Return (offsets, destinations) by source: the transpose, in memory where it is one piece."""
    if graph.num_edges <= chunks.EDGES_AT_ONCE:
        offsets = np.zeros(graph.num_nodes + 1, np.int64)
        out = np.empty(graph.num_edges, graph.src.dtype)
        src = np.ascontiguousarray(graph.src)
        rows = np.repeat(np.arange(graph.num_nodes, dtype=src.dtype), np.diff(graph.indptr))
        _sort_by_source(src, rows, 0, offsets, out)
        return offsets, out
    offsets_file, out_file = folder / "out_offsets.npy", folder / "out.npy"
    if not is_made and (partial is None or not partial.has(_STEP)):
        _write_out_edges(graph, folder, offsets_file, out_file, partial)
        if partial is not None:
            partial.sync(offsets_file, out_file)
            partial.end(_STEP)
    return np.load(offsets_file, mmap_mode="r"), np.load(out_file, mmap_mode="r")


def _write_out_edges(
    graph: Graph, folder: Path, offsets_file: Path, out_file: Path, partial: Partial | None
) -> None:
    crew = ALONE if partial is None else partial.crew
    told: Told = {"folder": str(folder.absolute()), "spans": crew.size}

    def deal(told: Told, span: int) -> list[int]:
        return deal_out_edges(graph, told, span)

    def sort(told: Told, bucket: int) -> None:
        sort_out_edges(graph, told, bucket)

    sizes = np.array(list(crew.share(DEAL, deal, told, range(crew.size))))
    starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))])
    np.lib.format.open_memmap(out_file, "w+", graph.src.dtype, (graph.num_edges,)).flush()
    np.lib.format.open_memmap(offsets_file, "w+", np.int64, (graph.num_nodes + 1,)).flush()
    told |= {"starts": starts.tolist(), "files": [str(offsets_file), str(out_file)]}
    for _ in crew.share(SORT, sort, told, range(sizes.shape[1]), at_once=num_threads()):
        pass


def _bucket_shift(graph: Graph) -> int:
    return max(0, (graph.num_nodes - 1).bit_length() - (_BUCKETS - 1).bit_length())


def deal_out_edges(graph: Graph, told: Told, span: int) -> list[int]:
    """Write some edges into files by bucket of their source; return how many each has."""
    shift, folder, spans = _bucket_shift(graph), Path(told["folder"]), told["spans"]
    count = -(-graph.num_nodes >> shift)
    low, high = (graph.num_edges * at // spans for at in (span, span + 1))

    def deal(window: chunks.Window) -> tuple[Array, Array]:
        src = read(graph.src, window.low, window.high)
        return _by_bucket(window.rows, src, shift, count)

    sizes = np.zeros(count, np.int64)
    handles = [(folder / f"out{span}.{k}").open("wb") for k in range(count)]
    try:
        pieces = windows(graph.indptr, chunks.edges_per_thread(), low, high)
        for dealt in several_at_once(in_order(deal, pieces, ahead=num_threads())):
            sizes += sum(np.diff(bounds) for bounds, _ in dealt)
            append_each(handles, dealt)
    finally:
        for handle in handles:
            handle.close()
    return [int(size) for size in sizes]


def sort_out_edges(graph: Graph, told: Told, bucket: int) -> None:
    """Write the destinations of the sources of one bucket, and where those of each start."""
    kind, low = graph.src.dtype, bucket << _bucket_shift(graph)
    width, starts = 1 << _bucket_shift(graph), told["starts"]
    files = [Path(told["folder"]) / f"out{span}.{bucket}" for span in range(told["spans"])]
    pairs = chunks.joined([np.fromfile(file, kind) for file in files]).reshape(-1, 2)
    here = np.zeros(min(width, graph.num_nodes - low) + 1, np.int64)
    made = np.empty(len(pairs), kind)
    _sort_by_source(pairs[:, 0], pairs[:, 1], low, here, made)
    offsets_file, out_file = map(Path, told["files"])
    _write_at(offsets_file, low + 1, starts[bucket] + here[1:])
    _write_at(out_file, starts[bucket], made)
    for file in files:
        file.unlink()


def _write_at(file: Path, first: int, rows: Array) -> None:
    """Write rows of an array's file: a map would write whole pages, also of other hosts' rows."""
    mapped = np.load(file, mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    with file.open("r+b") as opened:
        opened.seek(mapped.offset + first * rows.itemsize)
        rows.tofile(opened)


@strict_kernel
def _even_rows(inside: Array, outside: Array, count: int) -> Array:
    """Return bounds of at most so many runs of rows with about as many ends and rows in each."""
    last = len(inside) - 1
    total = inside[last] + outside[last] + last
    bounds, found = np.zeros(count + 1, np.int64), 0
    for number in range(1, count):
        low, high = bounds[found], last
        while low < high:
            row = (low + high) // 2
            if (inside[row] + outside[row] + row) * count < total * number:
                low = row + 1
            else:
                high = row
        if bounds[found] < low < last:
            found += 1
            bounds[found] = low
    bounds[found + 1] = last
    return bounds[: found + 2]


@strict_kernel
def _by_bucket(
    rows: tuple[Array, int, int], src: Array, shift: int, num_buckets: int
) -> tuple[Array, Array]:
    """Return bounds by bucket of sources, and (source, destination) of the edges in that order."""
    offsets, first, low = rows
    bounds = np.zeros(num_buckets + 1, np.int64)
    for position in range(len(src)):
        bounds[(src[position] >> shift) + 1] += 1
    for bucket in range(num_buckets):
        bounds[bucket + 1] += bounds[bucket]
    fill, pairs, at = bounds.copy(), np.empty((len(src), 2), src.dtype), 0
    for position in range(len(src)):
        while offsets[at + 1] <= low + position:
            at += 1
        place = fill[src[position] >> shift]
        fill[src[position] >> shift] += 1
        pairs[place, 0] = src[position]
        pairs[place, 1] = first + at
    return bounds, pairs


@strict_kernel
def _sort_by_source(src: Array, dst: Array, low: int, offsets: Array, out: Array) -> None:
    """Set offsets and the destinations of the sources from `low` on, in order."""
    for position in range(len(src)):
        offsets[src[position] - low + 1] += 1
    for row in range(len(offsets) - 1):
        offsets[row + 1] += offsets[row]
    fill = offsets[:-1].copy()
    for position in range(len(src)):
        row = src[position] - low
        out[fill[row]] = dst[position]
        fill[row] += 1

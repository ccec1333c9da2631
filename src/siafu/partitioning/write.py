"""The parts folder: each part's edges in local columns, its halo, and its nodes' data.

Memory is O(N) and a piece: edges and features only pass through.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from siafu.errors import PartitionError
from siafu.graph import (
    MASKS,
    Array,
    FolderWriter,
    Graph,
    IntegerIds,
    Partial,
    SparseFeatures,
    Told,
    fingerprint_graph,
    graph_facts,
    index_dtype,
    make_in_steps,
)
from siafu.graph.columns import as_stored
from siafu.ops.threads import in_order, num_threads
from siafu.partitioning.assign import check_num_parts
from siafu.partitioning.chunks import Window, edges_per_thread, ranges, read, windows
from siafu.partitioning.halo import SourceFile, find_halo, localise
from siafu.partitioning.quality import Quality, count_training
from siafu.partitioning.split import (
    PartRows,
    Writers,
    deal_entries,
    split_entries,
    split_offsets,
    split_rows,
)
from siafu.record import Progress, silent

WRITE = "write parts"
_HALO_AT_ONCE = 1 << 18


def write_parts(  # noqa: PLR0913 - every argument is a fact the folder records
    graph: Graph,
    part_of: Array,
    target: Path | str,
    *,
    num_parts: int,
    method: str,
    seed: int,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Quality:
    """Write the graph cut by `part_of` as a parts folder and return the cut's quality."""
    check_assignment(graph, part_of, num_parts)
    with make_in_steps(target, "parts", overwrite=overwrite) as partial:
        rows = PartRows(part_of, num_parts)
        return write_in_steps(partial, graph, rows, {"method": method, "seed": seed}, progress)


def write_in_steps(
    partial: Partial,
    graph: Graph,
    rows: PartRows,
    how: dict[str, Any],
    progress: Progress | None = None,
) -> Quality:
    """Write the parts, step by step, by all of a crew; `how` they came about is kept as facts."""
    progress, writer = progress or silent, partial.writer
    writers = {part: writer.child(f"part{part}", "part") for part in range(rows.num_parts)}
    facts = graph_facts(graph)
    for part, child in writers.items():
        child.facts |= facts | {
            "part": part,
            "num_parts": rows.num_parts,
            "num_owned": len(rows.owned(part)),
            "graph_fingerprint": "",  # has its place before those that are found meanwhile
        }
    with _fingerprinted(partial, graph) as fingerprint:
        _write_arrays(partial, graph, rows, writers, progress)
        progress("fingerprint", 0, None)
        how = how | {"num_parts": rows.num_parts, "graph": facts | {"fingerprint": fingerprint()}}
    for child in writers.values():
        child.facts["graph_fingerprint"] = how["graph"]["fingerprint"]
    if not partial.has("whole"):
        writer.save("part_of", rows.part_of)
        graph.ids.save(writer)
        partial.end("whole")
    quality = _quality(partial, graph, rows, list(writers.values()))
    writer.facts |= how | {"quality": quality.to_facts()}
    return quality


def _write_arrays(
    partial: Partial,
    graph: Graph,
    rows: PartRows,
    writers: dict[int, FolderWriter],
    progress: Progress,
) -> None:
    """Write all that the parts' folders hold."""
    shared = _Shared(PartsOf(graph, rows, writers, partial.scratch), partial)
    progress("edges", 0, None)
    for step in ("edges", *(f"edges {name}" for name, _ in graph.edge_arrays() if name != "src")):
        shared.do(step)
    shared.do_parts(progress)
    shared.do("sends")
    columns = _node_columns(graph)
    for done, (name, *_) in enumerate(columns):
        progress("nodes", done, len(columns))
        shared.do(f"nodes {name}")
    progress("nodes", len(columns), len(columns))


class PartsOf:
    """The parts of one graph on their way to the disk, and the steps they are written in."""

    def __init__(
        self, graph: Graph, rows: PartRows, writers: dict[int, FolderWriter], scratch: Path
    ) -> None:
        self.graph, self.rows, self.writers, self.scratch = graph, rows, writers, scratch

    def write(self, step: str, parts: list[int]) -> list[int]:
        """Do a step for some parts; of that which finds the halo return how many edges are cut."""
        what, _, name = step.partition(" ")
        graph, some = self.graph, {part: self.writers[part] for part in parts}
        if step == "edges":
            files = {part: self._file(part) for part in parts}
            split_offsets(self.rows, some, "indptr", graph.indptr)
            for file in files.values():
                file.path.unlink(missing_ok=True)
            deal_entries(self.rows, graph.indptr, graph.src, files)
        elif what == "edges":
            column = as_stored(name, dict(graph.edge_arrays())[name])
            split_entries(self.rows, some, name, graph.indptr, column)
        elif what == "part":
            return [_write_part(self.rows, p, some[p], self._file(p)) for p in parts]
        elif step == "sends":
            write_sends(self.rows, self.writers, parts)
        else:
            assert what == "nodes", f"nobody writes {step}"
            columns = {found: (split, arrays) for found, split, *arrays in _node_columns(graph)}
            split, arrays = columns[name]
            split(self.rows, some, name, *arrays)
        return []

    def _file(self, part: int) -> "SourceFile":
        return SourceFile(self.scratch / f"src{part}", self.graph.src.dtype)


class _Shared:
    """Steps of writing parts, each done by the ranks that draw a part, or by this one."""

    def __init__(self, parts: PartsOf, partial: Partial) -> None:
        self._parts, self._partial, self._crew = parts, partial, partial.crew
        self._all = list(parts.writers)
        if self._crew.size > 1:
            np.save(partial.scratch / "part_of.npy", parts.rows.part_of)

    def do(self, step: str) -> None:
        """Do a step for all parts at once, or for an even share of them on each rank."""
        if self._partial.has(step):
            return
        shares = [self._all[rank :: self._crew.size] for rank in range(self._crew.size)]
        for _ in self._done(step, [share for share in shares if share]):
            pass
        if step == "edges":
            files = (self._partial.scratch / f"src{part}" for part in self._all)
            self._partial.sync(*(file for file in files if file.exists()))
        self._partial.end(step)

    def do_parts(self, progress: Progress) -> None:
        """Write the edges and the halo of each part."""
        left = [part for part in self._all if not self._partial.has(f"part {part}")]
        for part, found in zip(left, self._done("part", [[p] for p in left]), strict=True):
            self._partial.discard(self._partial.scratch / f"src{part}")
            self._partial.end(f"part {part}", cut_edges=found[0])
            progress("parts", part + 1, len(self._all))

    def _done(self, step: str, shares: list[list[int]]) -> Iterator[list[int]]:
        parts = self._parts
        told: Told = {"step": step, "num_parts": len(self._all)}
        if self._crew.size > 1:
            told |= {
                "folder": str(self._partial.writer.path.absolute()),
                "scratch": str(self._partial.scratch.absolute()),
                "states": {part: writer.state() for part, writer in parts.writers.items()},
            }

        def write(told: Told, share: list[int]) -> Any:
            found = parts.write(told["step"], share)
            return [self._states(share), found]

        for states, found in self._crew.share(WRITE, write, told, shares):
            for part, state in states:
                parts.writers[part].restore(state)
            yield found

    def _states(self, share: list[int]) -> list[Any]:
        if self._crew.size == 1:
            return []
        return [(part, self._parts.writers[part].state()) for part in share]


def write_told_parts(graph: Graph, told: Told, share: list[int]) -> Any:
    """Do a step for some parts, as another rank tells, and return what is whole of them then."""
    folder, scratch = Path(told["folder"]), Path(told["scratch"])
    file = scratch / "part_of.npy"
    rows = _rows_of(file, told["num_parts"], file.stat().st_mtime_ns)
    writers = dict[int, FolderWriter]()
    for part, state in told["states"].items():
        writers[int(part)] = FolderWriter(folder / f"part{part}", "part")
        writers[int(part)].restore(state)
    parts = PartsOf(graph, rows, writers, scratch)
    try:
        found = parts.write(told["step"], share)
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    return [[(part, writers[part].state()) for part in share], found]


@lru_cache(maxsize=1)
def _rows_of(file: Path, num_parts: int, changed: int) -> PartRows:
    del changed  # another cut has another file under this name
    return PartRows(np.load(file), num_parts)


@contextmanager
def _fingerprinted(partial: Partial, graph: Graph) -> Iterator[Callable[[], str]]:
    """Lend what waits for the graph's fingerprint, which a thread takes beside other work."""
    if partial.has("fingerprint"):
        yield lambda: str(partial.facts("fingerprint")["fingerprint"])
        return

    def ended() -> str:
        partial.end("fingerprint", fingerprint=taken.result())
        return taken.result()

    stopped = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        taken = beside.submit(fingerprint_graph, graph, stopped.is_set)
        try:
            yield ended
        finally:
            stopped.set()


def _quality(
    partial: Partial, graph: Graph, rows: PartRows, writers: list[FolderWriter]
) -> Quality:
    """Return the quality of the cut, counted while its parts were written."""
    cut = [partial.facts(f"part {part}")["cut_edges"] for part in range(rows.num_parts)]
    return Quality(
        cut_edges=sum(cut),
        nodes=tuple(rows.counts()),
        edges=tuple(writer.facts["num_local_edges"] for writer in writers),
        training=count_training(graph, rows.part_of, rows.num_parts),
        halo_rows=tuple(writer.facts["num_halo"] for writer in writers),
    )


def check_assignment(graph: Graph, part_of: Array, num_parts: int) -> None:
    """Raise unless every node has a part."""
    check_num_parts(num_parts, graph.num_nodes)
    low, high = int(np.min(part_of)), int(np.max(part_of))
    if len(part_of) != graph.num_nodes or low < 0 or high >= num_parts:
        raise PartitionError(
            "The assignment does not fit the graph.",
            seen=f"{len(part_of)} rows with parts {low} to {high}, for {graph.num_nodes} nodes "
            f"and {num_parts} parts",
            fix=f"give each node a part from 0 to {num_parts - 1}",
        )


def _node_columns(graph: Graph) -> list[tuple[Any, ...]]:
    """Return the name of each array, how it is split, and what it is split from."""
    plain: dict[str, Any] = {name: getattr(graph, name) for name in ("y", *MASKS)}
    columns: list[tuple[Any, ...]] = []
    if isinstance(graph.ids, IntegerIds):
        plain["ids"] = graph.ids.values
    else:
        offsets = graph.ids.offsets
        columns.append(("ids_offsets", split_offsets, offsets))
        columns.append(("ids_utf8", split_entries, offsets, graph.ids.utf8))
    if isinstance(graph.x, SparseFeatures):
        indptr = graph.x.indptr
        columns.append(("x_indptr", split_offsets, indptr))
        columns.append(("x_index", split_entries, indptr, graph.x.index))
        columns.append(("x_value", split_entries, indptr, graph.x.value))
    else:
        plain["x"] = graph.x
    columns += [
        (name, split_rows, as_stored(name, array))
        for name, array in plain.items()
        if array is not None
    ]
    return columns


def _write_part(rows: PartRows, part: int, writer: FolderWriter, file: SourceFile) -> int:
    """Write the edges of a part in local columns, and its halo; return how many edges are cut."""
    indptr = writer.load("indptr")
    num_owned, num_edges = len(indptr) - 1, int(indptr[-1])
    halo, counts = find_halo(rows, part, num_edges, file)
    boundary, cut_edges = np.zeros(num_owned, bool), 0
    kind = index_dtype(num_owned + len(halo))
    stream = writer.stream("src", (num_edges,), kind)
    # Local columns: owned rows first, in the order of the store, then halo rows by owner.
    with rows.columns_of(part, halo) as column_of, ThreadPoolExecutor(1) as beside:
        saved = beside.submit(writer.save, "halo", halo)

        def localised(window: Window) -> tuple[Array, int]:
            sources = file.read(window.low, window.high)
            columns = np.empty(len(sources), kind)
            return columns, localise(window.rows, sources, column_of, columns, boundary)

        pieces = windows(indptr, edges_per_thread())
        for columns, cut in in_order(localised, pieces, ahead=num_threads()):
            cut_edges += cut
            stream.append(columns)
        saved.result()
    writer.close("src")
    writer.save("halo_counts", counts)
    writer.facts |= {
        "num_halo": len(halo),
        "num_local_edges": num_edges,
        "num_interior": num_owned - int(boundary.sum()),
    }
    return cut_edges


def write_sends(rows: PartRows, writers: Writers, parts: Iterable[int]) -> None:
    """Write which rows these parts own and send, by receiver, in the order of its halo."""
    others = [writers[part] for part in range(rows.num_parts)]
    halos = [writer.load("halo") for writer in others]
    starts = [np.concatenate([[0], np.cumsum(writer.load("halo_counts"))]) for writer in others]

    def write(part: int) -> None:
        writer = writers[part]
        bounds = [(int(start[part]), int(start[part + 1])) for start in starts]
        counts = [high - low for low, high in bounds]
        stream = writer.stream("send_rows", (sum(counts),), np.int64)
        for halo, (low, high) in zip(halos, bounds, strict=True):
            for begin, end in ranges(high, _HALO_AT_ONCE, low) if low < high else ():
                stream.append(np.take(rows.local, read(halo, begin, end)))
        writer.close("send_rows")
        writer.save("send_counts", np.array(counts, np.int64))
        writer.save("rows", rows.owned(part), dtype=np.int64)

    for _ in in_order(write, parts, ahead=num_threads()):
        pass

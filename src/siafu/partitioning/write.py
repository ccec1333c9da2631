"""The parts folder: each part's edges in local columns, its halo, and its nodes' data.

Memory is O(N) and a piece: edges and features only pass through.
"""

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
    fingerprint_graph,
    graph_facts,
    index_dtype,
    make_in_steps,
)
from siafu.graph.columns import as_stored
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import in_order, num_threads
from siafu.partitioning import chunks
from siafu.partitioning.assign import check_num_parts
from siafu.partitioning.chunks import Window, per_thread, ranges, windows
from siafu.partitioning.quality import Quality, count_training
from siafu.partitioning.split import (
    PartRows,
    deal_entries,
    group_by_part,
    split_entries,
    split_offsets,
    split_rows,
)
from siafu.record import Progress, silent


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
    """Write the parts, step by step; `how` they came about is kept as facts."""
    progress, writer = progress or silent, partial.writer
    writers = [writer.child(f"part{part}", "part") for part in range(rows.num_parts)]
    facts = graph_facts(graph)
    fingerprint = _fingerprint(partial, graph, progress)
    for part, child in enumerate(writers):
        child.facts |= facts | {
            "part": part,
            "num_parts": rows.num_parts,
            "num_owned": len(rows.owned(part)),
            "graph_fingerprint": fingerprint,
        }
    write_edges(graph, rows, writers, partial, progress)
    if not partial.has("sends"):
        write_sends(rows, writers)
        for part, child in enumerate(writers):
            child.save("rows", rows.owned(part), dtype=np.int64)
        partial.end("sends")
    _write_nodes(graph, rows, writers, partial, progress)
    if not partial.has("whole"):
        writer.save("part_of", rows.part_of)
        graph.ids.save(writer)
        partial.end("whole")
    quality = _quality(partial, graph, rows, writers)
    writer.facts |= how | {
        "num_parts": rows.num_parts,
        "graph": facts | {"fingerprint": fingerprint},
        "quality": quality.to_facts(),
    }
    return quality


def _fingerprint(partial: Partial, graph: Graph, progress: Progress) -> str:
    if not partial.has("fingerprint"):
        progress("fingerprint", 0, None)
        partial.end("fingerprint", fingerprint=fingerprint_graph(graph))
    return str(partial.facts("fingerprint")["fingerprint"])


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


def _write_nodes(
    graph: Graph,
    rows: PartRows,
    writers: list[FolderWriter],
    partial: Partial,
    progress: Progress,
) -> None:
    """Write what has one row per node; each array is a step."""
    columns = _node_columns(graph)
    for done, (name, split, *arrays) in enumerate(columns):
        progress("nodes", done, len(columns))
        if not partial.has(f"nodes {name}"):
            split(rows, writers, name, *arrays)
            partial.end(f"nodes {name}")
    progress("nodes", len(columns), len(columns))


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


class _ScratchFile:
    """Source rows of one part's edges, waiting until the part's halo is known."""

    def __init__(self, path: Path, dtype: np.dtype[np.generic]) -> None:
        self.path, self._dtype = path, dtype

    def append(self, rows: Array) -> None:
        """Write rows after the others; opening each time bounds the open files."""
        with self.path.open("ab") as file:
            rows.tofile(file)

    def read(self, low: int, high: int) -> Array:
        """Return the entries low..high."""
        offset = low * self._dtype.itemsize
        return np.fromfile(self.path, self._dtype, high - low, offset=offset)


def write_edges(
    graph: Graph,
    rows: PartRows,
    writers: list[FolderWriter],
    partial: Partial,
    progress: Progress,
) -> None:
    """Write each part's CSR and halo; the edges are dealt out once, whatever the parts."""
    files = [
        _ScratchFile(partial.scratch / f"src{part}", graph.src.dtype)
        for part in range(rows.num_parts)
    ]
    if not partial.has("edges"):
        progress("edges", 0, None)
        split_offsets(rows, writers, "indptr", graph.indptr)
        for file in files:
            file.path.unlink(missing_ok=True)
        deal_entries(rows, graph.indptr, graph.src, files)
        partial.sync(*(file.path for file in files))
        partial.end("edges")
    for name, column in graph.edge_arrays():
        if name != "src" and not partial.has(f"edges {name}"):
            split_entries(rows, writers, name, graph.indptr, as_stored(name, column))
            partial.end(f"edges {name}")
    for part, (writer, file) in enumerate(zip(writers, files, strict=True)):
        if not partial.has(f"part {part}"):
            cut_edges = _write_part(rows, part, writer, file)
            partial.discard(file.path)
            partial.end(f"part {part}", cut_edges=cut_edges)
        progress("parts", part + 1, rows.num_parts)


def _write_part(rows: PartRows, part: int, writer: FolderWriter, file: _ScratchFile) -> int:
    """Write the edges of a part in local columns, and its halo; return how many edges are cut."""
    indptr = writer.load("indptr")
    num_owned, num_edges = len(indptr) - 1, int(indptr[-1])
    halo, counts = _find_halo(rows, part, num_edges, file)
    # Local columns: owned rows first, in the order of the store, then halo rows by owner.
    column_of = rows.local.astype(index_dtype(num_owned + len(halo)))
    column_of[halo] = np.arange(num_owned, num_owned + len(halo), dtype=column_of.dtype)
    boundary, cut_edges = np.zeros(num_owned, bool), 0
    stream = writer.stream("src", (num_edges,), column_of.dtype)

    def localise(window: Window) -> tuple[Array, int]:
        columns = np.take(column_of, file.read(window.low, window.high))
        return columns, _mark_boundary(window.rows, columns, boundary)

    pieces = windows(indptr, per_thread(chunks.EDGES_AT_ONCE))
    for columns, cut in in_order(localise, pieces, ahead=num_threads()):
        cut_edges += cut
        stream.append(columns)
    writer.close("src")
    writer.save("halo", halo)
    writer.save("halo_counts", counts)
    writer.facts |= {
        "num_halo": len(halo),
        "num_local_edges": num_edges,
        "num_interior": num_owned - int(boundary.sum()),
    }
    return cut_edges


def _find_halo(
    rows: PartRows, part: int, num_edges: int, file: _ScratchFile
) -> tuple[Array, Array]:
    """Return the halo rows by owner, ascending within each, and how many each owner has."""
    is_read = np.zeros(len(rows.part_of), bool)

    def mark(piece: tuple[int, int]) -> None:
        _mark(file.read(*piece), is_read)

    for _ in in_order(
        mark, ranges(num_edges, per_thread(chunks.EDGES_AT_ONCE)), ahead=num_threads()
    ):
        pass
    is_read[rows.owned(part)] = False
    halo = np.flatnonzero(is_read)
    order, bounds = group_by_part(rows.part_of[halo], rows.num_parts)
    return halo[order], np.diff(bounds)


@strict_kernel
def _mark(rows: Array, marks: Array) -> None:
    for row in rows:
        marks[row] = True


@strict_kernel
def _mark_boundary(rows: tuple[Array, int, int], columns: Array, boundary: Array) -> int:
    """Mark the owned rows that read a halo row; return how many edges do."""
    offsets, first, low = rows
    at, cut = 0, 0
    for position in range(len(columns)):
        while offsets[at + 1] <= low + position:
            at += 1
        if columns[position] >= len(boundary):
            boundary[first + at] = True
            cut += 1
    return cut


def write_sends(rows: PartRows, writers: list[FolderWriter]) -> None:
    """Write which owned rows each part sends, by receiver, in the order of its halo."""
    halos = [writer.load("halo") for writer in writers]
    starts = [np.concatenate([[0], np.cumsum(writer.load("halo_counts"))]) for writer in writers]
    for part, writer in enumerate(writers):
        bounds = [(int(start[part]), int(start[part + 1])) for start in starts]
        counts = [high - low for low, high in bounds]
        stream = writer.stream("send_rows", (sum(counts),), np.int64)
        for halo, (low, high) in zip(halos, bounds, strict=True):
            for begin, end in ranges(high - low, chunks.EDGES_AT_ONCE):
                stream.append(rows.local[halo[low + begin : low + end]])
        writer.close("send_rows")
        writer.save("send_counts", np.array(counts, np.int64))

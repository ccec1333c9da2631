"""Each part's edges in local columns, the halo rows they read, and who sends which rows.

Local columns: 0..n-1 are the part's owned rows, n.. its halo rows by owner, ascending in each.
"""

from pathlib import Path

import numpy as np

from siafu.graph import Array, FolderWriter, Graph, Partial, index_dtype
from siafu.graph.columns import as_stored
from siafu.ops.numba_jit import strict_kernel
from siafu.partition import chunks
from siafu.partition.chunks import Progress, ranges, windows
from siafu.partition.grouping import group_by_part
from siafu.partition.split import PartRows, deal_entries, split_entries, split_offsets


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
    column_of = rows.local.astype(index_dtype(num_owned + len(halo)))
    column_of[halo] = np.arange(num_owned, num_owned + len(halo), dtype=column_of.dtype)
    boundary, cut_edges = np.zeros(num_owned, bool), 0
    stream = writer.stream("src", (num_edges,), column_of.dtype)
    for window in windows(indptr, chunks.EDGES_AT_ONCE):
        columns = column_of[file.read(window.low, window.high)]
        cut_edges += _mark_boundary(window.rows, columns, boundary)
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
    for low, high in ranges(num_edges, chunks.EDGES_AT_ONCE):
        is_read[file.read(low, high)] = True
    is_read[rows.owned(part)] = False
    halo = np.flatnonzero(is_read)
    order, bounds = group_by_part(rows.part_of[halo], rows.num_parts)
    return halo[order], np.diff(bounds)


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

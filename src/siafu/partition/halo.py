"""Each part's edges in local columns, the halo rows they read, and who sends which rows.

Local columns: 0..n-1 are the part's owned rows, n.. its halo rows by owner, ascending in each.
"""

import shutil
from pathlib import Path

import numpy as np

from siafu.graph import Array, FolderWriter, Graph, index_dtype
from siafu.ops.numba_jit import strict_kernel
from siafu.partition.chunks import EDGES_AT_ONCE, Progress, ranges
from siafu.partition.grouping import group_by_part
from siafu.partition.split import PartRows, deal_entries, split_entries, split_offsets


class _ScratchFile:
    """Source rows of one part's edges, waiting until the part's halo is known."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Array) -> None:
        """Write rows after the others; opening each time bounds the open files."""
        with self.path.open("ab") as file:
            rows.tofile(file)

    def read(self, low: int, high: int, dtype: np.dtype[np.generic]) -> Array:
        """Return the entries low..high."""
        return np.fromfile(self.path, dtype, high - low, offset=low * dtype.itemsize)


def write_edges(
    graph: Graph,
    rows: PartRows,
    writers: list[FolderWriter],
    scratch: Path,
    progress: Progress,
) -> None:
    """Write each part's CSR and halo; the edges are dealt out once, whatever the parts."""
    scratch.mkdir()
    files = [_ScratchFile(scratch / f"src{part}") for part in range(rows.num_parts)]
    progress("edges", 0, None)
    split_offsets(rows, writers, "indptr", graph.indptr)
    deal_entries(rows, np.array(graph.indptr), graph.src, files)
    for name, column in graph.edge_arrays():
        if name != "src":
            split_entries(rows, writers, name, graph.indptr, column)
    for part, (writer, file) in enumerate(zip(writers, files, strict=True)):
        _write_part(rows, part, writer, file, graph.src.dtype)
        file.path.unlink()
        progress("parts", part + 1, rows.num_parts)
    shutil.rmtree(scratch)


def _write_part(
    rows: PartRows, part: int, writer: FolderWriter, file: _ScratchFile, dtype: np.dtype[np.generic]
) -> None:
    indptr = np.load(writer.path / "indptr.npy")
    num_owned, num_edges = len(indptr) - 1, int(indptr[-1])
    halo, counts = _find_halo(rows, part, num_edges, file, dtype)
    column_of = rows.local.astype(index_dtype(num_owned + len(halo)))
    column_of[halo] = np.arange(num_owned, num_owned + len(halo))
    boundary = np.zeros(num_owned, bool)
    stream = writer.stream("src", (num_edges,), column_of.dtype)
    for low, high in ranges(num_edges, EDGES_AT_ONCE):
        columns = column_of[file.read(low, high, dtype)]
        _mark_boundary(indptr, columns, low, boundary)
        stream.append(columns)
    writer.close("src")
    writer.save("halo", halo)
    writer.save("halo_counts", counts)
    writer.facts |= {
        "num_halo": len(halo),
        "num_local_edges": num_edges,
        "num_interior": num_owned - int(boundary.sum()),
    }


def _find_halo(
    rows: PartRows, part: int, num_edges: int, file: _ScratchFile, dtype: np.dtype[np.generic]
) -> tuple[Array, Array]:
    """Return the halo rows by owner, ascending within each, and how many each owner has."""
    is_read = np.zeros(len(rows.part_of), bool)
    for low, high in ranges(num_edges, EDGES_AT_ONCE):
        is_read[file.read(low, high, dtype)] = True
    is_read[rows.owned(part)] = False
    halo = np.flatnonzero(is_read)
    order, bounds = group_by_part(rows.part_of[halo], rows.num_parts)
    return halo[order], np.diff(bounds)


@strict_kernel
def _mark_boundary(indptr: Array, columns: Array, low: int, boundary: Array) -> None:
    """Mark the owned rows that read a halo row."""
    num_owned = len(boundary)
    row = np.searchsorted(indptr, low, side="right") - 1
    for position in range(len(columns)):
        while indptr[row + 1] <= low + position:
            row += 1
        if columns[position] >= num_owned:
            boundary[row] = True


def write_sends(rows: PartRows, writers: list[FolderWriter]) -> None:
    """Write which owned rows each part sends, by receiver, in the order of its halo."""
    halos = [np.load(writer.path / "halo.npy", mmap_mode="r") for writer in writers]
    starts = [
        np.concatenate([[0], np.cumsum(np.load(writer.path / "halo_counts.npy"))])
        for writer in writers
    ]
    for part, writer in enumerate(writers):
        pieces = [
            rows.local[halo[start[part] : start[part + 1]]]
            for halo, start in zip(halos, starts, strict=True)
        ]
        writer.save("send_rows", np.concatenate(pieces))
        writer.save("send_counts", np.array([len(piece) for piece in pieces], np.int64))

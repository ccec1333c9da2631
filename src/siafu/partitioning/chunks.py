"""Walking a memory-mapped graph piece by piece, so that only the piece is resident."""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from siafu.errors import DataError
from siafu.files import open_regular
from siafu.graph import Array, Graph, forget
from siafu.ops.threads import CHUNKS_A_THREAD, num_threads, run_chunks

EDGES_AT_ONCE = 1 << 22
BYTES_AT_ONCE = 1 << 26
_BYTES_A_READ = 1 << 21
_FEWEST_PIECES = 32
"""Pieces of a graph at least: what is decided in one is seen by the next."""
_DECIDED_AT_ONCE = 4
"""Times the edges of a piece that is read alone, where threads decide: they meet less often."""


def ranges(total: int, step: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (low, high) over start..total; one empty range when there is nothing at all."""
    for low in range(start, max(total, 1), step):
        yield low, min(low + step, total)


def evenly(total: int, count: int) -> list[int]:
    """Return bounds of so many runs of rows, or of one each where there are fewer."""
    count = max(1, min(total, count))
    return [total * at // count for at in range(count + 1)]


def rows_at_once(array: Array) -> int:
    """Return how many rows of the array make one piece."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    return max(1, BYTES_AT_ONCE // max(1, row_bytes))


def per_thread(step: int) -> int:
    """Return the size of a piece of which each thread has one, with another in waiting."""
    return max(1, step // (2 * num_threads() if num_threads() > 1 else 1))


def read(array: Array, low: int, high: int, stride: int = 1) -> Array:
    """Return a copy of the rows low..high, leaving none of the mapped file resident."""
    if stride == 1 and isinstance(array, np.memmap) and _is_whole_file(array):
        # Read, not copied from the map: threads that fault pages in and drop them wait in turn.
        low, high = min(low, len(array)), min(high, len(array))
        piece = np.empty((max(0, high - low), *array.shape[1:]), array.dtype)
        _fill(piece.reshape(-1).view(np.uint8), array, low)
        return piece
    piece = np.array(array[low:high:stride])
    forget(array)
    return piece


def _fill(piece: Array, array: np.memmap[Any, Any], row: int) -> None:
    """Read bytes from a row on, large pieces on several threads: most of it is new pages."""
    path = Path(str(array.filename))
    start = array.offset + row * array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=int))

    def fill(low: int, high: int) -> None:
        with open_regular(path, follow=False) as file:
            file.seek(start + low)
            found = file.readinto(piece[low:high].data)  # type: ignore[attr-defined]
        if found != high - low:
            raise DataError(
                "A file of the graph has been cut short since it was opened.",
                seen=f"{path}: {low + found} of {len(piece)} bytes from row {row} on",
                fix="leave the graph as it is until the command ends; make it again",
            )

    count = min(num_threads(), 1 + len(piece) // _BYTES_A_READ)
    run_chunks(fill, evenly(len(piece), count))


def _is_whole_file(array: np.memmap[Any, Any]) -> bool:
    """Return whether an array is what a file holds, and no slice of it, changed or not."""
    is_whole = isinstance(array.base, mmap.mmap) and array.flags.c_contiguous
    return is_whole and array.mode == "r" and array.filename is not None and array.size > 0


def edges_per_thread() -> int:
    """Return the size of a thread's piece of edges: smaller ones cost Python more than threads."""
    return max(per_thread(EDGES_AT_ONCE), EDGES_AT_ONCE // 8)


def ends_at_once(total: int, *, decided: bool) -> int:
    """Return how many of all edge ends make a piece, of rows that are `decided` together or not."""
    most = EDGES_AT_ONCE * (_DECIDED_AT_ONCE if decided else 1)
    return min(most, total // _FEWEST_PIECES + 1)


Piece = TypeVar("Piece")


def several_at_once(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield up to four pieces together, no more than threads: files are given more at a time."""
    together = list[Piece]()
    for one in pieces:
        together.append(one)
        if len(together) == min(4, num_threads()):
            yield together
            together = []
    if together:
        yield together


def append_each(files: Sequence[IO[bytes]], dealt: Sequence[tuple[Array, Array]]) -> None:
    """Append rows[bounds[k] : bounds[k + 1]] of each piece to the k-th file, files side by side.

    A write for all pieces, since each waits for a lock of the file: 4 KB at a time took twice as
    long on 16 threads as all the rest.
    """

    def append(first: int, beyond: int) -> None:
        for k in range(first, beyond):
            mine = joined([rows[bounds[k] : bounds[k + 1]] for bounds, rows in dealt])
            if mine.size:
                files[k].write(mine.data)

    run_chunks(append, evenly(len(files), CHUNKS_A_THREAD * num_threads()))


def joined(pieces: Sequence[Array]) -> Array:
    """Return rows one after another; a single piece as it is."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class Window:
    """The entries low..high of an array in CSR order, and the rows they belong to.

    Row first_row + i has the entries offsets[i]..offsets[i + 1], of which those below `low` came
    with an earlier window and those from `high` on come with a later one. Every row, also one
    without entries, ends in exactly one window.
    """

    low: int
    high: int
    first_row: int
    offsets: Array

    @property
    def rows(self) -> tuple[Array, int, int]:
        """What kernels take of it: offsets, the row they begin with, and the first entry."""
        return self.offsets, self.first_row, self.low


def windows(offsets: Array, step: int, start: int = 0, stop: int | None = None) -> Iterator[Window]:
    """Yield windows over all entries, `step` at a time, or over those from `start` to `stop`."""
    for low, high in ranges(int(offsets[-1]) if stop is None else stop, step, start):
        first = 0 if low == 0 else int(np.searchsorted(offsets, low, side="right")) - 1
        beyond = int(np.searchsorted(offsets, high, side="right"))
        yield Window(low, high, first, read(offsets, first, beyond + 1))


def edge_pieces(graph: Graph, start: int = 0) -> Iterator[tuple[Window, Array]]:
    """Yield the edges in order, from the edge `start` on, as windows and their sources."""
    for window in windows(graph.indptr, EDGES_AT_ONCE, start):
        yield window, read(graph.src, window.low, window.high)

"""Walking a memory-mapped graph piece by piece, so that only the piece is resident."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from siafu.graph import Array, Graph, forget
from siafu.ops.threads import num_threads

EDGES_AT_ONCE = 1 << 22
BYTES_AT_ONCE = 1 << 26


def ranges(total: int, step: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (low, high) over start..total; one empty range when there is nothing at all."""
    for low in range(start, max(total, 1), step):
        yield low, min(low + step, total)


def rows_at_once(array: Array) -> int:
    """Return how many rows of the array make one piece."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    return max(1, BYTES_AT_ONCE // max(1, row_bytes))


def per_thread(step: int) -> int:
    """Return the size of a piece of which each thread has one, with another in waiting."""
    return max(1, step // (2 * num_threads() if num_threads() > 1 else 1))


def read(array: Array, low: int, high: int) -> Array:
    """Return a copy of the rows low..high, leaving none of the mapped file resident."""
    piece = np.array(array[low:high])
    forget(array)
    return piece


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


def windows(offsets: Array, step: int, start: int = 0) -> Iterator[Window]:
    """Yield windows over all entries, `step` at a time, from the entry `start` on."""
    for low, high in ranges(int(offsets[-1]), step, start):
        first = 0 if low == 0 else int(np.searchsorted(offsets, low, side="right")) - 1
        beyond = int(np.searchsorted(offsets, high, side="right"))
        yield Window(low, high, first, read(offsets, first, beyond + 1))


def edge_pieces(graph: Graph, start: int = 0) -> Iterator[tuple[Window, Array]]:
    """Yield the edges in order, from the edge `start` on, as windows and their sources."""
    for window in windows(graph.indptr, EDGES_AT_ONCE, start):
        yield window, read(graph.src, window.low, window.high)

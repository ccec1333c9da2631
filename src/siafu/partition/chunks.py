"""Walking a memory-mapped graph piece by piece, so that only the piece is resident."""

import mmap
from collections.abc import Callable, Iterator

import numpy as np

from siafu.graph import Array

EDGES_AT_ONCE = 1 << 22
BYTES_AT_ONCE = 1 << 26

Progress = Callable[[str, int, int | None], None]
"""Told (phase, done, total); the total is None where it is not known."""


def ranges(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield (low, high) over 0..total; one empty range when there is nothing."""
    for low in range(0, max(total, 1), step):
        yield low, min(low + step, total)


def rows_at_once(array: Array) -> int:
    """Return how many rows of the array make one piece."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    return max(1, BYTES_AT_ONCE // max(1, row_bytes))


def read(array: Array, low: int, high: int) -> Array:
    """Return a copy of the rows low..high, leaving none of the mapped file resident."""
    piece = np.array(array[low:high])
    forget(array)
    return piece


def forget(array: Array) -> None:
    """Let go of the pages of a memory-mapped array; they are read again when needed."""
    # A copy-on-write map ("c") would lose its changes.
    if isinstance(array, np.memmap) and array.mode in ("r", "r+"):
        mapping = getattr(array, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def quiet(phase: str, done: int, total: int | None) -> None:
    """Say nothing: the progress of a caller that did not ask."""

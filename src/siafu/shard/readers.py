"""Rows by number, from memory or from a file that may be larger than memory."""

import math
import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Array, forget
from siafu.ops import gather_rows

_ROWS_AT_ONCE = 1 << 8
"""Rows of a file read before its pages are let go of: 16 MiB per thread, since a fault maps 16
pages around the one it is for where the system has them in its cache."""
_READERS = 4
"""Threads that wait for the disk at the same time."""


class RowReader(Protocol):
    """Rows of one array, by number."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and the shape of one."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        ...

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows, in this order."""
        ...


class HeldRows:
    """Rows in memory."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.shape, self.dtype = tuple(rows.shape), rows.dtype

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows."""
        if self.rows.is_cuda and self.rows.dim() > 1:
            return gather_rows(self.rows, rows_R)
        return self.rows.index_select(0, rows_R)

    def slice(self, low: int, high: int) -> Tensor:
        """Return the rows from `low` to `high`."""
        return self.rows[low:high]

    def write(self, low: int, rows: Tensor) -> None:
        """Put rows at `low` and after it."""
        self.rows[low : low + len(rows)] = rows

    @property
    def nbytes(self) -> int:
        """What they take."""
        return self.rows.nbytes

    def to(self, device: torch.device) -> "HeldRows":
        """Return the same rows on a device."""
        return self if self.rows.device == device else HeldRows(self.rows.to(device))


class FileRows:
    """Rows of a memory-mapped file, read in the order they lie there, by several threads.

    Pages are let go of after each piece, so what is resident does not grow with the file.
    """

    def __init__(self, array: Array, dtype: torch.dtype | None = None) -> None:
        self.array, self.shape = array, array.shape
        self.dtype = dtype or torch.from_numpy(np.empty(0, array.dtype)).dtype
        mapping = getattr(array, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows."""
        sorted_R, place_R = rows_R.sort()
        rows = sorted_R.numpy()
        found = np.empty((len(rows), *self.shape[1:]), self.array.dtype)
        pieces = [slice(low, low + _ROWS_AT_ONCE) for low in range(0, len(rows), _ROWS_AT_ONCE)]
        list(_readers(os.getpid()).map(lambda piece: self._take(rows, piece, found), pieces))
        out = torch.empty(found.shape, dtype=self.dtype)
        out[place_R] = torch.from_numpy(found).to(self.dtype)
        return out

    def _take(self, rows: Array, piece: slice, found: Array) -> None:
        np.take(self.array, rows[piece], axis=0, out=found[piece], mode="clip")
        forget(self.array)


class ScratchRows(FileRows):
    """Rows on disk that are written piece by piece and gone with the last that reads them."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        kind = np.dtype(str(dtype).removeprefix("torch."))
        with tempfile.TemporaryFile(prefix="siafu-rows-") as file:
            file.truncate(max(1, math.prod(shape)) * kind.itemsize)
            super().__init__(np.memmap(file, kind, "r+", shape=shape))

    def slice(self, low: int, high: int) -> Tensor:
        """Return the rows from `low` to `high`."""
        found = torch.from_numpy(np.array(self.array[low:high]))
        forget(self.array)
        return found

    def write(self, low: int, rows: Tensor) -> None:
        """Put rows at `low` and after it."""
        self.array[low : low + len(rows)] = rows.cpu().numpy()
        forget(self.array)


WrittenRows = HeldRows | ScratchRows


class PickedRows:
    """Some of N rows, found by their numbers; only these may be read."""

    def __init__(self, rows_R: Tensor, held: WrittenRows, num_rows: int) -> None:
        """`rows_R` rise; `held` has a row for each."""
        self.rows_R, self.held = rows_R, held
        self.shape, self.dtype = (num_rows, *held.shape[1:]), held.dtype

    def read(self, rows: Tensor) -> Tensor:
        """Return these rows."""
        place = torch.searchsorted(self.rows_R.to(rows.device), rows)
        if isinstance(self.held, HeldRows):
            place = place.to(self.held.rows.device)
        return self.held.read(place)

    def to(self, device: torch.device) -> "PickedRows":
        """Return the same rows on a device, unless they are on disk."""
        held = self.held.to(device) if isinstance(self.held, HeldRows) else self.held
        return PickedRows(self.rows_R, held, self.shape[0])


def new_rows(shape: tuple[int, ...], dtype: torch.dtype, *, on_disk: bool) -> WrittenRows:
    """Return rows to be written, in memory or on disk."""
    return ScratchRows(shape, dtype) if on_disk else HeldRows(torch.empty(shape, dtype=dtype))


@cache
def _readers(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process, named since a forked child has none of them."""
    return ThreadPoolExecutor(_READERS, thread_name_prefix="siafu-read")

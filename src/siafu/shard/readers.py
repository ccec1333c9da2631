"""Rows by number, from memory or from a file that may be larger than memory."""

import math
import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Array, forget
from siafu.memory import available_bytes
from siafu.ops import gather_rows
from siafu.ops.rows.files import read_file_rows

_CACHED_SHARE = 0.5
"""Of the memory that may be taken: files beyond it are read past the page cache."""


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
    """Rows of a file, read in the order they lie there, many at once; nothing stays resident."""

    def __init__(
        self,
        array: Array,
        dtype: torch.dtype | None = None,
        *,
        fd: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """`array` maps the file; `fd` is that, where it has no name to open it by.

        `memory_bytes` is what this process may hold; None takes what is free.
        """
        self.array, self.shape = array, array.shape
        self.dtype = dtype or torch.from_numpy(np.empty(0, array.dtype)).dtype
        assert isinstance(array, np.memmap), "of a file"
        assert array.flags.c_contiguous, "rows as they lie there"
        whole = array
        while isinstance(whole.base, np.memmap):  # of a part of it, or another type of its numbers
            whole = whole.base
        self._first_byte: int = whole.offset + array.ctypes.data - whole.ctypes.data
        opened = _opened(array, memory_bytes) if fd is None else (fd, False)
        self._fd: int = opened[0]
        self._direct: bool = opened[1]
        weakref.finalize(self, os.close, self._fd)

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows."""
        sorted_R, place_R = rows_R.sort()
        found = np.empty((len(rows_R), *self.shape[1:]), self.array.dtype)
        rows = sorted_R.numpy()
        read_file_rows(self._fd, self._first_byte, rows, found, direct=self._direct)
        out = torch.empty(found.shape, dtype=self.dtype)
        out[place_R] = torch.from_numpy(found).to(self.dtype)
        return out


def rows_of_file(
    array: Array, dtype: torch.dtype | None = None, memory_bytes: int | None = None
) -> RowReader:
    """Return the rows of a file; through its map where it has no name to be opened by."""
    if array.size and getattr(array, "filename", None) is not None:
        return FileRows(array, dtype, memory_bytes=memory_bytes)
    rows = torch.from_numpy(array if array.flags.writeable else np.array(array))
    return HeldRows(rows if dtype is None else rows.to(dtype))


def _opened(array: "np.memmap[Any, Any]", memory_bytes: int | None) -> tuple[int, bool]:
    """Return the file of a map, and whether reads pass by the page cache: not everywhere they can.

    What fits into memory is worth keeping there; of more, pages would push each other out.
    """
    name = str(array.filename)
    if array.nbytes > _CACHED_SHARE * available_bytes(memory_bytes) and hasattr(os, "O_DIRECT"):
        with suppress(OSError):
            return os.open(name, os.O_RDONLY | os.O_DIRECT), True
    return os.open(name, os.O_RDONLY), False


class ScratchRows(FileRows):
    """Rows on disk, written piece by piece: gone with the last that reads them, unless named."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, path: Path | None = None
    ) -> None:
        """`path` is a file that stays; one that is there has the rows already."""
        kind = np.dtype(str(dtype).removeprefix("torch."))
        with _scratch_file(path) as file:
            file.truncate(max(1, math.prod(shape)) * kind.itemsize)
            array = np.memmap(file, kind, "r+", shape=shape)
            super().__init__(array, fd=os.dup(file.fileno()))

    def slice(self, low: int, high: int) -> Tensor:
        """Return the rows from `low` to `high`."""
        found = torch.from_numpy(np.array(self.array[low:high]))
        forget(self.array)
        return found

    def write(self, low: int, rows: Tensor) -> None:
        """Put rows at `low` and after it."""
        self.array[low : low + len(rows)] = rows.to(self.dtype).cpu().numpy()
        forget(self.array)

    def sync(self) -> None:
        """Bring what was written to the disk."""
        os.fsync(self._fd)


def _scratch_file(path: Path | None) -> IO[bytes]:
    if path is None:
        return cast("IO[bytes]", tempfile.TemporaryFile(prefix="siafu-rows-"))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "r+b")


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

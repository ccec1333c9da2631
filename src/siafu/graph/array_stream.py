"""One array on its way into a `.npy` file, row by row, and one mapped from it."""

import hashlib
import math
import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy_format

from siafu.graph.manifest import ArrayEntry, Dtype, damaged

CHUNK_BYTES = 1 << 24
_HASHED_ALONE = 1 << 20
"""Bytes from which the checksum is taken by a thread beside the one that writes."""

Array = np.ndarray[Any, np.dtype[Any]]


class ArrayStream:
    """Appends rows to one `.npy` file, hashing as it writes.

    A shape that begins with -1 takes as many rows as come. With `kept_rows` the file is there
    already: so many of its rows stay and what follows them goes.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], *, kept_rows: int = 0
    ) -> None:
        # Little-endian, as all that is read is expected to be.
        self.shape, self.dtype = shape, np.dtype(dtype).newbyteorder("<")
        self.written_rows = kept_rows
        self._path, self._hash = path, hashlib.sha256()
        self._file: IO[bytes] = path.open("r+b" if kept_rows else "wb")
        self._write_header()
        if kept_rows:
            self._keep(kept_rows)

    def _write_header(self) -> None:
        # numpy pads headers so that the number of rows can be written again in the same place.
        header = {"descr": npy_format.dtype_to_descr(self.dtype), "fortran_order": False}
        self._file.seek(0)
        npy_format.write_array_header_1_0(
            self._file, header | {"shape": (max(0, self.shape[0]), *self.shape[1:])}
        )

    def _keep(self, rows: int) -> None:
        left = rows * self.dtype.itemsize * math.prod(self.shape[1:])
        while left:
            piece = self._file.read(min(left, CHUNK_BYTES))
            if not piece:
                self._file.close()
                raise damaged(self._path, f"shorter than the {rows} rows that were written")
            self._hash.update(piece)
            left -= len(piece)
        self._file.truncate()

    def append(self, rows: Array) -> None:
        """Write `rows` after those already written; their dtype is converted if need be."""
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        assert rows.shape[1:] == self.shape[1:], f"rows of {self._path.name} changed shape"
        view = rows.reshape(-1).view(np.uint8)
        if view.size < _HASHED_ALONE:
            self._hash.update(view.data)
            self._file.write(view.data)
        else:  # neither holds the lock of Python's
            hashing = threading.Thread(target=self._hash.update, args=(view.data,))
            hashing.start()
            try:
                for start in range(0, view.size, CHUNK_BYTES):
                    self._file.write(view[start : start + CHUNK_BYTES].data)
            finally:
                hashing.join()
        self.written_rows += len(rows)

    def flush(self) -> None:
        """Bring what was written to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> ArrayEntry:
        """Flush to disk and return the manifest entry; the file is closed whatever happens."""
        try:
            return self._complete()
        except BaseException:
            self.abandon()
            raise

    def _complete(self) -> ArrayEntry:
        if self.shape[0] < 0:
            self.shape = (self.written_rows, *self.shape[1:])
            self._write_header()
        assert self.written_rows == self.shape[0], (
            f"{self._path.name}: {self.written_rows} rows written, {self.shape[0]} announced"
        )
        self.flush()
        self._file.close()
        dtype = cast(Dtype, self.dtype.str)
        return ArrayEntry(shape=self.shape, dtype=dtype, sha256=self._hash.hexdigest())

    def abandon(self) -> None:
        """Close the file without checking that it is complete."""
        with suppress(OSError):  # what is left of it does not fit on a full disk
            self._file.close()


def forget(array: Array, *, unchanged: bool = False) -> None:
    """Let go of the pages of a memory-mapped array; they are read again when needed.

    A copy-on-write map ("c") would lose its changes: it is left alone unless there are none.
    """
    modes = ("r", "r+", "c") if unchanged else ("r", "r+")
    if isinstance(array, np.memmap) and array.mode in modes:
        mapping = getattr(array, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

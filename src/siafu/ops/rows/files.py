"""Rows of a file by number: rows that lie together in one read, many reads under way at once.

A page fault of a map is one small read that its thread waits for; the reads of many threads are a
queue that a disk works on in the order it likes. Reads are compiled, so that threads do not wait
for each other's Python. Threads are for waiting: rows that the kernel has in memory are read
without any, unless there are many.

Shapes: R rows asked for, rising; N bytes.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.ops.numba_jit import callee, strict_kernel
from siafu.ops.threads import num_threads

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""A read that fails where the disk would have to be waited for; 0 where there is none."""

try:
    from numba import types
except ImportError:
    _pread: Any = None
else:
    _pread = types.ExternalFunction(
        "pread", types.intp(types.int32, types.voidptr, types.uintp, types.int64)
    )
    _preadv2: Any = types.ExternalFunction(
        "preadv2",
        types.intp(types.int32, types.voidptr, types.int32, types.int64, types.int32),
    )

Array = NDArray[Any]

PAGE = 4096
_GAP = PAGE
"""Bytes between rows that are read rather than skipped: less than another call costs."""
_RUN_BYTES = 1 << 17
"""Of one read, or of one row."""
_THREADS = 64
"""Reads under way at once."""
_RUNS_A_THREAD = 8
_RUNS_HERE = 1 << 12
"""Runs in memory that are read by the caller: as long as threads take to begin and to end. One that
has a core to itself reads all of them."""


def read_file_rows(fd: int, first_byte: int, rows_R: Array, out: Array, *, direct: bool) -> None:
    """Write rows of a file, whose first begins at `first_byte`, to `out`; `rows_R` rise.

    `direct`: the file was opened for reads past the page cache, which are of whole pages. A file
    that ends before its rows do is an OSError.
    """
    if not len(rows_R):
        return
    row_bytes = out[:1].nbytes
    out_N, bounds = out.reshape(-1).view(np.uint8), runs_of(rows_R, row_bytes)
    count = len(bounds) - 1
    page = PAGE if direct else 1
    read: Callable[..., int] = _read_runs if _pread is not None else read_runs_reference

    def work(lo: int, hi: int, flags: int = 0) -> int:
        buffer_N = _aligned(_RUN_BYTES + _GAP + row_bytes + 2 * PAGE)
        where = np.int32(fd), first_byte, row_bytes, page, np.int32(flags)
        return read(where, rows_R, bounds, (lo, hi), buffer_N, out_N)

    is_few = count <= _RUNS_HERE or num_threads() == 1
    is_here = is_few and bool(_NOWAIT) and _pread is not None and not direct
    begin = work(0, count, _NOWAIT) if is_here else 0
    pieces = min(_THREADS, -(-(count - begin) // _RUNS_A_THREAD))
    cuts = np.linspace(begin, count, pieces + 1).astype(int).tolist()
    if pieces == 1:
        ends = [work(begin, count)]
    else:
        ends = list(_readers(os.getpid()).map(work, cuts, cuts[1:])) if pieces else []
    if ends != cuts[1:]:
        raise OSError(f"a file of rows ended early, or a read failed (row {int(rows_R[-1])})")


def runs_of(rows_R: Array, row_bytes: int) -> Array:
    """Return where runs of rows begin that are read at once, and the end of the last."""
    start_R = rows_R.astype(np.int64) * row_bytes
    is_far = np.diff(start_R) > row_bytes + _GAP
    run_R = np.concatenate([[0], np.cumsum(is_far)])
    begins = np.concatenate([[0], np.flatnonzero(is_far) + 1])
    # A run that is too long goes on in another.
    part_R = (start_R - start_R[begins][run_R]) // _RUN_BYTES
    is_new = is_far | (np.diff(part_R) != 0)
    return np.concatenate([[0], np.flatnonzero(is_new) + 1, [len(rows_R)]]).astype(np.int64)


def read_runs_reference(
    where: tuple[Any, int, int, int, Any],
    rows: Array,
    bounds: Array,
    span: tuple[int, int],
    buffer: Array,
    out: Array,
) -> int:
    """The definition: read a span of runs and return its end, or the run that could not be read.

    `where`: the file, its first row's first byte, bytes of a row, of what a read is made, and how
    it is read: by now as reads are.
    """
    fd, first_byte, row_bytes, page, _ = where
    for run in range(span[0], span[1]):
        low, high = int(bounds[run]), int(bounds[run + 1])
        begin = first_byte + int(rows[low]) * row_bytes
        end = first_byte + (int(rows[high - 1]) + 1) * row_bytes
        found = os.pread(fd, end - begin, begin) if page == 1 else b""
        if page > 1:
            aligned = begin // page * page
            view = buffer.data[: -(-(end - aligned) // page) * page]
            got = os.preadv(fd, [view], aligned)
            found = bytes(view[begin - aligned : min(got, end - aligned)])
        if len(found) < end - begin:
            return run
        table = np.frombuffer(found, np.uint8).reshape(-1, row_bytes)
        picked = table[rows[low:high] - rows[low]]
        out[low * row_bytes : high * row_bytes] = picked.reshape(-1)
    return span[1]


@callee
def _read_at(fd: Any, buffer: Array, size: Any, at: Any, flags: Any, vector: Array) -> Any:
    """Return how many bytes from `at` on came into the buffer."""
    if _NOWAIT == 0:
        return _pread(fd, buffer.ctypes, size, at)
    if flags == 0:
        return _pread(fd, buffer.ctypes, size, at)
    vector[0], vector[1] = buffer.ctypes.data, size
    return _preadv2(fd, vector.ctypes, 1, at, flags)


@strict_kernel
def _read_runs(
    where: tuple[Any, int, int, int, Any],
    rows: Array,
    bounds: Array,
    span: tuple[int, int],
    buffer: Array,
    out: Array,
) -> int:
    fd, first_byte, row_bytes, page, flags = where
    vector = np.empty(2, np.uintp)
    for run in range(span[0], span[1]):
        low, high = bounds[run], bounds[run + 1]
        begin = first_byte + rows[low] * row_bytes
        end = first_byte + (rows[high - 1] + 1) * row_bytes
        aligned = begin // page * page
        wanted, got = -(-(end - aligned) // page) * page, 0
        while got < end - aligned:
            more = _read_at(fd, buffer[got:], wanted - got, aligned + got, flags, vector)
            if more <= 0:
                return run
            got += more
        for row in range(low, high):
            source = begin - aligned + (rows[row] - rows[low]) * row_bytes
            target = row * row_bytes
            for byte in range(row_bytes):
                out[target + byte] = buffer[source + byte]
    return span[1]


def _aligned(size: int) -> Array:
    """Return bytes that begin with a page."""
    block = np.empty(size + PAGE, np.uint8)
    start = -block.ctypes.data % PAGE
    return block[start : start + size]


@cache
def _readers(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process, named since a forked child has none of them."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="siafu-read")

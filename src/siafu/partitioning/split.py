"""Dealing a graph's columns out to the parts in one pass, a piece at a time.

Rows or edges are sorted by part by one counting sort, which keeps their order within each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from siafu.graph import Array, FolderWriter, index_dtype
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import in_order, num_threads, run_chunks
from siafu.partitioning import chunks
from siafu.partitioning.chunks import (
    Window,
    joined,
    per_thread,
    ranges,
    read,
    rows_at_once,
    several_at_once,
    windows,
)

_OFFSETS_AT_ONCE = 1 << 20


def group_by_part(part_of: Array, num_parts: int) -> tuple[Array, Array]:
    """Return (order, bounds): part p's items are order[bounds[p]:bounds[p + 1]], ascending."""
    order = np.empty(len(part_of), index_dtype(len(part_of)))
    return order, _fill_order(part_of, num_parts, order)


@strict_kernel
def _fill_order(part_of: Array, num_parts: int, order: Array) -> Array:
    bounds = np.zeros(num_parts + 1, np.int64)
    for part in part_of:
        bounds[part + 1] += 1
    for part in range(num_parts):
        bounds[part + 1] += bounds[part]
    fill = bounds[:-1].copy()
    for item in range(len(part_of)):
        order[fill[part_of[item]]] = item
        fill[part_of[item]] += 1
    return bounds


@strict_kernel
def number_in_part(part_of: Array, num_parts: int, local: Array) -> None:
    """Set local[v] to how many items before v are in its part."""
    counts = np.zeros(num_parts, np.int64)
    for item in range(len(part_of)):
        local[item] = counts[part_of[item]]
        counts[part_of[item]] += 1


@strict_kernel
def part_of_entries(offsets: Array, part_of: Array, first_row: int, low: int, high: int) -> Array:
    """Return the part of each entry low..high; row first_row + i ends at offsets[i + 1]."""
    out = np.empty(high - low, np.int32)
    at = 0
    for entry in range(low, high):
        while offsets[at + 1] <= entry:
            at += 1
        out[entry - low] = part_of[first_row + at]
    return out


class PartRows:
    """Which rows each part owns, and where each row lies in its part. 16 bytes per node."""

    def __init__(self, part_of: Array, num_parts: int) -> None:
        self.part_of = np.ascontiguousarray(part_of, dtype=np.int32)
        self.num_parts = num_parts
        self._order, self._bounds = group_by_part(self.part_of, num_parts)
        self.local = np.empty(len(part_of), index_dtype(len(part_of)))
        number_in_part(self.part_of, num_parts, self.local)
        self._columns = self.local.copy()

    def owned(self, part: int) -> Array:
        """Return the store rows of a part, ascending."""
        return self._order[self._bounds[part] : self._bounds[part + 1]]

    @contextmanager
    def columns_of(self, part: int, halo: Array) -> Iterator[Array]:
        """Lend the columns of rows in a part, its own ones first and then these."""
        num_owned = int(self._bounds[part + 1] - self._bounds[part])
        self._columns[halo] = np.arange(num_owned, num_owned + len(halo))
        try:
            yield self._columns
        finally:
            self._columns[halo] = self.local[halo]

    def counts(self) -> list[int]:
        """Return how many rows each part owns."""
        return [int(count) for count in np.diff(self._bounds)]


Writers = Mapping[int, FolderWriter]
"""Of some parts, or all."""


def _in_parts(piece: Array, order: Array, bounds: Array, parts: Iterable[int]) -> list[Array]:
    """Return the rows of these parts, taken by a function that holds no lock of Python's."""
    return [np.take(piece, order[bounds[part] : bounds[part + 1]], axis=0) for part in parts]


def split_rows(rows: PartRows, writers: Writers, name: str, column: Array) -> None:
    """Write to each part the rows it owns of a column with one row per node."""
    counts = rows.counts()
    streams = [
        writer.stream(name, (counts[part], *column.shape[1:]), column.dtype)
        for part, writer in writers.items()
    ]

    def deal(piece: tuple[int, int]) -> list[Array]:
        low, high = piece
        order, bounds = group_by_part(rows.part_of[low:high], rows.num_parts)
        found = read(column, low, high)
        return _in_parts(found, order, bounds, writers)

    pieces = ranges(len(column), per_thread(rows_at_once(column)))
    for dealt in several_at_once(in_order(deal, pieces, ahead=num_threads())):
        _append_all(streams, dealt)
    for writer in writers.values():
        writer.close(name)


def split_offsets(rows: PartRows, writers: Writers, name: str, offsets: Array) -> None:
    """Write to each part where the entries of its rows start."""
    counted = rows.counts()
    streams = {
        part: writer.stream(name, (counted[part] + 1,), np.int64)
        for part, writer in writers.items()
    }
    ends = np.zeros((rows.num_parts, 1), np.int64)
    for stream in streams.values():
        stream.append(ends[0])
    for low, high in ranges(len(offsets) - 1, _OFFSETS_AT_ONCE):
        counts = np.diff(read(offsets, low, high + 1))
        order, bounds = group_by_part(rows.part_of[low:high], rows.num_parts)
        for part, stream in streams.items():
            mine = order[bounds[part] : bounds[part + 1]]
            starts = ends[part] + np.cumsum(counts[mine])
            stream.append(starts)
            ends[part] = starts[-1] if len(starts) else ends[part]
    for writer in writers.values():
        writer.close(name)


def split_entries(
    rows: PartRows, writers: Writers, name: str, offsets: Array, column: Array
) -> None:
    """Write to each part the entries of its rows, where row v has offsets[v]..offsets[v + 1]."""
    streams = {
        part: writer.stream(name, (-1, *column.shape[1:]), column.dtype)
        for part, writer in writers.items()
    }
    deal_entries(rows, offsets, column, streams)
    for writer in writers.values():
        writer.close(name)


class Sink(Protocol):
    """Anything that rows can be appended to."""

    def append(self, rows: Array) -> None:
        """Take rows."""


def deal_entries(rows: PartRows, offsets: Array, column: Array, sinks: Mapping[int, Sink]) -> None:
    """Append each entry to the sink of the part that owns its row, in the store's order."""

    def deal(window: Window) -> list[Array]:
        low, high = window.low, window.high
        entry_part = part_of_entries(window.offsets, rows.part_of, window.first_row, low, high)
        order, bounds = group_by_part(entry_part, rows.num_parts)
        piece = read(column, low, high)
        return _in_parts(piece, order, bounds, sinks)

    step = per_thread(min(chunks.EDGES_AT_ONCE, rows_at_once(column)))
    for dealt in several_at_once(in_order(deal, windows(offsets, step), ahead=num_threads())):
        _append_all(list(sinks.values()), dealt)


def _append_all(sinks: Sequence[Sink], dealt: Sequence[list[Array]]) -> None:
    """Append to each sink what each piece dealt to it, several sinks side by side."""

    def append(first: int, beyond: int) -> None:
        for k in range(first, beyond):
            sinks[k].append(joined([one[k] for one in dealt]))

    run_chunks(append, list(range(len(sinks) + 1)))

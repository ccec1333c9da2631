"""Dealing a graph's columns out to the parts in one pass, a piece at a time.

Rows or edges are sorted by part by one counting sort, which keeps their order within each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from siafu.graph import Array, FolderWriter, index_dtype
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import in_order, num_chunks, num_threads, run_chunks
from siafu.partitioning.chunks import (
    Window,
    edges_per_thread,
    evenly,
    joined,
    per_thread,
    ranges,
    read,
    rows_at_once,
    several_at_once,
    windows,
)

_OFFSETS_AT_ONCE = 1 << 17


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


class Fills:
    """Where threads put the rows of each part: those of earlier threads before their own."""

    def __init__(self, num_rows: int, num_parts: int) -> None:
        self._chunks = evenly(num_rows, num_chunks(num_rows))
        self._counts_CP = np.zeros((len(self._chunks) - 1, num_parts), np.int64)

    def count(self, count: Callable[[int, int, Array], None]) -> None:
        """Have the rows low..high of each part counted, on all threads."""
        self._run(count, self._counts_CP)

    def bounds(self) -> Array:
        """Return where the rows of each part start."""
        return np.concatenate([[0], np.cumsum(self._counts_CP.sum(axis=0))])

    def fill(self, fill: Callable[[int, int, Array], None]) -> None:
        """Have the rows low..high put from these places on."""
        starts = np.cumsum(self._counts_CP, axis=0) - self._counts_CP
        self._run(fill, starts + self.bounds()[:-1])

    def _run(self, work: Callable[[int, int, Array], None], numbers_CP: Array) -> None:
        def run(first: int, beyond: int) -> None:
            for chunk in range(first, beyond):
                work(self._chunks[chunk], self._chunks[chunk + 1], numbers_CP[chunk])

        run_chunks(run, range(len(self._chunks)))


@strict_kernel
def count_parts(part_of: Array, counts: Array) -> None:
    """Add how many items each part has."""
    for item in range(len(part_of)):
        counts[part_of[item]] += 1


@strict_kernel
def _number_rows(  # noqa: PLR0913 - kernel arguments are flat
    low: int,
    high: int,
    part_of: Array,
    bounds: Array,
    fill: Array,
    order: Array,
    local: Array,
    columns: Array,
) -> None:
    """Put rows in the order of parts; set local[v] to how many rows before v are in its part."""
    for row in range(low, high):
        part = part_of[row]
        order[fill[part]] = row
        local[row] = fill[part] - bounds[part]
        columns[row] = local[row]
        fill[part] += 1


@strict_kernel
def _set_columns(halo: Array, first: int, columns: Array) -> None:
    for at in range(len(halo)):
        columns[halo[at]] = first + at


@strict_kernel
def _reset_columns(halo: Array, local: Array, columns: Array) -> None:
    for at in range(len(halo)):
        columns[halo[at]] = local[halo[at]]


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


@strict_kernel
def _order_entries(
    rows: tuple[Array, int, int], part_of: Array, num_parts: int, order: Array
) -> Array:
    """Set the order of entries by the part of their row; return where those of each part start."""
    offsets, first, low = rows
    high, bounds = low + len(order), np.zeros(num_parts + 1, np.int64)
    for at in range(len(offsets) - 1):
        here = min(offsets[at + 1], high) - max(offsets[at], low)
        bounds[part_of[first + at] + 1] += max(0, here)
    for part in range(num_parts):
        bounds[part + 1] += bounds[part]
    fill = bounds[:-1].copy()
    for at in range(len(offsets) - 1):
        part = part_of[first + at]
        for entry in range(max(offsets[at], low), min(offsets[at + 1], high)):
            order[fill[part]] = entry - low
            fill[part] += 1
    return bounds


class PartRows:
    """Which rows each part owns, and where each row lies in its part. 16 bytes per node."""

    def __init__(self, part_of: Array, num_parts: int) -> None:
        self.part_of = np.ascontiguousarray(part_of, dtype=np.int32)
        self.num_parts = num_parts
        self._order = np.empty(len(part_of), index_dtype(len(part_of)))
        self.local = np.empty_like(self._order)
        self._columns = np.empty_like(self._order)
        fills = Fills(len(part_of), num_parts)
        fills.count(lambda low, high, counts: count_parts(self.part_of[low:high], counts))
        self._bounds = fills.bounds()

        def number(low: int, high: int, fill: Array) -> None:
            arrays = (self._order, self.local, self._columns)
            _number_rows(low, high, self.part_of, self._bounds, fill, *arrays)

        fills.fill(number)

    def owned(self, part: int) -> Array:
        """Return the store rows of a part, ascending."""
        return self._order[self._bounds[part] : self._bounds[part + 1]]

    @contextmanager
    def columns_of(self, part: int, halo: Array) -> Iterator[Array]:
        """Lend the columns of rows in a part, its own ones first and then these."""
        first = int(self._bounds[part + 1] - self._bounds[part])
        bounds = evenly(len(halo), num_chunks(len(halo)))
        run_chunks(lambda lo, hi: _set_columns(halo[lo:hi], first + lo, self._columns), bounds)
        try:
            yield self._columns
        finally:
            run_chunks(
                lambda lo, hi: _reset_columns(halo[lo:hi], self.local, self._columns), bounds
            )

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
    _close_all(writers, name)


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

    def deal(piece: tuple[int, int]) -> list[Array]:
        low, high = piece
        counts = np.diff(read(offsets, low, high + 1))
        order, bounds = group_by_part(rows.part_of[low:high], rows.num_parts)
        return [np.cumsum(mine) for mine in _in_parts(counts, order, bounds, streams)]

    pieces = ranges(len(offsets) - 1, _OFFSETS_AT_ONCE)
    for dealt in in_order(deal, pieces, ahead=num_threads()):
        for part, starts in zip(streams, dealt, strict=True):
            starts += ends[part]
            ends[part] = starts[-1] if len(starts) else ends[part]
        _append_all(list(streams.values()), [dealt])
    _close_all(writers, name)


def split_entries(
    rows: PartRows, writers: Writers, name: str, offsets: Array, column: Array
) -> None:
    """Write to each part the entries of its rows, where row v has offsets[v]..offsets[v + 1]."""
    streams = {
        part: writer.stream(name, (-1, *column.shape[1:]), column.dtype)
        for part, writer in writers.items()
    }
    deal_entries(rows, offsets, column, streams)
    _close_all(writers, name)


class Sink(Protocol):
    """Anything that rows can be appended to."""

    def append(self, rows: Array) -> None:
        """Take rows."""


def deal_entries(rows: PartRows, offsets: Array, column: Array, sinks: Mapping[int, Sink]) -> None:
    """Append each entry to the sink of the part that owns its row, in the store's order."""

    def deal(window: Window) -> list[Array]:
        piece = read(column, window.low, window.high)
        order = np.empty(len(piece), index_dtype(len(piece)))
        bounds = _order_entries(window.rows, rows.part_of, rows.num_parts, order)
        return _in_parts(piece, order, bounds, sinks)

    step = min(edges_per_thread(), per_thread(rows_at_once(column)))
    for dealt in several_at_once(in_order(deal, windows(offsets, step), ahead=num_threads())):
        _append_all(list(sinks.values()), dealt)


def _append_all(sinks: Sequence[Sink], dealt: Sequence[list[Array]]) -> None:
    """Append to each sink what each piece dealt to it, several sinks side by side."""

    def append(first: int, beyond: int) -> None:
        for k in range(first, beyond):
            sinks[k].append(joined([one[k] for one in dealt]))

    run_chunks(append, list(range(len(sinks) + 1)))


def _close_all(writers: Writers, name: str) -> None:
    """Complete an array of each part side by side: each waits for the disk."""
    each = list(writers.values())

    def close(first: int, beyond: int) -> None:
        for writer in each[first:beyond]:
            writer.close(name)

    run_chunks(close, range(len(each) + 1))

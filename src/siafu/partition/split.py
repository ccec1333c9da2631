"""Dealing a graph's columns out to the parts in one pass, a piece at a time."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from siafu.graph import Array, FolderWriter
from siafu.partition.chunks import EDGES_AT_ONCE, forget, ranges, read, rows_at_once
from siafu.partition.grouping import group_by_part, part_of_entries


class PartRows:
    """Which rows each part owns, and where each row lies in its part. O(N) memory."""

    def __init__(self, part_of: Array, num_parts: int) -> None:
        self.part_of = np.ascontiguousarray(part_of, dtype=np.int32)
        self.num_parts = num_parts
        self._order, self._bounds = group_by_part(self.part_of, num_parts)
        self.local = np.empty(len(part_of), np.int64)
        for part in range(num_parts):
            rows = self.owned(part)
            self.local[rows] = np.arange(len(rows))

    def owned(self, part: int) -> Array:
        """Return the store rows of a part, ascending."""
        return self._order[self._bounds[part] : self._bounds[part + 1]]


def split_rows(rows: PartRows, writers: list[FolderWriter], name: str, column: Array) -> None:
    """Write to each part the rows it owns of a column with one row a vertex."""
    streams = [
        writer.stream(name, (len(rows.owned(part)), *column.shape[1:]), column.dtype)
        for part, writer in enumerate(writers)
    ]
    for low, high in ranges(len(column), rows_at_once(column)):
        order, bounds = group_by_part(rows.part_of[low:high], rows.num_parts)
        piece = read(column, low, high)
        for part, stream in enumerate(streams):
            stream.append(piece[order[bounds[part] : bounds[part + 1]]])
    for writer in writers:
        writer.close(name)


def split_offsets(rows: PartRows, writers: list[FolderWriter], name: str, offsets: Array) -> None:
    """Write to each part where the entries of its rows start."""
    counts = np.diff(offsets)
    for part, writer in enumerate(writers):
        local = np.zeros(len(rows.owned(part)) + 1, np.int64)
        np.cumsum(counts[rows.owned(part)], out=local[1:])
        writer.save(name, local)
    forget(offsets)


def split_entries(
    rows: PartRows, writers: list[FolderWriter], name: str, offsets: Array, column: Array
) -> None:
    """Write to each part the entries of its rows, where row v has offsets[v]..offsets[v + 1]."""
    offsets = np.array(offsets)
    streams = []
    for part, writer in enumerate(writers):
        owned = rows.owned(part)
        size = int((offsets[owned + 1] - offsets[owned]).sum())
        streams.append(writer.stream(name, (size, *column.shape[1:]), column.dtype))
    deal_entries(rows, offsets, column, streams)
    for writer in writers:
        writer.close(name)


class Sink(Protocol):
    """Anything that rows can be appended to."""

    def append(self, rows: Array) -> None:
        """Take rows."""


def deal_entries(rows: PartRows, offsets: Array, column: Array, sinks: Sequence[Sink]) -> None:
    """Append each entry to the sink of the part that owns its row, in the store's order."""
    for low, high in ranges(len(column), min(EDGES_AT_ONCE, rows_at_once(column))):
        entry_part = part_of_entries(offsets, rows.part_of, low, high)
        order, bounds = group_by_part(entry_part, rows.num_parts)
        piece = read(column, low, high)
        for part, sink in enumerate(sinks):
            sink.append(piece[order[bounds[part] : bounds[part + 1]]])

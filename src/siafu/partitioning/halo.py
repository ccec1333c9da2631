"""Which rows of others a part reads, and its edges in columns of its own rows and these."""

from pathlib import Path

import numpy as np

from siafu.graph import Array
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import in_order, num_threads
from siafu.partitioning.chunks import edges_per_thread, ranges
from siafu.partitioning.split import Fills, PartRows


class SourceFile:
    """Source rows of one part's edges, waiting until the part's halo is known."""

    def __init__(self, path: Path, dtype: np.dtype[np.generic]) -> None:
        self.path, self._dtype = path, dtype

    def append(self, rows: Array) -> None:
        """Write rows after the others; opening each time bounds the open files."""
        with self.path.open("ab") as file:
            rows.tofile(file)

    def read(self, low: int, high: int) -> Array:
        """Return the entries low..high."""
        offset = low * self._dtype.itemsize
        return np.fromfile(self.path, self._dtype, high - low, offset=offset)


def find_halo(rows: PartRows, part: int, num_edges: int, file: SourceFile) -> tuple[Array, Array]:
    """Return the halo rows by owner, ascending within each, and how many each owner has."""
    is_read = np.zeros(len(rows.part_of), bool)

    def mark(piece: tuple[int, int]) -> None:
        _mark(file.read(*piece), is_read)

    for _ in in_order(mark, ranges(num_edges, edges_per_thread()), ahead=num_threads()):
        pass

    def count(low: int, high: int, counts: Array) -> None:
        _count_halo(low, high, counts, part, rows.part_of, is_read)

    def fill(low: int, high: int, places: Array) -> None:
        _fill_halo(low, high, places, part, rows.part_of, is_read, halo)

    fills = Fills(len(is_read), rows.num_parts)
    fills.count(count)
    bounds = fills.bounds()
    halo = np.empty(int(bounds[-1]), np.int64)
    fills.fill(fill)
    return halo, np.diff(bounds)


@strict_kernel
def _mark(rows: Array, marks: Array) -> None:
    for row in rows:
        marks[row] = True


@strict_kernel
def _count_halo(
    low: int, high: int, counts: Array, part: int, part_of: Array, is_read: Array
) -> None:
    for row in range(low, high):
        if is_read[row] and part_of[row] != part:
            counts[part_of[row]] += 1


@strict_kernel
def _fill_halo(
    low: int, high: int, fill: Array, part: int, part_of: Array, is_read: Array, halo: Array
) -> None:
    for row in range(low, high):
        if is_read[row] and part_of[row] != part:
            halo[fill[part_of[row]]] = row
            fill[part_of[row]] += 1


@strict_kernel
def localise(
    rows: tuple[Array, int, int], sources: Array, column_of: Array, columns: Array, boundary: Array
) -> int:
    """Set columns; mark the owned rows that read a halo row, and return how many edges do."""
    offsets, first, low = rows
    at, cut = 0, 0
    for position in range(len(columns)):
        columns[position] = column_of[sources[position]]
        while offsets[at + 1] <= low + position:
            at += 1
        if columns[position] >= len(boundary):
            boundary[first + at] = True
            cut += 1
    return cut

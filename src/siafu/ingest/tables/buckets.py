"""Sorting more edges than fit in memory by destination: files of records, one a range of rows.

A record is one edge: dst, src and, where there are any, reverse, weight, attr and type. Records are
scattered to the bucket of their destination, then each bucket is sorted by itself. A bucket that
came out too large is scattered again into smaller ranges.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from siafu.graph import Array
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import CHUNKS_A_THREAD, in_order, num_threads, run_chunks

# Each bucket is an open file while records are scattered, and systems allow about a thousand.
_MOST_BUCKETS = 512
_RECORDS_AT_ONCE = 1 << 20
_WRITTEN_AT_ONCE = 4
"""Pieces written together, so that a thread has more to do than it takes to wake it."""


@strict_kernel
def order_by_key(key: Array, num_keys: int) -> tuple[Array, Array]:
    """Return where each key starts, [num_keys + 1], and the stable order that sorts by key."""
    starts = np.zeros(num_keys + 1, dtype=np.int64)
    for i in range(len(key)):
        starts[key[i] + 1] += 1
    for k in range(num_keys):
        starts[k + 1] += starts[k]
    cursor = starts.copy()
    order = np.empty(len(key), dtype=np.int64)
    for i in range(len(key)):
        order[cursor[key[i]]] = i
        cursor[key[i]] += 1
    return starts, order


@strict_kernel
def drop_known_reverses(starts: Array, order: Array, key: Array, reverse: Array) -> Array:
    """Return the order without reverses that are there already, and change `starts` to match.

    `key` tells the edges of a row apart: the source, or source and type. A row keeps its given
    edges in order, then has each missing reverse once, by key; a reverse found several times keeps
    the data of its first edge.
    """
    kept = np.empty(len(order), dtype=np.int64)
    num_kept = 0
    for row in range(len(starts) - 1):
        entries = order[starts[row] : starts[row + 1]]
        starts[row] = num_kept
        # The edges as given stay, in their order.
        given = entries[~reverse[entries]]
        kept[num_kept : num_kept + len(given)] = given
        num_kept += len(given)
        # Then a merge of two sorted lists: a reverse is kept if no given edge has its key, nor the
        # reverse before it.
        known = np.sort(key[given])
        candidates = entries[reverse[entries]]
        at, last = 0, -1
        for i in np.argsort(key[candidates], kind="mergesort"):
            wanted = key[candidates[i]]
            while at < len(known) and known[at] < wanted:
                at += 1
            if wanted != last and (at == len(known) or known[at] != wanted):
                kept[num_kept] = candidates[i]
                num_kept += 1
            last = wanted
    starts[len(starts) - 1] = num_kept
    return kept[:num_kept]


def record_type(
    index: np.dtype[Any],
    *,
    undirected: bool,
    weight: bool,
    attr: int,
    typed: bool = False,
    target: Any = None,
    others: Sequence[tuple[str, Any]] = (),
) -> Any:
    """Return the dtype of a record; `attr` is the number of edge attributes."""
    fields: list[tuple[Any, ...]] = [("dst", index), ("src", index)]
    if undirected:
        fields.append(("reverse", np.bool_))
    if weight:
        fields.append(("weight", np.float32))
    if attr:
        fields.append(("attr", np.float32, (attr,)))
    if typed:
        fields.append(("type", np.uint16))
    if target is not None:
        fields.append(("target", *target))
    return np.dtype([*fields, *others])


@dataclass(frozen=True, slots=True)
class Begun:
    """Records that have both ends so far; how many lead from a node to itself."""

    records: Array
    loops: int


def begin_records(ends: Sequence[Array], record: Any) -> Begun:
    """Return a record for each edge, given the rows of its source and destination."""
    records = np.empty(len(ends[0]), dtype=record)
    records["src"], records["dst"] = ends
    return Begun(records, int((ends[0] == ends[1]).sum()))


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The edges of the rows from `low` on: how many each row has, and their records in order."""

    low: int
    counts: Array
    records: Array | Mapping[str, Array]
    """By field, where they were sorted elsewhere."""


class Buckets:
    """Records scattered over files by destination; a context in which records may be added.

    With `sizes` the files are there already: so many bytes of each stay. Those who read it may be
    given several folders, whose records follow one another.
    """

    def __init__(
        self,
        folder: Path | Sequence[Path],
        rows: range,
        record: Any,
        *,
        most_buckets: int,
        sizes: Sequence[int] = (),
    ) -> None:
        self._folders = [folder] if isinstance(folder, Path) else list(folder)
        self._folder, self._rows, self._record = self._folders[0], rows, np.dtype(record)
        self._shift = 0
        while self._bucket_of(len(rows) - 1) >= max(1, min(most_buckets, _MOST_BUCKETS)):
            self._shift += 1
        self.num_buckets = self._bucket_of(len(rows) - 1) + 1
        self._kept, self._files = sizes, list[IO[bytes]]()

    def _bucket_of(self, row: Any) -> Any:
        return row >> self._shift

    def __enter__(self) -> Self:
        if not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        for bucket in range(self.num_buckets):
            mode = "r+b" if self._kept else "wb"
            self._files.append(self.path(bucket).open(mode, buffering=0))
        for file, size in zip(self._files, self._kept, strict=False):
            file.truncate(size)
            file.seek(size)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()

    def path(self, bucket: int) -> Path:
        """Return the file of a bucket."""
        return self._folder / f"{bucket}.bin"

    def first_row(self, bucket: int) -> int:
        """Return the first row whose edges are in a bucket."""
        return self._rows.start + (bucket << self._shift)

    def paths(self, bucket: int) -> list[Path]:
        """Return the files of a bucket, in the order of their records."""
        return [folder / f"{bucket}.bin" for folder in self._folders]

    def sizes(self) -> list[int]:
        """Return the bytes of each file, all of them on the disk by then."""
        for file in self._files:
            os.fsync(file.fileno())
        return [file.tell() for file in self._files]

    def add(self, records: Array) -> None:
        """Append each record to the file of its destination."""
        self.write(self.deal(records))

    def add_all(self, pieces: Iterable[Array], *, ahead: int) -> None:
        """Append the records of all pieces, in their order; some are dealt side by side."""
        dealt = list[tuple[Array, Array]]()
        for one in in_order(self.deal, pieces, ahead=ahead):
            dealt.append(one)
            if len(dealt) == _WRITTEN_AT_ONCE:
                self.write(*dealt)
                dealt.clear()
        self.write(*dealt)

    def deal(self, records: Array) -> tuple[Array, Array]:
        """Return where each bucket's records start, and the records in that order."""
        bucket_of_record = self._bucket_of(records["dst"] - self._rows.start)
        starts, order = order_by_key(bucket_of_record, self.num_buckets)
        return starts, np.take(records, order)

    def write(self, *dealt: tuple[Array, Array]) -> None:
        """Append to each file what `deal` found for it, one after another; files side by side."""

        def write(first: int, beyond: int) -> None:
            for bucket in range(first, beyond):
                for starts, records in dealt:
                    _write_all(self._files[bucket], records[starts[bucket] : starts[bucket + 1]])

        chunks = min(len(self._files), CHUNKS_A_THREAD * num_threads())
        run_chunks(write, np.linspace(0, len(self._files), chunks + 1).astype(int).tolist())

    def all_sorted(
        self, first: int, *, most_records: int, type_of_code: Array | None = None
    ) -> Iterator[tuple[int, list[SortedRows]]]:
        """Yield each bucket from `first` on with its rows in order, several sorted side by side.

        Together they have `most_records`; a bucket with more comes in pieces, one after another.
        """
        left = range(first, self.num_buckets)
        largest = max((self._num_records(bucket) for bucket in left), default=0)
        ahead = most_records // max(1, largest) - 1
        settings: Any = {"most_records": most_records, "type_of_code": type_of_code}
        if ahead < 1:
            for bucket in left:
                for rows in self.sorted_rows(bucket, **settings):
                    yield bucket, [rows]
            return

        def sort(bucket: int) -> tuple[int, list[SortedRows]]:
            return bucket, list(self.sorted_rows(bucket, **settings))

        yield from in_order(sort, left, ahead=min(ahead, num_threads()))

    def _num_records(self, bucket: int) -> int:
        return sum(path.stat().st_size for path in self.paths(bucket)) // self._record.itemsize

    def sorted_rows(
        self, bucket: int, *, most_records: int, type_of_code: Array | None = None
    ) -> Iterator[SortedRows]:
        """Yield the rows of a bucket in order; its file stays.

        More than `most_records` at once are held only for a single row that has them all. Types
        come out as `type_of_code` has them, known only once all records were added.
        """
        low = self.first_row(bucket)
        rows = range(low, min(low + (1 << self._shift), self._rows.stop))
        paths, num_records = self.paths(bucket), self._num_records(bucket)
        if num_records <= most_records or len(rows) == 1:
            records = [np.fromfile(path, dtype=self._record) for path in paths]
            yield _sort(np.concatenate(records), rows, type_of_code)
            return
        inner = self._smaller(paths, rows, max(2, 2 * num_records // most_records))
        for piece in range(inner.num_buckets):
            yield from inner.sorted_rows(
                piece, most_records=most_records, type_of_code=type_of_code
            )
            inner.path(piece).unlink()
        inner._folder.rmdir()

    def _smaller(self, paths: Sequence[Path], rows: range, pieces: int) -> "Buckets":
        """Return the records of some files scattered again, over about this many files."""
        inner = Buckets(paths[0].with_suffix(""), rows, self._record, most_buckets=pieces)
        with inner:
            for path in paths:
                with path.open("rb") as file:
                    while len(records := np.fromfile(file, self._record, _RECORDS_AT_ONCE)):
                        inner.add(records)
        return inner


def _write_all(file: IO[bytes], records: Array) -> None:
    """Write every byte: an unbuffered file may take fewer than it is given."""
    left = memoryview(records.view(np.uint8).data)
    while left:
        left = left[file.write(left) :]


def _sort(records: Array, rows: range, type_of_code: Array | None) -> SortedRows:
    if type_of_code is not None:
        records["type"] = type_of_code[records["type"]]
    starts, order = order_by_key(records["dst"] - rows.start, len(rows))
    if "reverse" in (records.dtype.names or ()):
        key = records["src"]
        if type_of_code is not None:
            key = key.astype(np.int64) * len(type_of_code) + records["type"]
        order = drop_known_reverses(starts, order, key, records["reverse"])
    return SortedRows(rows.start, np.diff(starts), np.take(records, order))

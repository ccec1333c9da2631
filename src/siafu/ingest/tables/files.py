"""Parquet and CSV files read as one table, in pieces that know where they came from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.frames import is_kept_frame
from siafu.ingest.tables.cells import NULL_CELLS
from siafu.ingest.tables.csv_marks import (
    CSV_ENDINGS,
    decimal_point,
    delimiter,
    is_csv,
    is_packed,
    usual_delimiter,
)
from siafu.ingest.tables.row_groups import Place, even_starts, largest_group
from siafu.ops.threads import in_order, num_threads
from siafu.record import shortened, suggestion

_NAME_IT = "name the column: {} COLUMN"
MOST_NAMES = 12
"""Columns that a note or an error lists by name."""

PARQUET_ENDINGS = (".parquet", ".pq")
TABLE_ENDINGS = PARQUET_ENDINGS + CSV_ENDINGS

_BLOCK_BYTES = 1 << 23
# Without a buffer size a whole column chunk is read at once, and a chunk may be the whole file.
_BUFFER_BYTES = 1 << 20
_DECODED_BYTES = 1 << 27
"""Row groups that are decoded side by side, all together."""
Types = Mapping[str, pa.DataType]
_READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


class MixedTypesError(DataError):
    """A column of a CSV file that is not what its first rows are."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of one file."""

    file: Path
    first_row: int
    batch: pa.RecordBatch
    file_number: int = 0
    """Which file of the table it is, from 0."""
    types: Types = field(default_factory=dict)
    """Types that columns were asked to be read as."""
    rows: Array | None = None
    """Which rows are left, where some were taken out."""

    def column(self, name: str) -> pa.Array:
        """Return one column, dictionary-encoded text as plain text."""
        column = self.batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column

    def only(self, keep: Array) -> "Piece":
        """Return the rows that are kept."""
        rows = np.flatnonzero(keep) if self.rows is None else self.rows[keep]
        return replace(self, batch=self.batch.filter(pa.array(keep)), rows=rows)

    def rows_kept(self) -> Array:
        """Return which rows of the piece, as it was read, are left."""
        return np.arange(self.batch.num_rows) if self.rows is None else self.rows

    def where(self, row: int) -> str:
        """Return where a user finds this row."""
        at = row if self.rows is None else int(self.rows[row])
        return f"data row {self.first_row + at} (from 0) of {self.file}"


@dataclass(frozen=True, slots=True)
class Table:
    """Files that together are one table."""

    what: str
    """What users call it: `node table` or `edge table`."""
    files: tuple[Path, ...]
    header: tuple[str, ...] | None = None
    """Column names of CSV files that have none."""
    types: Types = field(default_factory=dict)
    """Types that CSV columns are read as, instead of guessing from the first rows."""

    def schema(self) -> pa.Schema:
        """Return the columns of the first file; raise where two have one name."""
        schema = self._schema_of(self.files[0])
        _refuse_twins(self.files[0], schema.names)
        return schema

    def shown(self) -> str:
        """Return what users call its first file; a frame has none of theirs."""
        first = self.files[0]
        return "a frame" if is_kept_frame(str(first)) else first.name

    def common_names(self) -> set[str]:
        """Return the columns that every file has."""
        first, *others = (set(self._schema_of(file).names) for file in self.files)
        return first.intersection(*others)

    def names_as_read(self) -> list[str]:
        """Return the names of the first file's columns; of one without a header they are cells."""
        return list(self._schema_of(self.files[0]).names)

    def delimiter(self) -> str | None:
        """Return what separates the columns of the first CSV file, None where it is as usual."""
        first = self.files[0]
        found = delimiter(first) if is_csv(first) else None
        return None if found in (None, usual_delimiter(first)) else found

    def check_columns(self, flag_of: Mapping[str, str], fix: str = _NAME_IT) -> None:
        """Raise unless every file has these columns; each comes with the flag that names it."""
        for error in self.missing(flag_of, fix):
            raise error

    def missing(self, flag_of: Mapping[str, str], fix: str = _NAME_IT) -> Iterator[DataError]:
        """Yield an error for each column that a file does not have."""
        for file in self.files:
            present = self._schema_of(file).names
            _refuse_twins(file, present)
            known = set(present)
            for name, flag in flag_of.items():
                if name not in known:
                    free = [column for column in present if column not in flag_of]
                    columns = shortened([repr(column) for column in present], MOST_NAMES)
                    yield DataError(
                        f"The {self.what} has no column {name!r}.",
                        seen=f"{file} with columns {columns}",
                        fix=suggestion(name, free) + fix.format(flag),
                    )

    def with_text(self, columns: Sequence[str]) -> "Table":
        """Return the table with these columns of CSV files read as text, whatever they hold."""
        texts = dict.fromkeys(columns, pa.large_string()) if self.is_csv else {}
        return replace(self, types=dict(self.types) | texts)

    @property
    def is_csv(self) -> bool:
        """Whether the first file's types are a guess from its first rows."""
        return is_csv(self.files[0])

    def num_rows(self) -> int | None:
        """Return the number of rows where the files tell it without being read."""
        if any(is_csv(file) for file in self.files):
            return None
        return sum(self._open_parquet(file).metadata.num_rows for file in self.files)

    def estimate_rows(self, *, bytes_a_row: int) -> int:
        """Return about how many rows there are; a compressed CSV is taken to grow fourfold."""
        known = self.num_rows()
        if known is not None:
            return known
        sizes = [file.stat().st_size * (4 if is_packed(file) else 1) for file in self.files]
        return sum(sizes) // bytes_a_row

    def pieces(
        self,
        columns: Sequence[str],
        *,
        rows: int,
        start: Place = (0, 0),
        stop: Place | None = None,
        decoded_bytes: int = _DECODED_BYTES,
    ) -> Iterator[Piece]:
        """Yield the rows in order, at most `rows` at a time, from a row of a file on.

        Row groups of Parquet files are decoded side by side up to `decoded_bytes`; none that begins
        at `stop` or later is read.
        """
        current, first_row = -1, 0
        for number, begins, batch in self._batches((start, stop), columns, rows, decoded_bytes):
            if number != current:
                current, first_row = number, begins
            skipped = start[1] if number == start[0] else 0
            left = batch.slice(max(0, skipped - first_row))
            at = first_row + batch.num_rows - left.num_rows
            if left.num_rows:
                yield Piece(self.files[number], at, left, number, self.types)
            first_row += batch.num_rows

    def spans(self, count: int) -> list[tuple[Place, Place | None]]:
        """Return where up to so many pieces of about as many rows begin and end, at row groups.

        Of files that are not all Parquet, it is all in one.
        """
        whole: list[tuple[Place, Place | None]] = [((0, 0), None)]
        if not self.num_rows():
            return whole
        starts = even_starts([self._rows_of_groups(file) for file in self.files], count)
        return list(zip(starts, [*starts[1:], None], strict=True))

    def _rows_of_groups(self, file: Path) -> list[int]:
        with self._open_parquet(file) as reader:
            groups = range(reader.metadata.num_row_groups)
            return [reader.metadata.row_group(group).num_rows for group in groups]

    def rows_before(self, start: tuple[int, int]) -> int:
        """Return how many rows come before a row of a file; of CSV files only that file's."""
        before = self.files[: start[0]]
        if any(is_csv(file) for file in before):
            return start[1]
        return start[1] + sum(self._open_parquet(file).metadata.num_rows for file in before)

    def _schema_of(self, file: Path) -> pa.Schema:
        try:
            if is_csv(file):
                state = file.stat()
                return _csv_schema(self, file, (state.st_mtime_ns, state.st_size))
            return self._open_parquet(file).schema_arrow
        except _READ_ERRORS as error:
            raise _unreadable(file, error) from error

    def _batches(
        self,
        span: tuple[Place, Place | None],
        columns: Sequence[str],
        rows: int,
        decoded_bytes: int,
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield (file, first row of it that is read, rows); row groups are decoded side by side."""
        (first, skipped), (last, beyond) = span[0], span[1] or (len(self.files), 0)
        found, largest, count = list[tuple[int, int, list[int]]](), 1, 0
        for number in range(first, min(last + (beyond > 0), len(self.files))):
            if is_csv(self.files[number]):
                found.append((number, 0, []))
                continue
            ends = np.cumsum([0, *self._rows_of_groups(self.files[number])])
            low = skipped if number == first else 0
            high = beyond if number == last else ends[-1]
            groups = [g for g in range(len(ends) - 1) if ends[g + 1] > low and ends[g] < high]
            if groups:
                found.append((number, int(ends[groups[0]]), groups))
                count += len(groups)
                largest = max(largest, self._largest(self.files[number], columns))
        ahead = min(num_threads(), count, decoded_bytes // largest)
        items = [
            (number, begins, some)
            for number, begins, groups in found
            for some in ([[group] for group in groups] if groups and ahead > 1 else [groups])
        ]

        def decode(
            item: tuple[int, int, list[int]],
        ) -> tuple[int, int, Iterable[pa.RecordBatch]]:
            number, begins, groups = item
            file = self.files[number]
            if ahead <= 1 or not groups:  # read when its turn has come, by the caller
                return number, begins, self._one_after_another(file, columns, rows, groups)
            return number, begins, self._decoded(file, groups[0], columns, rows)

        for number, begins, batches in in_order(decode, items, ahead=ahead):
            for batch in batches:
                yield number, begins, batch

    def _one_after_another(
        self, file: Path, columns: Sequence[str], rows: int, groups: list[int]
    ) -> Iterator[pa.RecordBatch]:
        try:
            if not is_csv(file):
                with self._open_parquet(file) as reader:
                    yield from reader.iter_batches(
                        batch_size=rows, row_groups=groups, columns=list(columns)
                    )
                return
            with self.open_csv(file, columns) as reader:
                for block in reader:
                    for start in range(0, block.num_rows, rows):
                        yield block.slice(start, rows)
        except _READ_ERRORS as error:
            raise _unreadable(file, error) from error

    def _decoded(
        self, file: Path, group: int, columns: Sequence[str], rows: int
    ) -> list[pa.RecordBatch]:
        """Return the rows of one row group."""
        try:
            with self._open_parquet(file) as reader:
                return list(
                    reader.iter_batches(
                        rows, row_groups=[group], columns=list(columns), use_threads=False
                    )
                )
        except _READ_ERRORS as error:
            raise _unreadable(file, error) from error

    def _largest(self, file: Path, columns: Sequence[str]) -> int:
        """Return about the bytes of the largest row group of a Parquet file."""
        with self._open_parquet(file) as reader:
            return largest_group(reader.metadata, columns)

    def _open_parquet(self, file: Path) -> pa_parquet.ParquetFile:
        try:
            return pa_parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES)
        except _READ_ERRORS as error:
            raise _unreadable(file, error) from error

    def __hash__(self) -> int:
        return hash((self.files, self.header, tuple(self.types)))

    def open_csv(self, file: Path, columns: Sequence[str] | None) -> pa_csv.CSVStreamingReader:
        """Return a reader of a CSV file, of some of its columns or all."""
        return pa_csv.open_csv(
            file,
            read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=self.header),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter(file)),
            convert_options=pa_csv.ConvertOptions(
                decimal_point=decimal_point(file),
                column_types=dict(self.types),
                null_values=NULL_CELLS,
                include_columns=None if columns is None else list(columns),
            ),
        )


@lru_cache(maxsize=256)
def _csv_schema(table: Table, file: Path, state: tuple[int, int]) -> pa.Schema:
    """Return the columns of a CSV file as it is now: its first rows are read to guess the types."""
    with table.open_csv(file, None) as reader:
        schema: pa.Schema = reader.schema
        list(schema.names)  # a name that is no UTF-8 is found here
        return schema


def _refuse_twins(file: Path, names: Sequence[str]) -> None:
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise DataError(
            "Two columns have one name.",
            seen=f"{shortened(list(map(repr, twins)), MOST_NAMES)} in {file}",
            fix="rename one of them, or take it out of the table",
        )


def _unreadable(file: Path, error: Exception) -> DataError:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return DataError(
            "A table file is not UTF-8.",
            seen=f"{file}: {text}",
            fix="save it again as UTF-8: iconv -f latin1 -t utf-8 OLD > NEW",
        )
    mixed = "conversion error" in text
    kind = MixedTypesError if mixed else DataError
    return kind(
        "A column mixes types." if mixed else "A table file can't be read.",
        seen=f"{file}: {text}",
        fix="give each column one type; for ids that mix numbers and text use --id-type text"
        if mixed
        else "check that the file is complete and of the kind its name says",
    )


def table_files(path: Path, what: str) -> tuple[Path, ...]:
    """Return the files of a table that is one file or a folder of files, in name order."""
    if path.is_file():
        return (path,)
    # Only files: whoever opens a named pipe waits for ever.
    files = sorted(
        file
        for file in path.rglob("*")
        if file.name.lower().endswith(TABLE_ENDINGS)
        and not file.name.startswith((".", "_"))
        and file.is_file()
    )
    if not files:
        near = "" if path.exists() else suggestion(path.name, _beside(path))
        raise DataError(
            f"The {what} has no files.",
            seen=str(path) + ("" if path.exists() else " does not exist"),
            fix=f"{near}give a file or folder of files ending in {', '.join(TABLE_ENDINGS)}",
        )
    return tuple(files)


def _beside(path: Path) -> list[str]:
    return [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []

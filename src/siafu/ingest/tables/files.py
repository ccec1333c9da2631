"""Parquet and CSV files read as one table, in pieces that know where they came from."""

import re
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
from siafu.ops.threads import in_order, num_threads
from siafu.record import shortened, suggestion

_NAME_IT = "name the column: {} COLUMN"
MOST_NAMES = 12
"""Columns that a note or an error lists by name."""

PARQUET_ENDINGS = (".parquet", ".pq")
TAB_ENDINGS = (".tsv", ".tsv.gz")
CSV_ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".csv.bz2", *TAB_ENDINGS)
TABLE_ENDINGS = PARQUET_ENDINGS + CSV_ENDINGS

_BLOCK_BYTES = 1 << 23
# Without a buffer size a whole column chunk is read at once, and a chunk may be the whole file.
_BUFFER_BYTES = 1 << 20
_DECODED_BYTES = 1 << 27
"""Row groups that are decoded side by side, all together."""
_OTHER_DELIMITERS = (";", "\t", "|")
"""What separates the columns of CSV files whose header has no comma."""

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
        found = _delimiter(first) if _is_csv(first) else None
        return None if found in (None, _usual_delimiter(first)) else found

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
        return _is_csv(self.files[0])

    def num_rows(self) -> int | None:
        """Return the number of rows where the files tell it without being read."""
        if any(_is_csv(file) for file in self.files):
            return None
        return sum(self._open_parquet(file).metadata.num_rows for file in self.files)

    def estimate_rows(self, *, bytes_a_row: int) -> int:
        """Return about how many rows there are; a compressed CSV is taken to grow fourfold."""
        known = self.num_rows()
        if known is not None:
            return known
        sizes = [file.stat().st_size * (4 if _is_packed(file) else 1) for file in self.files]
        return sum(sizes) // bytes_a_row

    def pieces(
        self,
        columns: Sequence[str],
        *,
        rows: int,
        start: tuple[int, int] = (0, 0),
        decoded_bytes: int = _DECODED_BYTES,
    ) -> Iterator[Piece]:
        """Yield the rows in order, at most `rows` at a time, from a row of a file on.

        Row groups of Parquet files are decoded side by side up to `decoded_bytes`.
        """
        current, first_row = start[0], 0
        for number, batch in self._batches(start[0], columns, rows, decoded_bytes):
            if number != current:
                current, first_row = number, 0
            skipped = start[1] if number == start[0] else 0
            left = batch.slice(max(0, skipped - first_row))
            at = first_row + batch.num_rows - left.num_rows
            if left.num_rows:
                yield Piece(self.files[number], at, left, number, self.types)
            first_row += batch.num_rows

    def rows_before(self, start: tuple[int, int]) -> int:
        """Return how many rows come before a row of a file; of CSV files only that file's."""
        before = self.files[: start[0]]
        if any(_is_csv(file) for file in before):
            return start[1]
        return start[1] + sum(self._open_parquet(file).metadata.num_rows for file in before)

    def _schema_of(self, file: Path) -> pa.Schema:
        try:
            if _is_csv(file):
                state = file.stat()
                return _csv_schema(self, file, (state.st_mtime_ns, state.st_size))
            return self._open_parquet(file).schema_arrow
        except _READ_ERRORS as error:
            raise _unreadable(file, error) from error

    def _batches(
        self, first: int, columns: Sequence[str], rows: int, decoded_bytes: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each file with its number; row groups are decoded side by side."""
        counts, largest = list[int](), 1
        for file in self.files[first:]:
            found = (0, 0) if _is_csv(file) else self._groups(file, columns)
            counts.append(found[0])
            largest = max(largest, found[1])
        ahead = min(num_threads(), sum(counts), decoded_bytes // largest)
        groups = [
            (number, group)
            for number, count in enumerate(counts, first)
            for group in (range(count) if count and ahead > 1 else [None])
        ]

        def decode(item: tuple[int, int | None]) -> tuple[int, Iterable[pa.RecordBatch]]:
            number, group = item
            if group is None:  # read when its turn has come, by the caller
                return number, self._one_after_another(self.files[number], columns, rows)
            return number, self._decoded(self.files[number], group, columns, rows)

        for number, batches in in_order(decode, groups, ahead=ahead):
            for batch in batches:
                yield number, batch

    def _one_after_another(
        self, file: Path, columns: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        try:
            if not _is_csv(file):
                with self._open_parquet(file) as reader:
                    yield from reader.iter_batches(batch_size=rows, columns=list(columns))
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

    def _groups(self, file: Path, columns: Sequence[str]) -> tuple[int, int]:
        """Return how many row groups a Parquet file has, and about the bytes of the largest."""
        with self._open_parquet(file) as reader:
            return reader.metadata.num_row_groups, _largest_group(reader.metadata, columns)

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
            parse_options=pa_csv.ParseOptions(delimiter=_delimiter(file)),
            convert_options=pa_csv.ConvertOptions(
                decimal_point=_decimal_point(file),
                column_types=dict(self.types),
                null_values=NULL_CELLS,
                include_columns=None if columns is None else list(columns),
            ),
        )


def _largest_group(metadata: pa_parquet.FileMetaData, columns: Sequence[str]) -> int:
    """Return about how many bytes the largest row group takes, decoded."""
    largest, wanted = 1, set(columns)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = (group.column(place) for place in range(group.num_columns))
        size = sum(
            max(one.total_uncompressed_size, 8 * one.num_values)
            for one in chunks
            if one.path_in_schema.split(".")[0] in wanted
        )
        largest = max(largest, size)
    return largest


@lru_cache(maxsize=256)
def _csv_schema(table: Table, file: Path, state: tuple[int, int]) -> pa.Schema:
    """Return the columns of a CSV file as it is now: its first rows are read to guess the types."""
    with table.open_csv(file, None) as reader:
        schema: pa.Schema = reader.schema
        list(schema.names)  # a name that is no UTF-8 is found here
        return schema


def _is_csv(file: Path) -> bool:
    return file.name.lower().endswith(CSV_ENDINGS)


def _usual_delimiter(file: Path) -> str:
    return "\t" if file.name.lower().endswith(TAB_ENDINGS) else ","


def _delimiter(file: Path) -> str:
    """Return what separates the columns: the first usual mark that the first line has."""
    usual = _usual_delimiter(file)
    with pa.input_stream(file) as stream:
        line = stream.read(_BUFFER_BYTES).split(b"\n", 1)[0]
    marks = (usual, *_OTHER_DELIMITERS)
    return next((mark for mark in marks if mark.encode() in line), usual)


_COMMA = re.compile(rb"[;\t|]\s*-?\d+,\d+\s*(?=[;\t|\r\n])")
_POINT = re.compile(rb"[;\t|]\s*-?\d+\.\d+\s*(?=[;\t|\r\n])")


def _decimal_point(file: Path) -> str:
    """Return the mark before fractions: a comma where the first rows have such and no points."""
    if _delimiter(file) == ",":
        return "."
    with pa.input_stream(file) as stream:
        rows = stream.read(_BUFFER_BYTES)
    return "," if _COMMA.search(rows) and not _POINT.search(rows) else "."


def _refuse_twins(file: Path, names: Sequence[str]) -> None:
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise DataError(
            "Two columns have one name.",
            seen=f"{shortened(list(map(repr, twins)), MOST_NAMES)} in {file}",
            fix="rename one of them, or take it out of the table",
        )


def _is_packed(file: Path) -> bool:
    return not file.name.lower().endswith((".csv", ".tsv"))


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

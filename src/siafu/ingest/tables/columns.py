"""Columns of numbers as float32 arrays without gaps, and those that were not meant as numbers.

Text with a few odd values among numbers is told from words; the index of a pandas table is no
feature. B rows of a piece, F numbers per row.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.tables.files import Piece, Table

_ROWS_AT_ONCE = 1 << 15
_MOSTLY = 0.9
"""Share of numbers from which marks of missing values are meant to be numbers too."""
_NEARLY_ALL = 0.99
"""Share of numbers from which a few other texts are mistakes, not codes such as `40a` or `V0`."""
_MOST_MISTAKES = 3
"""Different texts that may be mistakes; more are a way of writing."""
_MISSING = frozenset({"-", "?", "none", "na", "n/a", "nan", "null"})
_NUMBER = r"(?i)^\s*[-+]?(\d+\.?\d*(e[-+]?\d+)?|\.\d+(e[-+]?\d+)?|inf(inity)?)\s*$"
BLANKS = pa.array(pa_csv.ConvertOptions().null_values, pa.large_string())
_UNNAMED = re.compile(r"(__index_level_\d+__|Unnamed: \d+)?")
"""What pandas calls an index without a name: in Parquet, in CSV (nothing), and read from that."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type is text, plain or dictionary-encoded."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type is one number per row."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type is a list a row."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be features: numbers, or lists of numbers."""
    return is_number(kind) or (is_list(kind) and is_number(kind.value_type))


def number_block(piece: Piece, names: Sequence[str]) -> Array:
    """Return block_BF float32 of these columns side by side; raise where a number is missing."""
    parts = [_numbers(piece, name) for name in names]
    block_BF = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    finite = np.isfinite(block_BF)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise _gap(piece, row, _column_name(names, parts, column), block_BF[row, column])
    return block_BF


def list_widths(piece: Piece, names: Sequence[str]) -> tuple[int, ...]:
    """Return how long the lists of each column are, all alike by now; -1 where it has none."""
    schema = piece.batch.schema
    kinds = dict(zip(schema.names, schema.types, strict=True))
    return tuple(
        int(_list_lengths(piece.column(name).slice(0, 1))[0]) if is_list(kinds[name]) else -1
        for name in names
    )


def _column_name(names: Sequence[str], parts: Sequence[Array], column: int) -> str:
    ends = np.cumsum([part.shape[1] for part in parts])
    return names[int(np.searchsorted(ends, column, side="right"))]


def _numbers(piece: Piece, name: str) -> Array:
    column = piece.column(name)
    if not is_numeric(column.type):
        raise not_numbers(piece, name)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise _gap(piece, row, name, None)
    if not is_list(column.type):
        return _as_float32(column)[:, None]
    lengths = _list_lengths(column)
    if len(lengths) and np.any(lengths != lengths[0]):
        row = int(np.argmax(lengths != lengths[0]))
        raise DataError(
            "The lists of a column differ in length.",
            seen=f"column {name!r}: {lengths[0]} numbers at first, {lengths[row]} in "
            f"{piece.where(row)}",
            fix="give every row a list of one length",
        )
    return _as_float32(column.flatten()).reshape(len(column), -1)


def not_numbers(piece: Piece, name: str) -> DataError:
    """Return the error for a column of another type; of text it names the first value at fault."""
    kind = piece.column(name).type
    odd = odd_value(piece, name) if is_text(kind) else None
    return DataError(
        "A column that should hold numbers does not.",
        seen=f"column {name!r} of {piece.file} is {kind}" + (f": {odd}" if odd else ""),
        fix="convert it to numbers, or leave it out",
    )


def _list_lengths(column: pa.Array) -> Array:
    lengths: Array = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    return lengths


def _as_float32(column: pa.Array) -> Array:
    """Return the numbers, NaN for null; too large ones become infinite and are found later."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    with np.errstate(over="ignore"):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.float32)


def _gap(piece: Piece, row: int, name: str, value: object) -> DataError:
    return DataError(
        "A number is missing, NaN or infinite.",
        seen=f"{'null' if value is None else value} in column {name!r}, {piece.where(row)}",
        fix="fill such values or drop them before ingesting",
    )


@dataclass(frozen=True, slots=True)
class OddValue:
    """A value of a text column that is no number."""

    piece: Piece
    row: int
    value: str

    def __str__(self) -> str:
        """Return the value and where a user finds it."""
        return f"{self.value!r} in {self.piece.where(self.row)}"


def odd_value(piece: Piece, name: str) -> OddValue | None:
    """Return the first value of a text column that is no number; blanks and `NA` don't count."""
    column = piece.column(name)
    _, others = _numbers_and_others(column)
    if not others.any():
        return None
    row = int(np.argmax(others))
    return OddValue(piece, row, column[row].as_py())


def odd_values(table: Table, names: Sequence[str]) -> dict[str, OddValue | None]:
    """Return the first value that is no number of each text column, None where there is none."""
    found: dict[str, OddValue | None] = dict.fromkeys(names)
    left = list(names)
    for piece in table.pieces(left, rows=_ROWS_AT_ONCE) if left else ():
        found |= {name: odd_value(piece, name) for name in left}
        left = [name for name in left if found[name] is None]
        if not left:
            break
    return found


def why_not_numbers(table: Table, names: Sequence[str]) -> dict[str, str]:
    """Return a note on each column of the first file that is text although most are numbers.

    One that is numbers but for a few mistakes, or for marks of missing values, is refused.
    """
    first = replace(table, files=table.files[:1])
    texts = [name for name in names if is_text(first.schema().field(name).type)]
    piece = next(first.pieces(texts, rows=_ROWS_AT_ONCE), None) if texts else None
    shares = {name: _share_of_numbers(piece.column(name)) for name in texts} if piece else {}
    counts = _count_cells(first, [name for name, share in shares.items() if share > 0.5])
    for name, count in counts.items():
        if count.first is not None and count.are_mistakes():
            raise DataError(
                "A column of numbers has a cell that is none.",
                seen=f"column {name!r}: {count.first}; {count.others} such in "
                f"{count.numbers + count.others} cells",
                fix="write numbers there, or take the column out of the table; of a static graph "
                "you may name the features: "
                "siafu ingest SOURCE out.store --features COLUMN,COLUMN",
            )
    return {name: _note(name, count.first, table) for name, count in counts.items()}


@dataclass(slots=True)
class _Cells:
    """How many cells of a text column are numbers and how many other text; blanks left out."""

    numbers: int = 0
    others: int = 0
    first: OddValue | None = None
    texts: set[str] = field(default_factory=set)
    """What the others say, until it is clear that they are no mistakes."""

    def add(self, piece: Piece, name: str) -> None:
        column = piece.column(name)
        numbers, others = _numbers_and_others(column)
        self.numbers += int(numbers.sum())
        self.others += int(others.sum())
        if others.any():
            self.first = self.first or odd_value(piece, name)
            self.texts |= set(column.filter(pa.array(others)).unique().to_pylist())

    def is_writing(self) -> bool:
        """Return whether the texts are too many for mistakes, whatever the rest of the file."""
        return len(self.texts) > _MOST_MISTAKES and not self._all_missing()

    def are_mistakes(self) -> bool:
        share = self.numbers / max(1, self.numbers + self.others)
        if self._all_missing():
            return share >= _MOSTLY
        return share >= _NEARLY_ALL and not self.is_writing()

    def _all_missing(self) -> bool:
        return all(text.strip().lower() in _MISSING for text in self.texts)


def _count_cells(table: Table, names: Sequence[str]) -> dict[str, _Cells]:
    """Return the cells of each text column, as far down as they have to be looked at."""
    found = {name: _Cells() for name in names}
    left = list(names)
    for piece in table.pieces(left, rows=_ROWS_AT_ONCE) if left else ():
        for name in left:
            found[name].add(piece, name)
        left = [name for name in left if not found[name].is_writing()]
        if not left:
            break
    return found


def _note(name: str, odd: OddValue | None, table: Table) -> str:
    if odd is None:
        return f"{name} is text, though its values read as numbers: not used as a feature."
    where = f"row {odd.piece.first_row + odd.row}"
    if len(table.files) > 1:
        where += f" of {odd.piece.file.name}"
    why = f"first value that is no number: {odd.value!r}, {where}"
    return f"{name} is text ({why}): not used as a feature."


def _share_of_numbers(column: pa.Array) -> float:
    """Return how many of the values are numbers, blanks left out; 0 where there are none."""
    numbers, others = _numbers_and_others(column)
    return float(numbers.sum() / max(1, numbers.sum() + others.sum()))


def _numbers_and_others(column: pa.Array) -> tuple[Array, Array]:
    """Return which values are numbers and which are other text; blanks are neither."""
    text = column.cast(pa.large_string())
    blank = pc.or_(pc.is_in(text, BLANKS), text.is_null()).to_numpy(zero_copy_only=False)
    matches = pc.match_substring_regex(text, _NUMBER).fill_null(False)
    numbers = matches.to_numpy(zero_copy_only=False) & ~blank
    return numbers, ~numbers & ~blank


def index_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Return which of the columns are an index, by the notes pandas leaves or by their names."""
    noted = _noted(schema)
    return tuple(name for name in names if name in noted or _UNNAMED.fullmatch(name))


def _noted(schema: pa.Schema) -> set[str]:
    try:
        notes = json.loads((schema.metadata or {})[b"pandas"])
        # A range is noted as a dict, and is no column.
        return {name for name in notes["index_columns"] if isinstance(name, str)}
    except (KeyError, TypeError, ValueError, RecursionError):
        return set()

"""Text columns that were meant to be numbers, and the value that made them text."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.table_files import Piece, Table

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


@dataclass(frozen=True, slots=True)
class OddValue:
    """A value of a text column that is no number."""

    piece: Piece
    row: int
    value: str

    def __str__(self) -> str:
        """Return the value and where a user finds it."""
        return f"{self.value!r} in {self.piece.where(self.row)}"


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type is text, plain or dictionary-encoded."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


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

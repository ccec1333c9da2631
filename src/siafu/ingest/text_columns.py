"""Text columns that were meant to be numbers, and the value that made them text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.table_files import Piece, Table

_ROWS_AT_ONCE = 1 << 15
_NEARLY_ALL = 0.9
"""Share of numbers from which a column is meant to have nothing else."""
_NUMBER = r"(?i)^\s*[-+]?(\d+\.?\d*(e[-+]?\d+)?|\.\d+(e[-+]?\d+)?|inf(inity)?)\s*$"
_BLANKS = pa.array(pa_csv.ConvertOptions().null_values, pa.large_string())


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
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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

    One that is nearly all numbers is a mistake in the data: it is refused.
    """
    first = replace(table, files=table.files[:1])
    texts = [name for name in names if is_text(first.schema().field(name).type)]
    piece = next(first.pieces(texts, rows=_ROWS_AT_ONCE), None) if texts else None
    shares = {name: _share_of_numbers(piece.column(name)) for name in texts} if piece else {}
    odd = odd_values(first, [name for name, share in shares.items() if share > 0.5])
    for name, value in odd.items():
        if value is not None and shares[name] >= _NEARLY_ALL:
            raise DataError(
                "A column of numbers has a cell that is none.",
                seen=f"column {name!r}: {value}",
                fix="write a number there, or take the column out of the table",
            )
    return {name: _note(name, value, table) for name, value in odd.items()}


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
    blank = pc.or_(pc.is_in(text, _BLANKS), text.is_null()).to_numpy(zero_copy_only=False)
    matches = pc.match_substring_regex(text, _NUMBER).fill_null(False)
    numbers = matches.to_numpy(zero_copy_only=False) & ~blank
    return numbers, ~numbers & ~blank

"""Columns of any kind as they are held: float32, NaN for gaps, categories by their number.

B rows of a piece, W numbers per row of a column, R of all columns.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import Array, FeatureColumn
from siafu.ingest.tables.cells import READER_OF_KIND, Words, dates_of, days_of, words_of
from siafu.ingest.tables.columns import as_float32, is_list, is_number, is_text, list_lengths
from siafu.ingest.tables.files import Piece
from siafu.ingest.tables.kinds import MOST_CATEGORIES, Decided
from siafu.ingest.tables.problems import FEW, Problems
from siafu.record import counted

_KIND_SHOWN = {"number": "numbers", "boolean": "yes and no", "date": "dates", "category": "text"}


class Categories:
    """The different texts of a column, numbered as they are met."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self.lost = 0
        """Rows with a text that came when there were too many."""

    def codes(self, words: Words) -> Array:
        """Return float64 [B]: the number of each row's text, NaN for gaps."""
        code_V = np.empty(len(words.values))
        for at, text in enumerate(words.values.to_pylist()):
            code = self._code_of.get(text)
            if code is None and not words.is_gap_V[at] and len(self._code_of) < MOST_CATEGORIES:
                code = self._code_of[text] = len(self._code_of)
            code_V[at] = np.nan if code is None else code
        codes_B = words.spread(code_V)
        self.lost += int(words.is_odd(code_V).sum())
        return codes_B

    def met(self) -> list[str]:
        """Return the texts by their numbers, for `take_up`."""
        return list(self._code_of)

    def take_up(self, texts: Sequence[str]) -> None:
        """Know the texts that were met before."""
        self._code_of = {text: code for code, text in enumerate(texts)}

    def names(self) -> tuple[str, ...]:
        """Return the texts in order."""
        return tuple(sorted(self._code_of))

    def ranks(self) -> Array:
        """Return float32: the place of each text in order, by its number."""
        place_of = {text: place for place, text in enumerate(self.names())}
        return np.array([place_of[text] for text in self._code_of], np.float32)


class FeatureReader:
    """Reads one column, and counts its gaps and the cells that are not what the column is."""

    def __init__(self, decided: Decided) -> None:
        self.name, self.kind = decided.name, decided.kind
        self._list_width, self._first = decided.width, decided.first
        self.categories = Categories()
        self.begin()

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return max(1, self._list_width) if self._list_width >= 0 else 1

    def begin(self) -> None:
        """Count from the first row; categories that were met stay known."""
        self.rows = self.odd = self.categories.lost = 0
        self.first = self.first_gap = ""
        self.gaps_W = np.zeros(self.width, np.int64)

    def learn(self, piece: Piece) -> None:
        """Meet the categories of some rows."""
        self.categories.codes(words_of(piece.column(self.name), self._first))

    def block(self, piece: Piece) -> Array:
        """Return block_BW float32; categories by the number they were met as."""
        column = piece.column(self.name)
        if self._list_width >= 0:
            block_BW = self._lists(piece, column)
        else:
            block_BW = self._values(piece, column)[:, None]
        self.rows += len(block_BW)
        if is_number(column.type) or self._list_width >= 0:
            self._note_infinite(piece, block_BW)
        gaps_W = np.isnan(block_BW).sum(axis=0)
        if not self.first_gap and gaps_W.any():
            at = int(np.argmax(np.isnan(block_BW).any(axis=1)))
            self.first_gap = f"in column {self.name!r}, {piece.where(at)}"
        self.gaps_W += gaps_W
        return block_BW

    def _values(self, piece: Piece, column: pa.Array) -> Array:
        if self.kind == "category":
            if is_number(column.type):
                raise self._other_type(piece, column.type)
            return self.categories.codes(words_of(column, self._first)).astype(np.float32)
        if is_number(column.type):
            return as_float32(column)
        if self.kind == "date" and not is_text(column.type) and not pa.types.is_null(column.type):
            return self._days(piece, column)
        if not (is_text(column.type) or pa.types.is_null(column.type)):
            raise self._other_type(piece, column.type)
        words = words_of(column)
        value_V = (
            dates_of(words.values, self._first)
            if self.kind == "date"
            else READER_OF_KIND[self.kind](words.values)
        )
        odd_B = words.is_odd(value_V)
        if odd_B.any():
            at = int(np.argmax(odd_B))
            self._note(odd_B, f"{column[at].as_py()!r} in {piece.where(at)}")
        value_V = np.where(np.isfinite(value_V), value_V, np.nan)
        with np.errstate(over="ignore"):
            return words.spread(value_V).astype(np.float32)

    def _days(self, piece: Piece, column: pa.Array) -> Array:
        if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
            raise self._other_type(piece, column.type)
        return days_of(column).astype(np.float32)

    def _lists(self, piece: Piece, column: pa.Array) -> Array:
        if not (is_list(column.type) and is_number(column.type.value_type)):
            raise self._other_type(piece, column.type)
        is_there = ~column.is_null().to_numpy(zero_copy_only=False)
        lengths = list_lengths(column.drop_null())
        wrong = lengths != self._list_width
        if wrong.any() or self._list_width == 0:
            row = int(np.flatnonzero(is_there)[np.argmax(wrong)])
            raise DataError(
                "The lists of a column differ in length, or are empty.",
                seen=f"column {self.name!r}: {self._list_width} numbers at first, "
                f"{int(lengths[np.argmax(wrong)])} in {piece.where(row)}",
                fix="give every row a list of one length, or name the features with --features",
            )
        block_BW = np.full((len(column), self._list_width), np.nan, np.float32)
        block_BW[is_there] = as_float32(column.flatten()).reshape(-1, self._list_width)
        return block_BW

    def _note_infinite(self, piece: Piece, block_BW: Array) -> None:
        odd_BW = np.isinf(block_BW)
        if odd_BW.any():
            at, number = (int(i) for i in np.argwhere(odd_BW)[0])
            self._note(odd_BW, f"{block_BW[at, number]} in {piece.where(at)}")
            block_BW[odd_BW] = np.nan

    def _note(self, odd: Array, first: str) -> None:
        self.odd += int(odd.sum())
        self.first = self.first or first

    def _other_type(self, piece: Piece, kind: pa.DataType) -> DataError:
        return DataError(
            f"A column that should hold {_KIND_SHOWN[self.kind]} does not.",
            seen=f"column {self.name!r} of {piece.file} is {kind}",
            fix="convert it, or leave it out of --features",
        )

    def check(self, problems: Problems, *, most_gaps: int | None = None) -> None:
        """Note more odd cells than a few, and more gaps than there may be."""
        most_odd = FEW * self.rows if most_gaps is None else most_gaps
        if most_gaps is not None and self.gaps_W.max() - self.odd > most_gaps:
            problems.add(
                "A number is missing, NaN or infinite.",
                seen=f"{int(self.gaps_W.max()):,} gaps, the first {self.first_gap}",
                fix="fill such values or drop them before ingesting",
            )
        if self.odd > most_odd:
            problems.add(
                f"A column of {_KIND_SHOWN[self.kind]} has cells that are none.",
                seen=f"column {self.name!r}: {self.first}; {self.odd:,} such in "
                f"{counted(self.rows, 'row')}",
                fix=f"write {_KIND_SHOWN[self.kind]} there{self._order()} or leave them empty; "
                "training can do without the column (--features -COLUMN)",
            )

    def _order(self) -> str:
        return f", {self._first} first," if self.kind == "date" and self._first else ""

    def notes(self) -> list[str]:
        """Return sentences for the user, once all was read."""
        notes = []
        if self.kind == "category" and self._first:
            notes.append(
                f"{self.name}: {self._first} is taken for a code like the others, not for a gap."
            )
        if self.odd:
            notes.append(
                f"{self.name}: {counted(self.odd, 'cell')} among {_KIND_SHOWN[self.kind]} taken as "
                f"{'a gap' if self.odd == 1 else 'gaps'}, the first {self.first}."
            )
        if self.categories.lost:
            notes.append(
                f"{self.name}: more than {MOST_CATEGORIES:,} different texts; those met later, "
                f"in {counted(self.categories.lost, 'row')}, are taken as gaps."
            )
        return notes

    def columns(self) -> list[FeatureColumn]:
        """Return what a schema says, once all was read."""
        categories = self.categories.names() if self.kind == "category" else ()
        kind: Any = self.kind
        first: Any = (self._first or None) if self.kind == "date" else None
        return [
            FeatureColumn(name=name, kind=kind, first=first, categories=categories, gaps=int(gaps))
            for name, gaps in zip(self.names(), self.gaps_W, strict=True)
        ]

    def names(self) -> list[str]:
        """Return what its numbers are called: a list is several."""
        if self._list_width < 0:
            return [self.name]
        return [f"{self.name}[{place}]" for place in range(self.width)]

    def state(self) -> dict[str, Any]:
        """Return what another process needs to go on."""
        return {
            "rows": self.rows,
            "odd": self.odd,
            "first": self.first,
            "gaps": self.gaps_W.tolist(),
            "met": self.categories.met(),
            "lost": self.categories.lost,
        }

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from where another process was."""
        self.rows, self.odd, self.first = state["rows"], state["odd"], state["first"]
        self.gaps_W = np.array(state["gaps"], np.int64)
        self.categories.take_up(state["met"])
        self.categories.lost = state["lost"]


def read_block(piece: Piece, readers: Sequence[FeatureReader]) -> Array:
    """Return block_BR float32 of these columns side by side."""
    parts = [reader.block(piece) for reader in readers]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def place_categories(block_BR: Array, readers: Sequence[FeatureReader]) -> None:
    """Turn the numbers that categories were met as into their places in order."""
    at = 0
    for reader in readers:
        if reader.kind == "category":
            column = block_BR[:, at]
            known = ~np.isnan(column)
            column[known] = reader.categories.ranks()[column[known].astype(np.int64)]
        at += reader.width


def csv_types(readers: Iterable[FeatureReader], found: dict[str, pa.DataType]) -> dict[str, Any]:
    """Return the types that CSV columns are read as: the guess sees only the first rows."""
    types: dict[str, Any] = {}
    for reader in readers:
        kind = found[reader.name]
        if reader.kind == "category" or is_text(kind):
            types[reader.name] = pa.large_string()
        elif is_number(kind) and not pa.types.is_boolean(kind):
            types[reader.name] = pa.float64()
        else:
            types[reader.name] = kind
    return types

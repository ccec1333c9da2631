"""Columns to predict, of nodes or edges: one class, any number of classes, or numbers.

All rows are scanned before the first is written, and decide. B rows of a piece, C classes, T
numbers.
"""

from collections import Counter
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import Array, TargetColumn
from siafu.graph.columns import NO_LABELS
from siafu.ingest.tables.cells import amounts_of, words_of
from siafu.ingest.tables.classes import (
    NO_LABEL,
    ClassName,
    LabelLists,
    check_label_kind,
    unknown_note,
)
from siafu.ingest.tables.columns import as_float64, is_list, is_number, number_block
from siafu.ingest.tables.files import Piece, Table
from siafu.record import counted, shortened

TargetKind = Literal["class", "labels", "number"]
_LARGEST = 2**53
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_FEW_CLASSES = 20
_MOST_CLASSES = 1_000
_ROWS_A_CLASS = 5
_MOST_COUNTED = 1 << 17
_MOSTLY, _HALF = 0.9, 0.5
_HOLES = 2
"""Whole numbers that are spread further than so many each are no numbers of classes."""


class Target(Protocol):
    """What is to be predicted of the rows of a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        ...

    @property
    def kind(self) -> TargetKind:
        """What it is, once all pieces were scanned."""
        ...

    def begin(self) -> None:
        """Forget what was scanned."""
        ...

    def scan(self, piece: Piece) -> None:
        """Learn what some rows hold."""
        ...

    def class_names(self) -> list[ClassName]:
        """Return the classes in the order of their numbers; none where it is numbers."""
        ...

    def block(self, piece: Piece) -> Array:
        """Return the targets of some rows: int64 [B], uint8 [B, C] or float32 [B, T]."""
        ...

    def described(self) -> list[TargetColumn]:
        """Return what a schema says of the columns."""
        ...

    def notes(self) -> list[str]:
        """Return sentences for the user."""
        ...


def target_reader(
    table: Table, columns: tuple[str, ...], asked: TargetKind | None = None
) -> Target:
    """Return the reader that fits the type and number of the columns."""
    if len(columns) > 1:
        return SeveralColumns(columns, asked)
    kind = table.schema().field(columns[0]).type
    check_label_kind(table, columns[0], kind.value_type if is_list(kind) else kind)
    if pa.types.is_fixed_size_list(kind):
        return SeveralColumns(columns, asked, width=kind.list_size)
    if is_list(kind):
        return SeveralClasses(columns[0])
    return OneColumn(columns[0], asked, names_are_text=not table.is_csv)


class OneColumn:
    """One column: classes of text or whole numbers, or numbers."""

    def __init__(self, column: str, asked: TargetKind | None, *, names_are_text: bool) -> None:
        self.columns = (column,)
        self._asked, self._names_are_text = asked, names_are_text
        self.begin()

    def begin(self) -> None:
        """Forget what was scanned."""
        self._counts: Counter[ClassName] = Counter()
        self._number_rows = self._text_rows = self._gaps = 0
        self._infinite: Counter[str] = Counter()
        self._first_text = self._first_number = ""
        self._fraction = ""
        self._decided: TargetKind | None = None
        self._names: list[ClassName] = []
        self._has_none = False

    @property
    def kind(self) -> TargetKind:
        """Classes or numbers, once all pieces were scanned."""
        if self._decided is None:
            self._decided = self._decide()
        return self._decided

    def scan(self, piece: Piece) -> None:
        """Learn what some rows hold."""
        column = piece.column(self.columns[0])
        if is_number(column.type):
            self._scan_numbers(piece, as_float64(column))
            return
        words = words_of(column)
        counts_V = np.bincount(words.codes_B[words.codes_B >= 0], minlength=len(words.values))
        numbers_V = amounts_of(words.values)
        infinite_V = np.abs(numbers_V) > _LARGEST_FLOAT
        is_gap_V = words.is_gap_V | infinite_V
        is_text_V = ~is_gap_V & np.isnan(numbers_V)
        self._gaps += len(column) - int(counts_V[~is_gap_V].sum())
        if is_text_V.any() and not self._first_text:
            at = int(np.argmax(np.append(is_text_V, False)[words.codes_B]))
            self._first_text = f"{column[at].as_py()!r} in {piece.where(at)}"
        self._text_rows += int(counts_V[is_text_V].sum())
        self._number_rows += int(counts_V[~is_gap_V & ~is_text_V].sum())
        numbers_V = np.where(infinite_V, np.nan, numbers_V)
        large_V = np.abs(numbers_V) >= _LARGEST
        if large_V.any() and not self._names_are_text:
            raise _too_large(numbers_V[large_V], piece, self.columns[0])
        fractions = numbers_V[np.isfinite(numbers_V) & (numbers_V % 1 != 0)]
        if len(fractions):
            self._fraction = self._fraction or f"{fractions[0]:g}"
        if len(self._counts) <= _MOST_COUNTED:
            for at, text in enumerate(words.values.to_pylist()):
                if not is_gap_V[at]:
                    self._counts[text] += int(counts_V[at])
        for at in np.flatnonzero(infinite_V).tolist():
            self._infinite[words.values[at].as_py()] += int(counts_V[at])

    def _scan_numbers(self, piece: Piece, values_B: Array) -> None:
        known = values_B[np.abs(values_B) <= _LARGEST_FLOAT]
        self._gaps += len(values_B) - len(known)
        self._infinite["inf"] += len(values_B) - len(known) - int(np.isnan(values_B).sum())
        if not len(known):
            return
        self._number_rows += len(known)
        self._first_number = self._first_number or f"{known[0]:g} in {piece.file}"
        fractions = known[known % 1 != 0]
        if len(fractions):
            self._fraction = self._fraction or f"{fractions[0]:g}"
        elif not self._fraction and len(self._counts) <= _MOST_COUNTED:
            if np.abs(known).max() >= _LARGEST:
                raise _too_large(known, piece, self.columns[0])
            found, counts = np.unique(known, return_counts=True)
            for value, count in zip(found.tolist(), counts.tolist(), strict=True):
                self._counts[int(value)] += count

    def _decide(self) -> TargetKind:
        asked = self._asked == "number"
        if self._text_rows and (asked or self._first_number or self._is_mostly_numbers()):
            raise self._mixed()
        if not self._text_rows and self._is_number():
            return "number"
        if self._text_rows:  # beside other words it is one of them
            self._gaps -= self._infinite.total()
            self._counts.update(self._infinite)
            self._infinite.clear()
        self._counts = self._class_counts()
        if NO_LABEL in self._counts and set(self._counts) != {NO_LABEL, 1}:
            self._gaps += self._counts.pop(NO_LABEL)
            self._has_none = True
        self._names = sorted(self._counts)
        return "class"

    def _class_counts(self) -> Counter[ClassName]:
        """Return the classes by the names they are to have."""
        if self._text_rows or self._names_are_text:
            return self._counts
        names = list(self._counts)
        values = amounts_of(pa.array(map(str, names), pa.string()))
        counts: Counter[ClassName] = Counter()
        for name, value in zip(names, values.tolist(), strict=True):
            counts[int(value)] += self._counts[name]
        return counts

    def _is_mostly_numbers(self) -> bool:
        # Fractions are nobody's classes: half of them is enough to be meant as numbers.
        share = _HALF if self._fraction else _MOSTLY
        return self._number_rows >= share * (self._number_rows + self._text_rows)

    def _is_number(self) -> bool:
        if self._asked is not None:
            return self._asked == "number"
        if self._fraction:
            return True
        distinct = len(self._counts)
        few = distinct <= _MOST_CLASSES and self._number_rows >= _ROWS_A_CLASS * distinct
        return not (distinct <= _FEW_CLASSES or (few and self._is_dense()))

    def _is_dense(self) -> bool:
        """Whether whole numbers leave few out, as those of classes do, and salaries do not."""
        values = amounts_of(pa.array(map(str, self._counts), pa.string()))
        return float(values.max() - values.min()) < _HOLES * len(values)

    def _mixed(self) -> DataError:
        other = self._first_number or f"{self._number_rows:,} numbers"
        return DataError(
            "The target mixes numbers and text." if self._number_rows else "The target is text.",
            seen=f"column {self.columns[0]!r}: {self._first_text}, beside {other}; "
            f"{counted(self._text_rows, 'cell')} of text",
            fix="write a number there or leave the cell empty; of classes write all as text",
        )

    def class_names(self) -> list[ClassName]:
        """Return the classes, sorted; none where it is numbers."""
        return [] if self.kind == "number" else self._names

    def block(self, piece: Piece) -> Array:
        """Return y_B int64, -1 for none, or y_B1 float32, NaN for none."""
        column = piece.column(self.columns[0])
        if is_number(column.type):
            values_B = as_float64(column)
        else:
            words = words_of(column)
            if self.kind == "class" and isinstance(self._names[0] if self._names else 0, str):
                number_of = {name: number for number, name in enumerate(self._names)}
                found = [number_of.get(text, NO_LABEL) for text in words.values.to_pylist()]
                codes_V = np.where(words.is_gap_V, NO_LABEL, np.array(found, np.int64))
                return np.append(codes_V, NO_LABEL)[words.codes_B]
            values_B = words.spread(amounts_of(words.values))
        if self.kind == "number":
            known_B = np.abs(values_B) <= _LARGEST_FLOAT
            return np.where(known_B, values_B, np.nan).astype(np.float32)[:, None]
        return self._classes_of(values_B)

    def _classes_of(self, values_B: Array) -> Array:
        names = np.array(self._names, np.float64)
        if not len(names):
            return np.full(len(values_B), NO_LABEL, np.int64)
        known = np.nan_to_num(values_B, nan=names[0] - 1)
        at = np.minimum(np.searchsorted(names, known), len(names) - 1)
        return np.where(names[at] == known, at, NO_LABEL).astype(np.int64)

    def described(self) -> list[TargetColumn]:
        """Return what a schema says of the column."""
        name = self.columns[0]
        if self.kind == "number":
            return [TargetColumn(name=name, kind="number", gaps=self._gaps)]
        counts = tuple(self._counts[one] for one in self._names)
        return [
            TargetColumn(
                name=name, kind="class", classes=tuple(self._names), counts=counts, gaps=self._gaps
            )
        ]

    def notes(self) -> list[str]:
        """Return what was decided, and what was made of -1."""
        name = self.columns[0]
        decision, infinite = self._decision(name), self._infinite.total()
        if not infinite:
            return decision
        told = counted(infinite, "infinite number")
        return [
            *decision,
            f"Target {name} has {told}, taken as {'a gap' if infinite == 1 else 'gaps'}.",
        ]

    def _decision(self, name: str) -> list[str]:
        if self.kind == "number":
            why = f"it holds {self._fraction}" if self._fraction else "it has many whole numbers"
            asked = "as asked" if self._asked else f"since {why}; --label-as classes takes "
            asked += "" if self._asked else "each number as a class"
            return [f"Target {name} is a number to be told ({asked})."]
        notes = ["The label -1 was read as: no label."] if self._has_none else []
        are_numbers = self._names and not isinstance(self._names[0], str)
        if are_numbers and len(self._names) > _FEW_CLASSES and not self._asked:
            notes.append(
                f"Target {name} is a class, of {len(self._names):,} whole numbers; "
                "--label-as numbers takes them as such."
            )
        return notes


def _too_large(values: Array, piece: Piece, name: str) -> DataError:
    return DataError(
        "A label is not a class.",
        seen=f"{values[np.abs(values) >= _LARGEST][0]:.0f} in column {name!r} of {piece.file}",
        fix="labels are whole numbers below 2^53, other numbers, or text",
    )


class SeveralClasses(LabelLists):
    """A list of classes per row."""

    @property
    def kind(self) -> TargetKind:
        """Any number of classes."""
        return "labels"

    def described(self) -> list[TargetColumn]:
        """Return what a schema says of the column."""
        classes = tuple(self.class_names())
        return [TargetColumn(name=self.columns[0], kind="labels", classes=classes, gaps=self.gaps)]


class SeveralColumns:
    """Several columns, or a fixed-size list: 0 or 1 for each class, or numbers."""

    def __init__(
        self, columns: tuple[str, ...], asked: TargetKind | None, *, width: int | None = None
    ) -> None:
        self.columns, self._asked = columns, asked
        self._names: list[ClassName] = list(columns if width is None else range(width))
        self.begin()

    def begin(self) -> None:
        """Forget what was scanned."""
        self._other = ""
        self._ones_C = np.zeros(len(self._names), np.int64)
        self._gaps_C = np.zeros(len(self._names), np.int64)
        self._unknown = 0

    @property
    def kind(self) -> TargetKind:
        """Classes where all is 0 and 1, else numbers."""
        if self._asked is not None:
            return "number" if self._asked == "number" else "labels"
        return "number" if self._other else "labels"

    def scan(self, piece: Piece) -> None:
        """Learn whether there is something else than 0 and 1."""
        block_BC = number_block(piece, self.columns, gaps=True)
        self._gaps_C += np.isnan(block_BC).sum(axis=0)
        unknown_B = np.asarray(np.isnan(block_BC).any(axis=1))
        self._unknown += int(unknown_B.sum())
        self._ones_C += (block_BC[~unknown_B] == 1).sum(axis=0)
        wrong = (block_BC != 0) & (block_BC != 1) & ~np.isnan(block_BC)
        if wrong.any() and not self._other:
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            self._other = (
                f"{block_BC[row, column]:g} for class {self._names[column]!r}, {piece.where(row)}"
            )

    def class_names(self) -> list[ClassName]:
        """Return the classes in the order of their numbers; none where it is numbers."""
        if self.kind == "labels" and self._other:
            raise DataError(
                "A label column holds something else than 0 and 1.",
                seen=self._other,
                fix="give one column of class names, or columns of 0 and 1",
            )
        return self._names if self.kind == "labels" else []

    def block(self, piece: Piece) -> Array:
        """Return y_BC uint8, all 255 in a row with a gap, or y_BT float32."""
        block_BC = number_block(piece, self.columns, gaps=True)
        if self.kind == "number":
            return block_BC
        unknown_B = np.asarray(np.isnan(block_BC).any(axis=1))
        return np.where(unknown_B[:, None], NO_LABELS, block_BC).astype(np.uint8)

    def described(self) -> list[TargetColumn]:
        """Return what a schema says of the columns."""
        if self.kind == "number":
            return [
                TargetColumn(name=str(name), kind="number", gaps=int(gaps))
                for name, gaps in zip(self._names, self._gaps_C, strict=True)
            ]
        counts = tuple(self._ones_C.tolist())
        name = ", ".join(self.columns)
        classes = tuple(self._names)
        return [
            TargetColumn(
                name=name, kind="labels", classes=classes, counts=counts, gaps=self._unknown
            )
        ]

    def notes(self) -> list[str]:
        """Return what was decided."""
        if self.kind == "labels":
            return unknown_note(self._unknown, "a gap in a column")
        if self._asked:
            return []
        shown = shortened([str(name) for name in self._names])
        return [f"Targets {shown} are numbers to be told, not 0 and 1 per class: {self._other}."]

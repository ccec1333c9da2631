"""Columns of classes, of any type, as numbers: labels of nodes, types of edges.

Nodes are read twice: `scan` learns which classes there are, `block` writes the rows. Edges are read
once: a value gets a code when it is met, and its type once all are known.
B rows of a piece, T types.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array, EdgeTypeName
from siafu.graph.columns import NO_LABELS
from siafu.ingest.tables.columns import is_number, is_text
from siafu.ingest.tables.files import Piece, Table

ClassName = int | str
NO_LABEL = -1
_LARGEST = 2**53
MOST_TYPES = 1 << 16
"""More different values than this are no types; a code fits in two bytes."""
_USUAL_NAMES = ("edge_type", "type", "relation")


def check_label_kind(table: Table, name: str, kind: pa.DataType) -> None:
    """Raise unless values of this type can be classes."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (is_number(kind) or is_text(kind) or pa.types.is_null(kind)):
        raise DataError(
            "Labels are neither whole numbers nor text.",
            seen=f"column {name!r} of the {table.what} is {kind}",
            fix="convert the column, or name another: --label COLUMN",
        )


class Vocabulary:
    """Class names in the order they were met, all numbers or all text."""

    def __init__(self) -> None:
        self._code_of: dict[ClassName, int] = {}
        self._rank = np.empty(0, dtype=np.int64)

    def add(self, column: pa.Array, piece: Piece) -> None:
        """Learn the values of a column."""
        for value in column.unique().to_pylist():
            name = _class_name(value, piece)
            if name is None or name in self._code_of:
                continue
            if self._code_of and not isinstance(name, type(next(iter(self._code_of)))):
                raise DataError(
                    "The labels mix numbers and text.",
                    seen=f"{next(iter(self._code_of))!r} and {name!r} in {piece.file}",
                    fix="write all labels as text or all as whole numbers",
                )
            self._code_of[name] = len(self._code_of)

    def drop_no_label(self) -> bool:
        """Forget -1 where it can't be a class, and return whether it was there."""
        others = self._code_of.keys() - {NO_LABEL}
        if NO_LABEL not in self._code_of or others == {1}:
            return False
        self._code_of.pop(NO_LABEL)
        return True

    def names(self) -> list[ClassName]:
        """Return the class names, sorted."""
        return sorted(self._code_of)

    def encode(self, column: pa.Array, piece: Piece) -> Array:
        """Return the class number of each value, -1 where it is none."""
        number_of = {name: number for number, name in enumerate(self.names())}
        encoded = column.dictionary_encode()
        numbers = [
            number_of.get(name, NO_LABEL) if name is not None else NO_LABEL
            for name in (_class_name(value, piece) for value in encoded.dictionary.to_pylist())
        ]
        # The last entry serves nulls, whose index is filled with -1.
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.array([*numbers, NO_LABEL], dtype=np.int64)[codes]


def _class_name(value: object, piece: Piece) -> ClassName | None:
    if value is None or value == "" or value != value:
        return None
    whole = isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer())
    # Numbers of many digits become floats in CSV files, where neighbours are alike.
    if isinstance(value, bool | int | float) and whole and abs(value) < _LARGEST:
        return int(value)
    if isinstance(value, str):
        return value
    raise DataError(
        "A label is not a class.",
        seen=f"{value!r} in {piece.file}",
        fix="labels are whole numbers below 2^53, or text; predicting other numbers is not "
        "supported",
    )


class SingleLabels:
    """One label a node: whole numbers or text, numbered in sorted order."""

    def __init__(self, column: str) -> None:
        self.columns = (column,)
        self._vocabulary = Vocabulary()
        self._dropped: bool | None = None

    def scan(self, piece: Piece) -> None:
        """Learn the classes of some nodes."""
        self._vocabulary.add(piece.column(self.columns[0]), piece)

    def class_names(self) -> list[ClassName]:
        """Return the classes in the order of their numbers."""
        if self._dropped is None:
            self._dropped = self._vocabulary.drop_no_label()
        return self._vocabulary.names()

    def block(self, piece: Piece) -> Array:
        """Return y_B int64."""
        return self._vocabulary.encode(piece.column(self.columns[0]), piece)

    def notes(self) -> list[str]:
        """Return what was made of -1."""
        return ["The label -1 was read as: no label."] if self._dropped else []


class LabelLists:
    """A list of labels a node."""

    def __init__(self, column: str) -> None:
        self.columns = (column,)
        self._vocabulary = Vocabulary()
        self.begin()

    def begin(self) -> None:
        """Count anew the rows without a list; a class that was met stays."""
        self.gaps = 0

    def scan(self, piece: Piece) -> None:
        """Learn the classes of some nodes."""
        column = piece.column(self.columns[0])
        self.gaps += column.null_count
        self._vocabulary.add(column.flatten(), piece)

    def class_names(self) -> list[ClassName]:
        """Return the classes in the order of their numbers."""
        return self._vocabulary.names()

    def block(self, piece: Piece) -> Array:
        """Return y_BC uint8, all 255 in a row without a list."""
        column = piece.column(self.columns[0])
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        classes = self._vocabulary.encode(column.flatten(), piece)
        rows = np.repeat(np.arange(len(column)), lengths)
        y_BC = np.zeros((len(column), len(self.class_names())), dtype=np.uint8)
        y_BC[rows[classes >= 0], classes[classes >= 0]] = 1
        repeated = y_BC.sum(axis=1) != np.bincount(rows[classes >= 0], minlength=len(column))
        if repeated.any():
            row = int(np.argmax(repeated))
            raise DataError(
                "A node names one label twice.",
                seen=f"{column[row].as_py()} in {piece.where(row)}",
                fix="list each label once; for one 0 or 1 a class use a fixed-size list column",
            )
        y_BC[column.is_null().to_numpy(zero_copy_only=False)] = NO_LABELS
        return y_BC

    def notes(self) -> list[str]:
        """Return how many rows have no list, which is not an empty one."""
        return unknown_note(self.gaps, "no list")


def unknown_note(count: int, why: str) -> list[str]:
    """Return a sentence about nodes whose labels are not known, if there are some."""
    who = "1 node has" if count == 1 else f"{count:,} nodes have"
    return [f"{who} {why} of labels: in no split, but predicted."] if count else []


def find_type_column(schema: pa.Schema, taken: Sequence[str]) -> str | None:
    """Return the column that holds edge types by its name, unless it is used otherwise."""
    free = [name for name in _USUAL_NAMES if name in schema.names and name not in taken]
    return next((name for name in free if _can_be_types(schema.field(name).type)), None)


def _can_be_types(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or _is_text(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


class TypeColumn:
    """Learns the types of a column while it is read."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._code_of: dict[EdgeTypeName, int] = {}

    def codes(self, piece: Piece) -> Array:
        """Return codes_B uint16 of a piece; raise where a value is missing or no type."""
        column = piece.column(self.column)
        if not _can_be_types(column.type):
            raise DataError(
                "The edge types are neither text nor whole numbers.",
                seen=f"column {self.column!r} of {piece.file} is {column.type}",
                fix="convert the column; a missing value (NaN) makes whole numbers floats",
            )
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        if len(encoded.dictionary) > MOST_TYPES:
            raise self._too_many(piece)
        values = encoded.dictionary.to_pylist()
        for value in values:
            if value == "" or (isinstance(value, int) and value < 0):
                raise self._no_type(piece, column, value)
        if encoded.null_count:
            raise self._no_type(piece, column, None)
        return np.array([self._code(value, piece) for value in values], np.uint16)[codes]

    def _code(self, value: EdgeTypeName, piece: Piece) -> int:
        code = self._code_of.setdefault(value, len(self._code_of))
        first = next(iter(self._code_of))
        if type(first) is not type(value):
            raise DataError(
                "The edge types mix numbers and text.",
                seen=f"{first!r} and {value!r} in {piece.file}",
                fix="write all types as text or all as whole numbers",
            )
        if code >= MOST_TYPES:
            raise self._too_many(piece)
        return code

    def _too_many(self, piece: Piece) -> DataError:
        return DataError(
            "An edge table has too many types.",
            seen=f"more than {MOST_TYPES:,} in column {self.column!r} of {piece.file}",
            fix="name the column of the types with --edge-type, or rename this one",
        )

    def _no_type(self, piece: Piece, column: pa.Array, value: EdgeTypeName | None) -> DataError:
        at = column.is_null() if value is None else pc.equal(column, value).fill_null(False)
        shown = "null" if value is None else repr(value)
        return DataError(
            "An edge has no type.",
            seen=f"{shown} in column {self.column!r}, {piece.where(pc.index(at, True).as_py())}",
            fix="give every edge a type, text or a number from 0; or rename the column",
        )

    def met(self) -> list[EdgeTypeName]:
        """Return the values by their codes, for `take_up`."""
        return list(self._code_of)

    def take_up(self, values: Sequence[EdgeTypeName]) -> None:
        """Know the values that another process met before."""
        self._code_of = {value: code for code, value in enumerate(values)}

    def type_of_code(self) -> Array:
        """Return uint16 [T]: the type of each code, once all pieces were read."""
        type_of = {name: number for number, name in enumerate(sorted(self._code_of))}
        return np.array([type_of[name] for name in self._code_of], np.uint16)

    def names(self) -> tuple[EdgeTypeName, ...]:
        """Return what the user calls the types; nothing where they are 0 to T - 1 already."""
        names = tuple(sorted(self._code_of))
        return () if names == tuple(range(len(names))) else names

    def __len__(self) -> int:
        return len(self._code_of)

"""The type column of an edge table: text or whole numbers as numbers from 0, in sorted order.

Edges are read once: a value gets a code when it is met, and its type once all of them are known.
B rows of a piece, T types.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array, EdgeTypeName
from siafu.ingest.table_files import Piece

MOST_TYPES = 1 << 16
"""More different values than this are no types; a code fits in two bytes."""
_USUAL_NAMES = ("edge_type", "type", "relation")


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

"""Types of columns, columns of numbers as float32 arrays without gaps, and pandas' index.

B rows of a piece, F numbers per row.
"""

import json
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.tables.cells import numbers_of, words_of
from siafu.ingest.tables.files import Piece

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


def number_block(piece: Piece, names: Sequence[str], *, gaps: bool = False) -> Array:
    """Return block_BF float32 of these columns side by side.

    Raises where a number is missing or infinite, unless there may be gaps: those are NaN.
    """
    parts = [_numbers(piece, name, gaps=gaps) for name in names]
    block_BF = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    finite = np.isfinite(block_BF)
    if gaps:
        return np.where(finite, block_BF, np.float32(np.nan))
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise _gap(piece, row, _column_name(names, parts, column), block_BF[row, column])
    return block_BF


def _column_name(names: Sequence[str], parts: Sequence[Array], column: int) -> str:
    ends = np.cumsum([part.shape[1] for part in parts])
    return names[int(np.searchsorted(ends, column, side="right"))]


def _numbers(piece: Piece, name: str, *, gaps: bool) -> Array:
    column = piece.column(name)
    if not is_numeric(column.type):
        raise not_numbers(piece, name)
    fixed = pa.types.is_fixed_size_list(column.type)
    if column.null_count and not (gaps and (fixed or not is_list(column.type))):
        row = pc.index(column.is_null(), True).as_py()
        raise _gap(piece, row, name, None)
    if not is_list(column.type):
        return as_float32(column)[:, None]
    lengths = list_lengths(column)
    if not fixed and len(lengths) and np.any(lengths != lengths[0]):
        row = int(np.argmax(lengths != lengths[0]))
        raise DataError(
            "The lists of a column differ in length.",
            seen=f"column {name!r}: {lengths[0]} numbers at first, {lengths[row]} in "
            f"{piece.where(row)}",
            fix="give every row a list of one length",
        )
    if not column.null_count:
        return as_float32(column.flatten()).reshape(len(column), -1)
    block_BF = np.full((len(column), column.type.list_size), np.nan, np.float32)
    known = as_float32(column.drop_null().flatten()).reshape(-1, block_BF.shape[1])
    block_BF[column.is_valid().to_numpy(zero_copy_only=False)] = known
    return block_BF


def not_numbers(piece: Piece, name: str) -> DataError:
    """Return the error for a column of another type; of text it names the first value at fault."""
    column = piece.column(name)
    seen = f"column {name!r} of {piece.file} is {column.type}"
    if is_text(column.type):
        words = words_of(column)
        odd_B = words.is_odd(numbers_of(words.values))
        if odd_B.any():
            row = int(np.argmax(odd_B))
            seen += f": {column[row].as_py()!r} in {piece.where(row)}"
    return DataError(
        "A column that should hold numbers does not.",
        seen=seen,
        fix="convert it to numbers, or leave it out",
    )


def list_lengths(column: pa.Array) -> Array:
    """Return how long each list of a column is."""
    lengths: Array = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    return lengths


def as_float64(column: pa.Array) -> Array:
    """Return the numbers, NaN for null."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def as_float32(column: pa.Array) -> Array:
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

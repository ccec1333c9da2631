"""Columns of numbers as float32 arrays without gaps.

B rows of a piece, F numbers a row.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.table_files import Piece
from siafu.ingest.text_columns import is_text, odd_value


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type is one number a row."""
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

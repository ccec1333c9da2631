"""Times of events from columns of numbers, dates or ISO text."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array
from siafu.ingest.numbers import is_number
from siafu.ingest.table_files import Piece
from siafu.ingest.text_columns import is_text

DATE_TICKS = 1_000_000
"""Dates are kept as microseconds of 1970, in UTC."""


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """Times of some events: int64 or float64, and whether they were dates."""

    values: Array
    dates: bool


def time_column(piece: Piece, name: str) -> TimeColumn:
    """Return the times of a piece; raise where one is missing or is neither number nor date."""
    column = piece.column(name)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise _missing(f"column {name!r}, {piece.where(row)}")
    kind = column.type
    if is_text(kind):
        return _from_text(column, piece, name)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return TimeColumn(_microseconds(column), dates=True)
    if not is_number(kind) or pa.types.is_boolean(kind):
        raise _no_time(f"column {name!r} of {piece.file} is {kind}")
    if pa.types.is_integer(kind):
        return TimeColumn(column.cast(pa.int64()).to_numpy(), dates=False)
    values = column.cast(pa.float64()).to_numpy()
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        raise _missing(f"{values[row]} in column {name!r}, {piece.where(row)}")
    return TimeColumn(values, dates=False)


def _from_text(column: pa.Array, piece: Piece, name: str) -> TimeColumn:
    for zone in (None, "UTC"):
        try:
            dates = column.cast(pa.timestamp("us", tz=zone))
        except pa.ArrowInvalid:
            continue
        return TimeColumn(_microseconds(dates), dates=True)
    try:
        return TimeColumn(column.cast(pa.float64()).to_numpy(), dates=False)
    except pa.ArrowInvalid as error:
        kinds = [_kind(column.slice(row, 1)) for row in range(len(column))]
        if None in kinds:
            row = kinds.index(None)
            seen = f"{column[row].as_py()!r} in column {name!r}, {piece.where(row)}"
            raise _no_time(seen) from error
        row = next(row for row, kind in enumerate(kinds) if kind != kinds[0])
        seen = f"{column[row].as_py()!r} after {column[0].as_py()!r}, {piece.where(row)}"
        raise _mixed(seen) from error


def _kind(one: pa.Array) -> pa.DataType | None:
    """Return what a single time is, a date with or without a zone or a number; None: no time."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.float64()):
        try:
            one.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return None


def _microseconds(column: pa.Array) -> Array:
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    # Finer digits than microseconds are cut off rather than refused.
    stamps = column.cast(pa.timestamp("us", tz=zone), safe=False)
    return stamps.cast(pa.int64()).to_numpy()


def _mixed(seen: str) -> DataError:
    return DataError(
        "Times are of different kinds.",
        seen=seen,
        fix="use numbers alone, or dates alone, all of them with a time zone or none",
    )


def _missing(seen: str) -> DataError:
    return DataError(
        "An event has no time.", seen=seen, fix="give every event a time, or drop the row"
    )


def _no_time(seen: str) -> DataError:
    return DataError(
        "A time is neither a number nor a date.",
        seen=seen,
        fix="use numbers, or dates as 2024-03-31 or 2024-03-31T18:05:00; name another column "
        "with --columns time=COLUMN (EventOptions(time=COLUMN) in Python)",
    )

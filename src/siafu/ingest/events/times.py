"""Times of events: read from columns of numbers, dates or ISO text, and cut into windows.

M events, T windows.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import ConfigError, DataError
from siafu.graph import Array
from siafu.ingest.events.events import Events
from siafu.ingest.tables.columns import is_number, is_text
from siafu.ingest.tables.files import Piece

DATE_TICKS = 1_000_000
"""Dates are kept as microseconds of 1970, in UTC."""
WindowLength = str | int | float
"""A length of time: `14d`, `12h`, `90m`, `30s`, `2w`, a number in the data's own unit."""
EACH = "each"
"""The window that makes a snapshot of every different time."""
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w|e|events)?", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_EXAMPLES = "for example 14d, 12h, 1200000 (the data's own unit), 500e (500 events) or each"
_FEW_TIMES = 200
_DEFAULT_WINDOWS = 100
_MOST_WINDOWS = 1_000_000


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """Times of some events: int64 or float64, and whether they were dates."""

    values: Array
    dates: bool
    is_cut: bool = False
    """Whether dates had finer digits than are kept."""


def read_times(piece: Piece, name: str) -> TimeColumn:
    """Return the times of a piece; raise where one is missing or is neither number nor date."""
    column = piece.column(name)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise _missing(f"column {name!r}, {piece.where(row)}")
    kind = column.type
    if is_text(kind):
        return _from_text(column, piece, name)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return TimeColumn(_microseconds(column), dates=True, is_cut=_is_finer(column))
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
    # Finer digits than microseconds are cut off rather than refused; that is told.
    stamps = column.cast(pa.timestamp("us", tz=zone), safe=False)
    return stamps.cast(pa.int64()).to_numpy()


def _is_finer(column: pa.Array) -> bool:
    """Return whether a date has digits below microseconds."""
    if not pa.types.is_timestamp(column.type) or column.type.unit != "ns":
        return False
    return bool((column.cast(pa.int64()).to_numpy() % 1000 != 0).any())


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


@dataclass(frozen=True, slots=True)
class Windows:
    """T windows [start, start + length) and the events in them, one row each time it is in one."""

    start: Array
    """float64 [T], in the events' unit."""
    event: Array
    """int64: numbers of events, by window and then in order of time."""
    window: Array
    """int64: the window of each of these, never falling."""
    text: str
    """What the window is, for people."""

    @property
    def count(self) -> int:
        """T."""
        return len(self.start)

    @property
    def overlap(self) -> bool:
        """Whether an event is in more than one window."""
        return bool(np.bincount(self.event).max(initial=0) > 1)


def _reach(events: Events) -> str:
    first, last = events.time[0], events.time[-1]
    if events.dates:
        first, last = (np.datetime64(int(time), "us") for time in (first, last))
    return f"{events.num_events:,} events from {first} to {last}"


def cut_windows(
    events: Events, window: WindowLength | None, stride: WindowLength | None, *, keep_partial: bool
) -> Windows:
    """Return the windows of events that are in order of time."""
    if events.num_steps is not None:
        return _given_steps(events, window)
    if window is None:
        window = _default_window(events)
    if window == EACH:
        _refuse_stride(stride)
        is_new = _is_new(events.time)
        start, place = events.time[is_new].astype(np.float64), np.cumsum(is_new) - 1
        return Windows(start, np.arange(events.num_events), place, "each time")
    counted = _is_count(window)
    times = np.arange(events.num_events) if counted else events.time
    length = parse_span(window, events, "window")
    step = length if stride is None else parse_span(stride, events, "stride")
    if stride is not None and _is_count(stride) != counted:
        raise ConfigError(
            "Window and stride are of different kinds.",
            seen=f"window {window}, stride {stride}",
            fix="give both as times or both as numbers of events",
        )
    # The last event takes up a place among events, and none in time.
    reach = times[-1] - times[0] + int(counted)
    if length > reach:
        raise DataError(
            "The window is longer than the data.",
            seen=f"a window of {window}; {_reach(events)}",
            fix="choose a shorter window, and check that both are in the same unit (--time-unit, "
            "EventOptions(time_unit=...) in Python)",
        )
    count = int((times[-1] - times[0]) // step) + 1  # that start within the data
    if not keep_partial:
        count = int((reach - length) // step) + 1  # that the data reaches the end of
    _check_count(count, length)
    event, place = _members(times, length, step, count)
    start = times[0] + np.arange(count) * float(step)
    if counted:
        start = events.time[np.minimum(start.astype(np.int64), len(times) - 1)].astype(np.float64)
    return Windows(start, event, place, f"each window of {window}")


def parse_span(span: WindowLength, events: Events, what: str) -> int | float:
    """Return the span in the unit of the events' times, as a whole number where it is one.

    A number without a unit is in the data's own unit, or in seconds where times are dates.
    """
    match = _match(span)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"The {what} is no length of time.", seen=f"{span!r}", fix=_EXAMPLES)
    unit = (match[2] or "").lower()
    ticks = events.ticks_per_second
    factor = _SECONDS[unit] * ticks if unit in _SECONDS else 1
    if not unit and events.dates:
        factor = ticks
    length = float(match[1]) * factor
    return int(length) if length.is_integer() else length


def _match(span: WindowLength) -> re.Match[str] | None:
    text = span.strip() if isinstance(span, str) else f"{span:f}"
    return _SPAN.fullmatch(text)


def has_unit(span: WindowLength) -> bool:
    """Return whether a span is in seconds, hours or such, which the unit of times is needed for."""
    match = _match(span)
    return match is not None and (match[2] or "").lower() in _SECONDS


def _is_count(span: WindowLength) -> bool:
    match = _match(span)
    return match is not None and (match[2] or "").lower() in ("e", "events")


def _is_new(times: Array) -> Array:
    """Return which of the sorted times differ from the one before."""
    return np.append(True, times[1:] != times[:-1])


def _default_window(events: Events) -> WindowLength:
    times = events.time
    if int(_is_new(times).sum()) <= _FEW_TIMES:
        return EACH
    span = float(times[-1] - times[0])
    if events.dates:
        seconds = span / events.ticks_per_second / _DEFAULT_WINDOWS
        return f"{math.floor(seconds) + 1}s" if seconds >= 1 else f"{seconds * (1 + 1e-6):.9f}s"
    return (
        math.floor(span / _DEFAULT_WINDOWS) + 1
        if times.dtype.kind == "i"
        else (span / _DEFAULT_WINDOWS * (1 + 1e-12))
    )


def _refuse_stride(stride: WindowLength | None) -> None:
    if stride is not None:
        raise ConfigError(
            "A stride needs a window with a length.",
            seen=f"window {EACH}, stride {stride}",
            fix="leave the stride out, or give the window as a length of time",
        )


def _given_steps(events: Events, window: WindowLength | None) -> Windows:
    """Return one window a step that the data numbers itself."""
    assert events.num_steps is not None
    if window not in (None, EACH, 1, "1"):
        raise ConfigError(
            "The data has its own snapshots, so no window can be chosen.",
            seen=f"window {window}, {events.num_steps} snapshots in {events.name}",
            fix="leave the window out",
        )
    place = events.time.astype(np.int64)
    if len(place) and (place[0] < 0 or place[-1] >= events.num_steps):
        raise DataError(
            "An event lies outside the snapshots of the data.",
            seen=f"times {place[0]} to {place[-1]}, {events.num_steps} snapshots",
            fix=f"number the times 0 to {events.num_steps - 1}",
        )
    start = np.arange(events.num_steps, dtype=np.float64)
    return Windows(start, np.arange(events.num_events), place, "each step of the data")


def _check_count(count: int, length: int | float) -> None:
    if count > _MOST_WINDOWS:
        raise DataError(
            "The window is too short for this data.",
            seen=f"{count:,} snapshots of {length:,}",
            fix=f"choose a longer window, {_EXAMPLES}; at most {_MOST_WINDOWS:,} snapshots",
        )


def _members(
    times: Array, length: int | float, step: int | float, count: int
) -> tuple[Array, Array]:
    """Return numbers of events and their windows; one in several windows is there several times."""
    since = times - times[0]
    last = np.minimum(np.floor_divide(since, step), count - 1).astype(np.int64)
    first = np.maximum(np.floor_divide(since - length, step) + 1, 0).astype(np.int64)
    copies = np.maximum(last - first + 1, 0)
    event = np.repeat(np.arange(len(times)), copies)
    nth = np.arange(len(event)) - np.repeat(np.cumsum(copies) - copies, copies)
    place = first[event] + nth
    order = np.argsort(place, kind="stable")
    return event[order], place[order]

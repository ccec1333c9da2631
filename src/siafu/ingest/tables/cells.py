"""Cells of tables as numbers: text that reads as numbers, yes and no, dates, marks of gaps.

Text is worked on by its different values, of which a column mostly has few.
B rows of a piece, V different texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from siafu.graph import Array

BLANKS = tuple(pa_csv.ConvertOptions().null_values)
"""What readers of CSV take for a gap."""
MARKS = ("", "-", "--", "?", ".", "none", "na", "n/a", "nan", "null", "missing", "#n/a")
"""Text that stands for a missing value, in small letters."""
NULL_CELLS = sorted({*BLANKS, *MARKS, "None", "NONE", "Null", "Missing", "MISSING"})
"""Cells of CSV columns of numbers and dates that are gaps."""
_NUMBER = r"(?i)^[-+]?(\d+\.?\d*(e[-+]?\d+)?|\.\d+(e[-+]?\d+)?|inf(inity)?)$"
_MONEY = r"[$€£¥]|EUR|USD|GBP|CHF"
_GROUPED = r"^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$"
_CLOCK = r"[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?\s?(Z|[+-]\d\d:?(\d\d)?)?"
_ISO = rf"^\d{{4}}-\d\d-\d\d({_CLOCK})?$|^\d{{4}}/\d\d/\d\d$"
_DAY_FIRST = r"^(\d\d)\.(\d\d)\.(\d{4})"
"""Days of the form 31.12.2024: with points the day comes first everywhere."""
_SLASHES = r"^(\d\d)/(\d\d)/(\d{4})"
_FIRST = {"day": r"\3-\2-\1", "month": r"\3-\1-\2"}
_TRUE, _FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")
MICROSECONDS_A_DAY = 86_400e6


@dataclass(frozen=True, slots=True)
class Words:
    """The different texts of a column without blanks around them, and the one of each row."""

    values: pa.Array
    codes_B: Array
    """-1 for a null."""
    is_gap_V: Array
    """Which of the texts stand for a missing value."""

    def spread(self, of_value_V: Array) -> Array:
        """Return float64 [B]: a number per different text for each row, NaN for gaps."""
        known = np.where(self.is_gap_V, np.nan, of_value_V)
        return np.append(known, np.nan)[self.codes_B]

    def is_odd(self, of_value_V: Array) -> Array:
        """Return bool [B]: rows with a text that is neither a gap nor a finite number."""
        odd_V = ~self.is_gap_V & ~np.isfinite(of_value_V)
        return np.append(odd_V, False)[self.codes_B]


def words_of(column: pa.Array, but: str = "") -> Words:
    """Return the different texts of a column of any type that can be text.

    `but` is no gap there, though it is a mark of gaps elsewhere.
    """
    encoded = column.cast(pa.large_string()).dictionary_encode()
    values = pc.utf8_trim_whitespace(encoded.dictionary)
    codes_B = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    is_gap = pc.is_in(pc.utf8_lower(values), pa.array(MARKS, pa.large_string()))
    if but:
        is_gap = pc.and_(is_gap, pc.not_equal(values, but))
    return Words(values, codes_B, is_gap.to_numpy(zero_copy_only=False))


def numbers_of(values: pa.Array) -> Array:
    """Return float64 [V] of texts, NaN where one is no number."""
    matches = pc.match_substring_regex(values, _NUMBER)
    plain = pc.replace_substring_regex(values, r"^\+", "")
    numbers = pc.if_else(matches, plain, None).cast(pa.float64())
    return _floats(numbers)


def amounts_of(values: pa.Array) -> Array:
    """Return float64 [V] of texts as `numbers_of` does, also with a sign of money or of percent.

    Commas before three digits are between thousands: 1,234 or 1,234.50, but not 0,125 or 1,5.
    """
    numbers_V = numbers_of(values)
    if np.isfinite(numbers_V).all():
        return numbers_V
    bare = pc.replace_substring_regex(values, rf"^([-+]?)\s*({_MONEY})\s*", r"\1")
    bare = pc.replace_substring_regex(bare, rf"\s*({_MONEY}|%)$", "")
    grouped = pc.match_substring_regex(bare, _GROUPED)
    bare = pc.if_else(grouped, pc.replace_substring(bare, ",", ""), bare)
    return np.where(np.isfinite(numbers_V), numbers_V, numbers_of(bare))


def booleans_of(values: pa.Array) -> Array:
    """Return float64 [V] of texts: 1 for yes, 0 for no, NaN for others."""
    lowered = pc.utf8_lower(values)
    true, false = (
        pc.is_in(lowered, pa.array(words, pa.large_string())).to_numpy(zero_copy_only=False)
        for words in (_TRUE, _FALSE)
    )
    return np.where(true, 1.0, np.where(false, 0.0, np.nan))


def dates_of(values: pa.Array, first: str = "") -> Array:
    """Return float64 [V] of texts: days since 1970, NaN where one is no date or time.

    Dates are as in ISO 8601, or 31.12.2024. With slashes the year comes first, unless `first`
    says that the day or the month does.
    """
    values = pc.replace_substring_regex(values, r"^(\d)([./])", r"0\1\2")
    values = pc.replace_substring_regex(values, r"^(\d\d[./])(\d)([./])", r"\10\2\3")
    values = pc.replace_substring_regex(values, _DAY_FIRST, _FIRST["day"])
    if first:
        values = pc.replace_substring_regex(values, _SLASHES, _FIRST[first])
    matches = pc.match_substring_regex(values, _ISO)
    some = pc.if_else(matches, pc.replace_substring(values, "/", "-"), None)
    try:
        return days_of(some.cast(pa.timestamp("us")))
    except pa.ArrowException:  # zones, or the 31st of February
        return np.array([_days(text) for text in some.to_pylist()], np.float64)


def first_of_dates(values: pa.Array) -> str:
    """Return what comes first in dates with slashes: `day` or `month`; nothing where none tells."""
    if not pc.any(pc.match_substring_regex(values, r"^\d{1,2}/")).as_py():
        return ""
    day, month = (int(np.isfinite(dates_of(values, first)).sum()) for first in _FIRST)
    return "" if day == month else "day" if day > month else "month"


def _days(text: str | None) -> float:
    if text is None:
        return float("nan")
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return float("nan")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() / 86_400


def days_of(column: pa.Array) -> Array:
    """Return float64 [B] of a column of dates or times: days since 1970, NaN for gaps."""
    if pa.types.is_date(column.type):
        return _floats(column.cast(pa.date32()).cast(pa.int32()))
    moments = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return _floats(moments.cast(pa.int64())) / MICROSECONDS_A_DAY


def _floats(column: pa.Array) -> Array:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


Reader = Callable[[pa.Array], Array]
READER_OF_KIND: dict[str, Reader] = {
    "number": amounts_of,
    "boolean": booleans_of,
    "date": dates_of,
}
"""How texts become numbers, by the kind of the column."""

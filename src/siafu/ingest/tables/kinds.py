"""What a column holds, decided on the first rows: numbers, yes and no, dates, categories, text.

What is no feature unless asked: an index, ids, free text, and near copies of the target.
V different texts of a column.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.graph import Array
from siafu.ingest.tables.cells import (
    READER_OF_KIND,
    Words,
    amounts_of,
    dates_of,
    days_of,
    first_of_dates,
    numbers_of,
    words_of,
)
from siafu.ingest.tables.columns import as_float32, is_list, is_number, is_text, list_lengths
from siafu.ingest.tables.files import MixedTypesError, Table
from siafu.ingest.tables.problems import FEW
from siafu.ingest.tables.splits import looks_like_split

SAMPLE_ROWS = 1 << 16
MOST_CATEGORIES = 10_000
_ROWS_AT_ONCE = 1 << 15
_ID_NAME = re.compile(r"(?i:(^|.*[_\s.-])(id|ids|uuid|guid))|.*[a-z](Id|ID)")
NAMIBIA = "NA"
"""A gap, but among codes of countries."""
_CODE = re.compile("[A-Z]{2}")
_PADDED = re.compile(r"0\d")
_BEFORE_FRACTION = re.compile(r"\b0,\d|,(\d{1,2}|\d{4,})\D*$")
_BEFORE_THOUSANDS = re.compile(r"\b[1-9]\d{0,2},\d{3}\D*$")
_FEWEST_CODES = 3
_FEWEST_ROWS = 20
"""In fewer rows, different numbers in a row are no sign of an index."""
_MOSTLY = 0.5
_FEW_CATEGORIES = 32
_FIRST_ROWS = 1 << 10
"""Rows that tell of most columns that they are no copy of the target."""
_SAME = 0.999
"""Correlation with the target from which a column tells it."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a column holds and whether that can be a feature."""

    name: str
    kind: str
    """number, boolean, date or category; or text, empty or a type that is not read."""
    why_not: str = ""
    """Why it is no feature; empty where it is one."""
    width: int = -1
    """Numbers of each list; -1 where the column holds none."""
    first: str = ""
    """What comes first in dates with slashes; of categories what is no gap there, as NA."""

    @property
    def can_be_feature(self) -> bool:
        """Whether it can be one if asked for."""
        return self.kind in ("number", "boolean", "date", "category")


class Sample:
    """The first rows of a table's first file."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        first = replace(table, files=table.files[:1])
        self.types = {field.name: field.type for field in first.schema()}
        # Whole numbers of the first rows may be followed by fractions, and have lost their zeros.
        whole = [name for name in names if pa.types.is_integer(self.types[name])]
        read_as = pa.large_string() if table.is_csv else pa.float64()
        first = replace(first, types={**first.types, **dict.fromkeys(whole, read_as)})
        parts: dict[str, list[pa.Array]] = {name: [] for name in names}
        rows = 0
        try:
            for piece in first.pieces(list(names), rows=_ROWS_AT_ONCE) if names else ():
                for name in names:
                    parts[name].append(piece.column(name))
                rows += piece.batch.num_rows
                if rows >= SAMPLE_ROWS:
                    break
        except MixedTypesError:
            pass  # told, or made up for, when all is read
        self.columns = {name: pa.concat_arrays(p) for name, p in parts.items() if p}
        for name in whole if table.is_csv else ():
            if name in self.columns and not self._keeps_zeros(name):
                words = words_of(self.columns[name])
                self.columns[name] = pa.array(
                    words.spread(numbers_of(words.values)), from_pandas=True
                )

    def _keeps_zeros(self, name: str) -> bool:
        """Return whether whole numbers of a CSV file are text: a code such as 01500 is another."""
        if not pc.any(pc.match_substring_regex(self.columns[name], r"^\s*0\d")).as_py():
            return False
        self.types[name] = pa.large_string()
        return True

    def decide(self, names: Sequence[str]) -> list[Decided]:
        """Return what each of these columns holds."""
        return [self._decide(name) for name in names]

    def _decide(self, name: str) -> Decided:
        if name not in self.columns:
            return Decided(name, "empty", "the table has no rows")
        found = _decided(name, self.types[name], self.columns[name])
        if not found.why_not and is_id_name(name):
            return replace(found, why_not="looks like an id by its name")
        return found

    def splits(self, features: Sequence[Decided]) -> dict[str, str]:
        """Return which categories are names of splits, and which."""
        found = {}
        for one in features:
            if one.kind == "category":
                words = words_of(self.columns[one.name])
                known = words.values.filter(pa.array(~words.is_gap_V)).to_pylist()
                if looks_like_split(one.name, known):
                    found[one.name] = ", ".join(dict.fromkeys(known))
        return found

    def copies(self, target: str, features: Sequence[Decided]) -> dict[str, str]:
        """Return which columns tell the target, with the reason."""
        if target not in self.columns or is_list(self.types[target]):
            return {}
        wanted = self.columns[target]
        told = _values(wanted)
        found: dict[str, str] = {}
        for one in features:
            if one.width >= 0:
                continue
            column = self.columns[one.name]
            if _is_renamed(column, wanted):
                found[one.name] = f"tells {target}: the same but for names"
            elif told is not None and _is_line(_values(column), told):
                found[one.name] = f"tells {target}: correlation above {_SAME}"
        return found


def is_id_name(name: str) -> bool:
    """Return whether a column is called an id."""
    return _ID_NAME.fullmatch(name) is not None


def _decided(name: str, kind: pa.DataType, column: pa.Array) -> Decided:
    if is_list(kind) and is_number(kind.value_type):
        lengths = list_lengths(column.drop_null())
        return Decided(name, "number", width=int(lengths[0]) if len(lengths) else 0)
    if is_text(kind) or pa.types.is_dictionary(kind):
        return _of_text(name, column)
    if pa.types.is_boolean(kind):
        return Decided(name, "boolean")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Decided(name, "date")
    if pa.types.is_null(kind) or (is_number(kind) and column.null_count == len(column)):
        return Decided(name, "empty", "has no values")
    if is_number(kind):
        return Decided(name, "number", _why_index(column) if pa.types.is_integer(kind) else "")
    return Decided(name, str(kind), f"columns of {kind} are not read")


def _why_index(column: pa.Array) -> str:
    """Return why whole numbers look like an index: each there once, without large holes."""
    if column.null_count or len(column) < _FEWEST_ROWS:
        return ""
    values = column.to_numpy(zero_copy_only=False)
    if np.any(values % 1 != 0):
        return ""
    low, high = int(values.min()), int(values.max())
    if high - low >= 2 * len(values) or len(np.unique(values)) < len(values):
        return ""
    return f"looks like an index: {low:,} to {high:,}, each once"


def _of_text(name: str, column: pa.Array) -> Decided:
    words = words_of(column)
    counts_V = np.bincount(words.codes_B[words.codes_B >= 0], minlength=len(words.values))
    known_V = ~words.is_gap_V
    rows, distinct = int(counts_V[known_V].sum()), int(known_V.sum())
    if not rows:
        return Decided(name, "empty", "has no values")
    texts = words.values.to_pylist()
    # A comma that stands before a fraction anywhere is none between thousands elsewhere.
    unclear = all(any(map(comma.search, texts)) for comma in (_BEFORE_FRACTION, _BEFORE_THOUSANDS))
    are_names = unclear or any(map(_PADDED.match, texts))
    shares = {
        kind: float(counts_V[known_V & np.isfinite(reader(words.values))].sum()) / rows
        for kind, reader in READER_OF_KIND.items()
        if not (are_names and kind == "number")
    }
    first = first_of_dates(words.values)
    if first:
        is_date_V = np.isfinite(dates_of(words.values, first))
        shares["date"] = float(counts_V[known_V & is_date_V].sum()) / rows
    likely = next((kind for kind, share in shares.items() if share >= 1 - FEW), None)
    if likely is not None:
        return Decided(name, likely, first=first if likely == "date" else "")
    if 2 * distinct <= rows or (distinct < rows and distinct <= _FEW_CATEGORIES):
        many = distinct > MOST_CATEGORIES
        why = f"more than {MOST_CATEGORIES:,} different texts" if many else ""
        return Decided(name, "category", why, first=NAMIBIA if _has_namibia(words) else "")
    if shares.get("number", 0) >= _MOSTLY:
        numbers = amounts_of(words.values)
        odd = int(np.argmax(words.is_odd(numbers)))
        return Decided(name, "number", f"mostly numbers, but {column[odd].as_py()!r} in row {odd}")
    if distinct == rows:
        return Decided(name, "text", "looks like an id: each text is there once")
    return Decided(name, "text", f"free text: {distinct:,} different in {rows:,} rows")


def _has_namibia(words: Words) -> bool:
    """Return whether nearly all texts are codes of two letters, and NA is one of them."""
    texts = words.values.to_pylist()
    codes = [text for text in texts if _CODE.fullmatch(text)]
    return NAMIBIA in codes and len(codes) > _FEWEST_CODES and 10 * len(codes) > 9 * len(texts)


def _codes(column: pa.Array) -> Array:
    """Return int64: a number for each different value, -1 for gaps."""
    if is_list(column.type):
        return np.full(len(column), -1)
    if is_number(column.type):
        values = as_float32(column)
        codes = np.unique(values, return_inverse=True)[1]
        return np.where(np.isnan(values), -1, codes)
    words = words_of(column)
    codes_V = np.unique(words.values.to_numpy(zero_copy_only=False), return_inverse=True)[1]
    return np.append(np.where(words.is_gap_V, -1, codes_V), -1)[words.codes_B]


def _values(column: pa.Array) -> Array | None:
    """Return the values as numbers, NaN for gaps; None where they are none."""
    if is_number(column.type):
        return as_float32(column).astype(np.float64)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return days_of(column)
    if is_text(column.type):
        words = words_of(column)
        return words.spread(amounts_of(words.values))
    return None


def _is_renamed(column: pa.Array, target: pa.Array) -> bool:
    """Return whether each value goes with one of the target, in enough rows to matter."""
    first = _fits(_codes(column.slice(0, _FIRST_ROWS)), _codes(target.slice(0, _FIRST_ROWS)))
    if first == 0:
        return False
    one, other = _codes(column), _codes(target)
    kinds, rows = _fits(one, other), int(np.sum((one >= 0) & (other >= 0)))
    return kinds > 1 and rows >= max(_FEWEST_ROWS, 2 * kinds)


def _fits(one: Array, other: Array) -> int:
    """Return how many values both have, where each of one goes with one of the other; else 0."""
    both = (one >= 0) & (other >= 0)
    one, other = one[both], other[both]
    if not len(one):
        return 1
    pairs = len(np.unique(one * (int(other.max()) + 1) + other))
    return pairs if pairs == len(np.unique(one)) == len(np.unique(other)) else 0


def _is_line(one: Array | None, other: Array) -> bool:
    if one is None:
        return False
    both = np.isfinite(one) & np.isfinite(other)
    one, other = one[both], other[both]
    if len(one) < _FEWEST_ROWS or np.ptp(one) == 0 or np.ptp(other) == 0:
        return False
    return bool(abs(np.corrcoef(one, other)[0, 1]) > _SAME)

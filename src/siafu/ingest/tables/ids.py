"""Node ids of any type: read from columns, kept as `Ids`, and looked up as rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array, FolderWriter, Ids, IntegerIds, TextIds, index_dtype, load_ids
from siafu.ingest.tables.cells import BLANKS
from siafu.ingest.tables.columns import is_text
from siafu.ingest.tables.files import Piece, Table
from siafu.ingest.tables.id_kernels import (
    find_integers,
    find_text,
    hash_text,
    insert_integers,
    insert_text,
    make_slots,
    parse_integers,
)

IdKind = Literal["integer", "text"]

_GATHERED_ROWS = 1 << 22
_LONGEST_NUMBER = 20
_LOOKED_AT = 1 << 16
_LARGEST_FLOAT = 2.0**53


Made = Mapping[str, Array]
"""What was made of ids to look them up, beside the ids: it can be kept in files."""


class IdRows(Protocol):
    """Finds the row of an id."""

    made: Made

    def find(self, column: pa.Array) -> Array:
        """Return the row of each id, -1 where there is none."""
        ...


def column_kind(table: Table, name: str) -> IdKind:
    """Return whether an id column holds integers or text."""
    kind = table.schema().field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_null(kind):
        raise _empty(table)
    if pa.types.is_floating(kind) and _begins_whole(table, name):
        return "integer"
    raise DataError(
        "Node ids must be integers or text.",
        seen=f"column {name!r} of the {table.what} is {kind}",
        fix="convert the column, or use --id-type text; an id of 20 digits makes integers floats",
    )


def _begins_whole(table: Table, name: str) -> bool:
    """Return whether floats are whole numbers in the first rows: a gap makes these of integers."""
    try:
        for piece in table.pieces([name], rows=_LOOKED_AT):
            whole_floats(piece.column(name))
            break
    except pa.ArrowException:
        return False
    return True


def whole_floats(column: pa.Array) -> pa.Array:
    """Return floats as int64; an ArrowException where one is no whole number, or too large."""
    if column.null_count < len(column) and pc.max(pc.abs(column)).as_py() >= _LARGEST_FLOAT:
        raise pa.ArrowInvalid("a number of more digits than floats have")
    return column.cast(pa.int64())


class PaddedIdError(DataError):
    """An id that other text could be the same number as: 007, +7."""

    def note(self) -> str:
        """Return the sentence for the user where ids are read as text because of it."""
        return f"Ids are kept as text because of {self.seen}."


def with_types(
    table: Table, *, ids: Sequence[str], kind: IdKind, numbers: Sequence[str], is_asked: bool
) -> Table:
    """Return the table with the types of CSV columns set, where guessing could go wrong.

    The guess sees the first rows only: 1 may be followed by 0.5, and 12 by x12. Ids are read as
    text, so that 012 is seen to be another id than 12, unless whole numbers were asked for.
    """
    found = {column.name: column.type for column in table.schema()}
    as_numbers = kind == "integer" and is_asked
    types = dict.fromkeys(ids, pa.int64() if as_numbers else pa.large_string())
    for name in numbers:
        if pa.types.is_integer(found[name]) or pa.types.is_null(found[name]):
            types[name] = pa.float64()
    return replace(table, types=dict(table.types) | types)


def _empty(table: Table) -> DataError:
    return DataError(
        f"The {table.what} has no rows.",
        seen=", ".join(str(file) for file in table.files[:3]),
        fix="check that the export was complete",
    )


def id_column(piece: Piece, name: str, kind: IdKind, *, makes_nodes: bool = False) -> pa.Array:
    """Return the ids of a piece as int64 or large_string, without nulls.

    Where they make nodes of their own, an empty text is no id but a cell left out.
    """
    column = piece.column(name)
    if kind == "integer" and is_text(column.type) and piece.types.get(name) != pa.int64():
        return _whole_numbers(piece, name, column.cast(pa.large_string()))
    wanted = pa.int64() if kind == "integer" else pa.large_string()
    try:
        column = whole_floats(column) if pa.types.is_floating(column.type) else column
        column = column.cast(wanted)
    except pa.ArrowException as error:
        raise DataError(
            "The ids are of mixed types, or too large.",
            seen=f"column {name!r} of {piece.file} is {column.type}: {error}",
            fix="use one type in all files; --id-type text takes any id",
        ) from error
    is_missing = column.is_null()
    if makes_nodes and kind == "text":
        is_missing = pc.equal(column.fill_null(""), "")
    if (row := pc.index(is_missing, True).as_py()) >= 0:
        raise _missing(piece, name, row)
    return column


def _missing(piece: Piece, name: str, row: int) -> DataError:
    return DataError(
        "An id is missing.",
        seen=f"column {name!r}, {piece.where(row)}",
        fix="drop the row or give it an id",
    )


def _whole_numbers(piece: Piece, name: str, column: pa.Array) -> pa.Array:
    """Return ids written as text as int64; raise where one is no number, or written otherwise."""
    if column.null_count:
        raise _missing(piece, name, pc.index(column.is_null(), True).as_py())
    text, values = TextIds.from_arrow(column), np.empty(len(column), np.int64)
    row = parse_integers(text.offsets, text.utf8, values)
    if row < 0:
        return pa.array(values)
    trimmed = pc.utf8_trim_whitespace(column)
    trimmed = pc.replace_substring_regex(trimmed, r"^([0-9]+)[.]0+$", r"\1")  # floats, written
    if trimmed[row] != column[row]:
        return _whole_numbers(piece, name, trimmed)
    seen = column[row].as_py()
    if trimmed[row].as_py() in BLANKS:
        raise _missing(piece, name, row)
    at = f"{seen!r} in column {name!r}, {piece.where(row)}"
    if re.fullmatch(r"[+-]?\d+", seen, re.ASCII) and abs(int(seen[:40])) < 2**63:
        raise PaddedIdError(
            "An id is written with a leading zero or a plus sign, the ids of nodes are not.",
            seen=at,
            fix="write each id alike in both tables, or read ids as whole numbers: "
            "siafu ingest SOURCE out.store --id-type integer",
        )
    raise DataError(
        "The ids are of mixed types, or too large.",
        seen=f"{at}; others are whole numbers",
        fix="use one type in all files; --id-type text takes any id",
    )


class IntegerRows:
    """Rows of integer ids that lie close together: a list over their range."""

    def __init__(self, ids: IntegerIds, made: Made | None = None) -> None:
        self.made = made or _over_range(ids)
        self._low, self._size = map(int, self.made["range"])
        self._row_of = self.made.get("row_of")

    def find(self, column: pa.Array) -> Array:
        """Return the row of each id, -1 where there is none."""
        wanted: Array = column.to_numpy()
        # As unsigned, ids below the lowest are huge, so one comparison finds both kinds.
        at = (wanted - self._low).view(np.uint64)
        known = at < self._size
        if self._row_of is None:
            return at.view(np.int64) if known.all() else np.where(known, at.view(np.int64), -1)
        return np.where(known, self._row_of[np.where(known, at, 0)], -1)


def _over_range(ids: IntegerIds) -> dict[str, Array]:
    """Return the lowest id, how many there may be from there on, and their rows if not in order."""
    values = np.asarray(ids.values)
    low, high = int(values.min()), int(values.max())
    made = {"range": np.array([low, high - low + 1])}
    if high - low == len(values) - 1 and bool((np.diff(values) == 1).all()):
        return made
    row_of = np.full(high - low + 1, -1, dtype=index_dtype(len(values)))
    # Backwards, so that an id that comes again keeps its first row.
    row_of[values[::-1] - low] = np.arange(len(values))[::-1]
    twice = np.flatnonzero(row_of[values - low] != np.arange(len(values)))
    if len(twice):
        raise _twice(ids, int(twice[0]))
    return made | {"row_of": row_of}


class ScatteredIntegerRows:
    """Rows of integer ids from a wide range: a hash table."""

    def __init__(self, ids: IntegerIds, made: Made | None = None) -> None:
        self._ids = _read_only(np.ascontiguousarray(ids.values, dtype=np.int64))
        if made is None:
            made = {"slots": make_slots(len(ids))}
            if (twice := insert_integers(self._ids, made["slots"])) >= 0:
                raise _twice(ids, twice)
        self.made, self._slots = made, _read_only(made["slots"])

    def find(self, column: pa.Array) -> Array:
        """Return the row of each id, -1 where there is none."""
        rows = np.empty(len(column), dtype=np.int64)
        find_integers(self._ids, self._slots, column.to_numpy(), rows)
        return rows


class TextRows:
    """Rows of ids that are text: a hash table that compares the bytes as well."""

    def __init__(self, ids: TextIds, made: Made | None = None) -> None:
        self._text = _read_only(ids.offsets), _read_only(ids.utf8)
        if made is None:
            made = {"hashes": _hashes(*self._text), "slots": make_slots(len(ids))}
            twice = insert_text(*self._text, _read_only(made["hashes"]), made["slots"])
            if twice >= 0:
                raise _twice(ids, twice)
        self.made = made
        self._hashes, self._slots = _read_only(made["hashes"]), _read_only(made["slots"])

    def find(self, column: pa.Array) -> Array:
        """Return the row of each id, -1 where there is none."""
        text = TextIds.from_arrow(column)
        rows = np.empty(len(text), dtype=np.int64)
        offsets, utf8 = _read_only(text.offsets), _read_only(text.utf8)
        wanted = (offsets, utf8, _read_only(_hashes(offsets, utf8)))
        find_text(*self._text, self._hashes, self._slots, wanted, rows)
        return rows


def _read_only(array: Array) -> Array:
    """Return a plain view: kernels are compiled once for arrays and maps of files."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _hashes(offsets: Array, utf8: Array) -> Array:
    hashes = np.empty(len(offsets) - 1, dtype=np.uint64)
    hash_text(offsets, utf8, hashes)
    return hashes


class RepeatedIdError(DataError):
    """An id that two nodes have."""


def _twice(ids: Ids, row: int) -> DataError:
    return RepeatedIdError(
        "Two nodes have the same id.",
        seen=f"id {ids.to_arrow()[row].as_py()!r}, the second time in row {row} (from 0) of the "
        "nodes",
        fix="keep one row per node",
    )


def index_ids(ids: Ids) -> IdRows:
    """Return the fastest way to look these ids up; raise where one is there twice."""
    if not len(ids):
        raise DataError(
            "No node has an id.",
            seen="a node table whose rows are all without one",
            fix="name the column of ids with --node-id, or check that the export was complete",
        )
    if isinstance(ids, TextIds):
        return TextRows(ids)
    span = int(ids.values.max()) - int(ids.values.min())
    return IntegerRows(ids) if span < 4 * len(ids) + 1024 else ScatteredIntegerRows(ids)


def save_made(rows: IdRows, folder: Path) -> None:
    """Keep what was made of ids as files, for all who look them up."""
    folder.mkdir()
    for name, array in rows.made.items():
        np.save(folder / f"{name}.npy", array)


def map_rows(writer: FolderWriter, folder: Path) -> IdRows:
    """Return where the nodes of a store on its way are, in pages that ranks of a host share."""
    ids = load_ids(writer)
    made = {file.stem: np.asarray(np.load(file, mmap_mode="r")) for file in folder.iterdir()}
    if isinstance(ids, TextIds):
        return TextRows(ids, made)
    return ScatteredIntegerRows(ids, made) if "slots" in made else IntegerRows(ids, made)


def written_otherwise(text: str, rows: IdRows, kind: IdKind) -> str:
    """Return an id that is there and the same number with more or fewer zeros; else nothing."""
    if kind == "integer" or not re.fullmatch(r"\d{1,16}(\.0+)?", text, re.ASCII):
        return ""
    digits = text.partition(".")[0].lstrip("0") or "0"
    alike = [digits.zfill(length) for length in range(len(digits), _LONGEST_NUMBER + 1)]
    places = rows.find(pa.array(alike, pa.large_string()))
    return next((one for one, place in zip(alike, places, strict=True) if place >= 0), "")


def ids_from_columns(columns: list[pa.Array], kind: IdKind) -> Ids:
    """Return the ids of all pieces in order."""
    if kind == "integer":
        return IntegerIds(np.concatenate([column.to_numpy() for column in columns]))
    return TextIds.from_arrow(pa.concat_arrays(columns))


class SeenIds:
    """The different ids of a stream, sorted; memory follows their number, not the stream's."""

    def __init__(self, kind: IdKind) -> None:
        self._kind = kind
        self._parts: list[pa.Array] = []
        self._gathered, self._distinct = 0, 0

    def add(self, column: pa.Array) -> None:
        """Take in some ids."""
        self._parts.append(self._unique(column))
        self._gathered += len(self._parts[-1])
        if self._gathered > max(_GATHERED_ROWS, 2 * self._distinct):
            self._merge()

    def finish(self) -> Ids:
        """Return all of them in order."""
        self._merge()
        merged = self._parts[0]
        if self._kind == "text":
            merged = merged.take(pc.array_sort_indices(merged))
        return ids_from_columns([merged], self._kind)

    def _merge(self) -> None:
        self._parts = [self._unique(pa.concat_arrays(self._parts))]
        self._gathered = self._distinct = len(self._parts[0])

    def _unique(self, column: pa.Array) -> pa.Array:
        if self._kind == "text":
            return column.unique()
        # Sorted here: np.unique hashes integers since numpy 2.3, ten times slower than this.
        values = np.sort(column.to_numpy())
        is_new = np.ones(len(values), bool)
        is_new[1:] = values[1:] != values[:-1]
        return pa.array(values[is_new])

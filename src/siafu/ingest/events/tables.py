"""Events from CSV or Parquet files; what grows with them is a few numbers an event.

M events, B of them in a piece.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import Array, Ids
from siafu.ingest.events.events import EventOptions, Events, NotedEvents
from siafu.ingest.events.times import DATE_TICKS, TimeColumn, read_times
from siafu.ingest.tables.build import NODE_NAMES, named_table
from siafu.ingest.tables.classes import ClassName, SingleLabels, check_label_kind
from siafu.ingest.tables.columns import is_number, number_block
from siafu.ingest.tables.files import TABLE_ENDINGS, Piece, Table, table_files
from siafu.ingest.tables.finding import SPELLINGS
from siafu.ingest.tables.ids import (
    IdKind,
    IdRows,
    PaddedIdError,
    SeenIds,
    column_kind,
    id_column,
    index_ids,
    with_types,
)
from siafu.ingest.tables.nodes import NodeTable
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.problems import Problems
from siafu.record import Progress

_ROWS_AT_ONCE = 1 << 20
_SPELLINGS = {
    **SPELLINGS,
    "time": ("t", "time", "timestamp", "ts", "date", "datetime", "unixts"),
    "weight": ("weight", "rating", "value", "amount", "w"),
    "label": ("label", "edge_label", "class", "y", "state_label"),
}
_OPTION = "--columns {0}=COLUMN (EventOptions({0}=COLUMN) in Python)"
_ATTR_OPTION = "add it to that file, or leave it out of {0} (EventOptions(attr=...) in Python)"
_EVENT_NAMES = ("events", "event", "edges", "edge")
_NEEDED = ("src", "dst", "time")
_HEADERS = {3: ("src", "dst", "time"), 4: ("src", "dst", "weight", "time")}
"""What the columns of a CSV file without a header are taken for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventNodes:
    """All nodes of a dynamic graph."""

    ids: Ids
    kind: IdKind
    x: Array | None = None
    feature_names: tuple[str, ...] = ()
    y: Array | None = None
    class_names: tuple[ClassName, ...] = ()
    notes: tuple[str, ...] = ()


def read_nodes(table: Table, id_type: IdKind | None, progress: Progress) -> EventNodes:
    """Return the nodes of a node table: column `id`, a label where there is one, features."""
    problems = Problems()
    options = TableOptions(id_type=id_type, node_id="id", target="class")
    nodes = NodeTable(table, options, progress, problems)
    nodes.features = nodes.features.only_numbers()
    scanned = nodes.scan()
    arrays = nodes.read()
    for reader in nodes.features.readers:
        reader.check(problems, most_gaps=0)
    problems.raise_any()
    y = arrays.get("y")
    if y is not None and y.ndim != 1:
        raise DataError(
            "A node of a dynamic graph has one label.",
            seen=f"{y.shape[1]} classes at once in the node table",
            fix="give one label column of whole numbers or text",
        )
    notes = nodes.notes()
    if scanned.masks:
        notes.append("Masks of the node table are not used.")
    return EventNodes(
        ids=scanned.ids,
        kind=nodes.kind,
        x=arrays.get("x"),
        feature_names=nodes.feature_names(),
        y=y,
        class_names=tuple(scanned.class_names),
        notes=tuple(notes),
    )


def find_rows(piece: Piece, name: str, rows: IdRows, kind: IdKind) -> Array:
    """Return the row of each id of a column; raise where the node table does not have one."""
    column = id_column(piece, name, kind)
    found = rows.find(column)
    if len(found) and found.min() < 0:
        row = int(np.argmax(found < 0))
        raise DataError(
            "An event names a node that the node table does not have.",
            seen=f"id {column[row].as_py()!r} in column {name!r}, {piece.where(row)}",
            fix="add the node to the node table, or drop the event",
        )
    return found


def events_from_tables(path: Path, options: EventOptions, progress: Progress) -> NotedEvents:
    """Return the events of a file, or of a folder of files, and sentences for the user."""
    table, node_table = _find_tables(path, options)
    _check_attr_everywhere(table, options)
    names = _columns(table, options)
    kind = options.id_type or column_kind(table, names["src"])
    nodes = None if node_table is None else read_nodes(node_table, options.id_type, progress)
    kind = kind if nodes is None else nodes.kind
    ends = (names["src"], names["dst"])
    attr = _attr_columns(table, options, names)
    numbers = [*_number_columns(table, names), *attr]
    asked = options.id_type is not None
    table = with_types(table, ids=ends, kind=kind, numbers=numbers, is_asked=asked)
    if nodes is None:
        try:
            nodes = _seen_nodes(table, ends, kind, progress)
        except PaddedIdError as padded:
            kind = "text"
            table = with_types(table, ids=ends, kind=kind, numbers=numbers, is_asked=asked)
            nodes = _seen_nodes(table, ends, kind, progress)
            nodes = replace(nodes, notes=(padded.note(),))
    rows = index_ids(nodes.ids)
    label = None
    if "label" in names:
        label = SingleLabels(names["label"])
        check_label_kind(table, names["label"], table.schema().field(names["label"]).type)
    columns = _Columns()
    for piece in _pieces(table, (*names.values(), *attr), "reading events", progress):
        found = [find_rows(piece, name, rows, kind) for name in ends]
        weight = number_block(piece, [names["weight"]])[:, 0] if "weight" in names else None
        columns.add(found, read_times(piece, names["time"]), weight)
        if attr:
            columns.attr.append(_features(piece, attr))
        if label is not None:
            label.scan(piece)
    classes = _labels(table, label, progress)
    class_names = () if label is None else tuple(label.class_names())
    events = columns.events(path.name.split(".")[0], nodes, options, (classes, class_names))
    if attr:
        events = replace(events, attr=np.concatenate(columns.attr), attr_names=tuple(attr))
    notes = _notes(table, names, attr) + (label.notes() if label is not None else [])
    return events, notes + columns.notes() + list(nodes.notes)


def looks_like_events(path: Path) -> bool:
    """Return whether a single table has columns for both ends of an event and its time."""
    if not (path.is_file() and path.name.lower().endswith(TABLE_ENDINGS)):
        return False
    names = Table("event table", (path,)).names_as_read()
    lowered = {name.strip().lower() for name in names}
    return all(lowered.intersection(_SPELLINGS[role]) for role in _NEEDED)


def _find_tables(path: Path, options: EventOptions) -> tuple[Table, Table | None]:
    """Return the events, and the node table that was named or lies beside them in the folder."""
    nodes, events = options.nodes, path
    if path.is_dir():
        nodes = nodes or named_table(path, NODE_NAMES)
        events = named_table(path, _EVENT_NAMES) or path
    table = _with_header(Table("event table", table_files(events, "event table")))
    if nodes is None:
        return table, None
    return table, Table("node table", table_files(nodes, "node table"))


def _check_attr_everywhere(table: Table, options: EventOptions) -> None:
    """Raise where a feature that the first file has is missing in another one."""
    present = table.schema().names
    known = {name: "--edge-attr" for name in options.attr if name in present}
    table.check_columns(known, _ATTR_OPTION)


def _attr_columns(table: Table, options: EventOptions, names: dict[str, str]) -> list[str]:
    """Return the columns that are features of events, after checking them."""
    asked, present = list(options.attr), table.schema().names
    for name in asked:
        role = next((role for role, taken in names.items() if taken == name), None)
        if name not in present or (role is not None and role != "weight"):
            what = "is not there" if name not in present else f"is the {role} of events"
            raise DataError(
                "A feature of events can't be used.",
                seen=f"column {name!r} {what}; the table has {', '.join(map(repr, present))}",
                fix="name other columns with --edge-attr (EventOptions(attr=...) in Python)",
            )
        if not is_number(table.schema().field(name).type):
            raise DataError(
                "A feature of events is no number.",
                seen=f"column {name!r} is {table.schema().field(name).type}",
                fix="turn it into numbers, or leave it out of --edge-attr",
            )
    return asked


def _features(piece: Piece, attr: list[str]) -> Array:
    """Return float32 [B, F], a number of each column; a later file may have lists instead."""
    found = number_block(piece, attr)
    if found.shape[1] != len(attr):
        raise DataError(
            "Files differ in the width of the features of events.",
            seen=f"{found.shape[1]} numbers per event in {piece.where(0)}, {len(attr)} before",
            fix=f"give every file one number in each of {', '.join(map(repr, attr))}",
        )
    return found


def _notes(table: Table, names: dict[str, str], attr: list[str]) -> list[str]:
    used = [*names.values(), *attr]
    unused = [name for name in table.schema().names if name not in used]
    notes = [f"Event columns: {', '.join(f'{role} {name}' for role, name in names.items())}."]
    notes += ["The file has no header; its columns are taken in order."] if table.header else []
    return notes + ([f"Event columns not used: {', '.join(unused)}."] if unused else [])


def _with_header(table: Table) -> Table:
    """Return the table with column names where the first row holds numbers instead of names."""
    names = table.names_as_read()
    header = _HEADERS.get(len(names))
    is_headless = header is not None and all(_is_number(name) for name in names)
    return replace(table, header=header) if is_headless else table


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _columns(table: Table, options: EventOptions) -> dict[str, str]:
    """Return the column of each role: the one asked for, else the first of its usual names."""
    present = table.schema().names
    lowered = {name.strip().lower(): name for name in reversed(present)}
    found: dict[str, str] = {}
    for role, spellings in _SPELLINGS.items():
        asked = getattr(options, role)
        if role == "label" and options.unlabelled and asked and asked not in present:
            continue
        usual = (lowered[text] for text in spellings if text in lowered)
        name = asked or next((name for name in usual if name not in found.values()), None)
        if name is not None:
            found[role] = name
        elif role in _NEEDED:
            raise DataError(
                f"The event table has no column for {role}.",
                seen=f"{table.files[0]} with columns {', '.join(map(repr, present))}",
                fix=f"name one {spellings[0]}, or tell which it is with " + _OPTION.format(role),
            )
    table.check_columns({name: role for role, name in found.items()}, _OPTION)
    guessed = options.weight is None and "weight" in found
    if guessed and not is_number(table.schema().field(found["weight"]).type):
        del found["weight"]
    return found


def _number_columns(table: Table, names: dict[str, str]) -> list[str]:
    """Return columns whose whole numbers may be followed by others; dates keep their type."""
    found = table.schema().field(names["time"]).type
    time = [names["time"]] if pa.types.is_floating(found) else []
    return time + ([names["weight"]] if "weight" in names else [])


def _pieces(
    table: Table, columns: tuple[str, ...], phase: str, progress: Progress
) -> Iterator[Piece]:
    total, done = table.num_rows(), 0
    for piece in table.pieces(list(dict.fromkeys(columns)), rows=_ROWS_AT_ONCE):
        yield piece
        done += piece.batch.num_rows
        progress(phase, done, total)
    if done == 0:
        raise DataError(
            "The event table has no rows.",
            seen=", ".join(str(file) for file in table.files[:3]),
            fix="check that the export was complete",
        )


def _seen_nodes(
    table: Table, columns: tuple[str, str], kind: IdKind, progress: Progress
) -> EventNodes:
    seen = SeenIds(kind)
    for piece in _pieces(table, columns, "finding nodes", progress):
        for name in columns:
            seen.add(id_column(piece, name, kind, makes_nodes=True))
    return EventNodes(ids=seen.finish(), kind=kind)


def _labels(table: Table, label: SingleLabels | None, progress: Progress) -> Array | None:
    """Return the class of every event, once all classes are known."""
    if label is None:
        return None
    label.class_names()
    pieces = _pieces(table, label.columns, "reading labels", progress)
    return np.concatenate([label.block(piece) for piece in pieces])


class _Columns:
    """The columns of all pieces so far."""

    def __init__(self) -> None:
        self.attr: list[Array] = []
        self._ends: list[list[Array]] = [[], []]
        self._times: list[TimeColumn] = []
        self._weights: list[Array] = []
        self.is_cut = False
        """Whether times had finer digits than are kept."""

    def add(self, ends: list[Array], times: TimeColumn, weight: Array | None) -> None:
        """Take in one piece."""
        for parts, rows in zip(self._ends, ends, strict=True):
            parts.append(rows)
        if self._times and times.dates != self._times[0].dates:
            raise DataError(
                "The times mix numbers and dates.",
                seen=f"{'dates' if self._times[0].dates else 'numbers'} first, then others",
                fix="write all times in one way",
            )
        self._times.append(times)
        self.is_cut |= times.is_cut
        if weight is not None:
            self._weights.append(weight)

    def notes(self) -> list[str]:
        """Return what a user should know of the times."""
        cut = "Dates are kept to microseconds: finer digits are cut off, in results too."
        return [cut] if self.is_cut else []

    def events(
        self,
        name: str,
        nodes: EventNodes,
        options: EventOptions,
        classes: tuple[Array | None, tuple[str | int, ...]],
    ) -> Events:
        """Return all of them."""
        label, class_names = classes
        dates = self._times[0].dates
        return Events(
            name=name,
            ids=nodes.ids,
            src=np.concatenate(self._ends[0]),
            dst=np.concatenate(self._ends[1]),
            time=np.concatenate([part.values for part in self._times]),
            ticks_per_second=DATE_TICKS if dates else options.ticks_per_second,
            dates=dates,
            weight=np.concatenate(self._weights) if self._weights else None,
            label=label,
            num_edge_classes=len(class_names),
            edge_class_names=class_names,
            x=nodes.x,
            feature_names=nodes.feature_names,
            y=nodes.y,
            num_classes=len(nodes.class_names),
            class_names=nodes.class_names,
        )

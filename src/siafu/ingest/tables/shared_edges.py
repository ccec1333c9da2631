"""The edge table read and sorted by several ranks, in files that all of them see.

Each span of row groups is scattered to buckets of its own. A bucket is then what all spans have of
it, one after another, so that its records lie as one process would have read them.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from siafu.files import write_text_atomically
from siafu.graph import Array, Crew, FolderWriter, Help, Partial, Told, load_ids
from siafu.graph.partial import NOTE_SECONDS
from siafu.ingest.tables.buckets import Buckets, SortedRows
from siafu.ingest.tables.edge_columns import join_states
from siafu.ingest.tables.ids import IdKind, IdRows, PaddedIdError, SeenIds, map_rows, save_made
from siafu.ingest.tables.row_groups import Place
from siafu.ops.threads import num_threads

if TYPE_CHECKING:
    from siafu.ingest.tables.edges import EdgeTable

Span = tuple[Place, Place | None]
WHOLE: Span = ((0, 0), None)
READ, SORTED = "edges read", "edges sorted"
_FIND, _READ_SPAN, _SORT = "find ids of a span", "read a span", "sort a bucket"


class SpanNotes:
    """How far one span is, in a file: what `Partial` is to the whole table."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, time.monotonic()
        self._state: Told = json.loads(path.read_text()) if path.exists() else {}

    def has(self, step: str) -> bool:
        """Return whether a step ended."""
        return step in self._state and bool(self._state[step]["ended"])

    def facts(self, step: str) -> dict[str, Any]:
        """Return what was noted of a step; nothing where it has not begun."""
        return dict(self._state.get(step, {}).get("facts", {}))

    @property
    def is_due(self) -> bool:
        """Whether a note should be made."""
        return time.monotonic() - self._written >= NOTE_SECONDS

    def note(self, step: str, **facts: Any) -> None:
        """Note how far a step is."""
        self._record(step, facts, ended=False)

    def end(self, step: str, **facts: Any) -> None:
        """Note that a step ended."""
        self._record(step, facts, ended=True)

    def _record(self, step: str, facts: dict[str, Any], *, ended: bool) -> None:
        self._state[step] = {"ended": ended, "facts": facts}
        write_text_atomically(self._path, json.dumps(self._state))
        self._written = time.monotonic()


def spans_of(facts: dict[str, Any]) -> list[Span]:
    """Return the spans that a table was cut into when reading began."""
    return [(tuple(start), stop and tuple(stop)) for start, stop in facts.get("spans", [WHOLE])]


def bucket_folders(scratch: Path, spans: Sequence[Span]) -> list[Path]:
    """Return where the records of each span are scattered to."""
    folder = scratch / "buckets"
    return [folder] if len(spans) == 1 else [folder / str(k) for k in range(len(spans))]


def _lookup(scratch: Path) -> Path:
    """Return where the first rank leaves what ids are looked up in."""
    return scratch / "lookup"


def read_apart(
    table: "EdgeTable",
    partial: Partial,
    rows: Callable[[], IdRows],
    spans: list[Span],
    num_nodes: int,
    most_buckets: int,
) -> None:
    """Have ranks read a span each into buckets."""
    facts = {"spans": spans, "most_buckets": most_buckets}
    if not partial.facts(READ):
        partial.note(READ, **facts)
        partial.write_state()  # the notes of spans have a meaning for these alone
    told = {
        "scratch": str(partial.scratch.absolute()),
        "nodes": {"path": str(partial.writer.path.absolute()), "state": partial.writer.state()},
        "kind": table.kind,
        "num_nodes": num_nodes,
        "columns": table.columns.state(),
        **facts,
    }
    lookup = _lookup(partial.scratch)
    shutil.rmtree(lookup, ignore_errors=True)  # of a process that was killed
    save_made(rows(), lookup)
    known = map_rows(partial.writer, lookup)

    def read(told: Told, number: int) -> Any:
        return _read_span(table, known, told, number)

    found = list(partial.crew.share(_READ_SPAN, read, told, range(len(spans))))
    shutil.rmtree(lookup, ignore_errors=True)
    partial.end(READ, columns=join_states(found), **facts)
    partial.discard(*(partial.scratch / f"span{number}.json" for number in range(len(spans))))


def _read_span(table: "EdgeTable", rows: IdRows, told: Told, number: int) -> Any:
    """Scatter the edges of one span and return what was counted of its columns."""
    scratch, spans = Path(told["scratch"]), spans_of(told)
    notes = SpanNotes(scratch / f"span{number}.json")
    if not notes.has(READ):
        table.columns.take_up(told["columns"])
        buckets = Buckets(
            bucket_folders(scratch, spans)[number],
            range(told["num_nodes"]),
            table.record_type(told["num_nodes"]),
            most_buckets=told["most_buckets"],
            sizes=notes.facts(READ).get("sizes", ()),
        )
        with buckets:
            table.scatter(notes, buckets, rows, told["num_nodes"], spans[number])
    return notes.facts(READ)["columns"]


def sorted_apart(
    table: "EdgeTable", partial: Partial, buckets: Buckets, done: int, num_nodes: int
) -> Iterator[tuple[int, list[SortedRows]]]:
    """Yield each bucket from `done` on with its rows in order, as ranks have sorted it."""
    spans = spans_of(partial.facts(READ))
    told = {
        "scratch": str(partial.scratch.absolute()),
        "spans": spans,
        "most_buckets": buckets.num_buckets,
        "kind": table.kind,
        "num_nodes": num_nodes,
        "columns": table.columns.state(),
    }
    folder, types = partial.scratch / "sorted", table.array_types(num_nodes)
    folder.mkdir(exist_ok=True)
    left = range(done, buckets.num_buckets)

    def sort(told: Told, bucket: int) -> None:
        _sort_bucket(table, buckets, told, bucket)

    found = partial.crew.share(_SORT, sort, told, left, at_once=num_threads())
    for bucket, _ in zip(left, found, strict=True):
        counts = np.fromfile(folder / f"{bucket}.counts", np.int64)
        records = {
            name: np.fromfile(folder / f"{bucket}.{name}", kind.base).reshape(-1, *kind.shape)
            for name, kind in types.items()
        }
        yield bucket, [SortedRows(buckets.first_row(bucket), counts, records)]
        for name in ("counts", *types):
            (folder / f"{bucket}.{name}").unlink()
    partial.discard(folder)


def _sort_bucket(table: "EdgeTable", buckets: Buckets, told: Told, bucket: int) -> None:
    """Sort one bucket into a file for each field."""
    folder, num_nodes = Path(told["scratch"]) / "sorted", told["num_nodes"]
    types = table.array_types(num_nodes)
    files = {name: (folder / f"{bucket}.{name}").open("wb") for name in ("counts", *types)}
    try:
        for rows in table.sorted_bucket(buckets, bucket, num_nodes):
            rows.counts.astype(np.int64).tofile(files["counts"])
            for name, kind in types.items():
                rows.records[name].astype(kind.base).tofile(files[name])
    finally:
        for file in files.values():
            file.close()


def seen_apart(table: "EdgeTable", scratch: Path, crew: Crew) -> SeenIds | None:
    """Return the ids that ranks found in a span each; None where one has to be read as text."""
    spans = table.table.spans(crew.size)
    told: Told = {"scratch": str(scratch.absolute()), "spans": spans, "kind": table.kind}

    def find(told: Told, number: int) -> bool:
        return _find_ids(table, told, number)

    if not all(list(crew.share(_FIND, find, told, range(len(spans))))):
        return None
    seen = SeenIds(table.kind)
    for number in range(len(spans)):
        folder = scratch / f"ids{number}"
        seen.add(load_ids(_Arrays(folder)).to_arrow())  # type: ignore[arg-type]
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    return seen


class _Arrays:
    """Arrays in a folder without a manifest, as ids are saved to and loaded from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def save(self, name: str, array: Array) -> None:
        np.save(self._folder / f"{name}.npy", array)

    def load(self, name: str) -> Array:
        return np.load(self._folder / f"{name}.npy")

    def __contains__(self, name: str) -> bool:
        return (self._folder / f"{name}.npy").exists()


def _find_ids(table: "EdgeTable", told: Told, number: int) -> bool:
    """Save the ids that a span names, and return whether they are of the kind that was taken."""
    try:
        seen = table.see_ids(spans_of(told)[number])
    except PaddedIdError:
        return False
    seen.finish().save(_Arrays(Path(told["scratch"]) / f"ids{number}"))  # type: ignore[arg-type]
    return True


class EdgeHelps:
    """What a rank other than the first does of an edge table, which it opens for itself."""

    def __init__(self, open_table: Callable[[IdKind], "EdgeTable"]) -> None:
        self._open, self._lock = open_table, threading.Lock()
        self._told: Told = {}

    def helps(self) -> dict[str, Help]:
        """Return it by task."""
        return {_FIND: self._find, _READ_SPAN: self._read, _SORT: self._sort}

    def _ready(self, told: Told) -> None:
        """Open the table as it is told, once a task."""
        with self._lock:
            if self._told is told:
                return
            self._table = self._open(told["kind"])
            if "num_nodes" in told:
                self._table.fit(told["num_nodes"])
                self._table.columns.take_up(told["columns"])
            self._rows: IdRows | None = None
            self._told = told

    def _find(self, told: Told, number: int) -> bool:
        self._ready(told)
        return _find_ids(self._table, told, number)

    def _read(self, told: Told, number: int) -> Any:
        self._ready(told)
        if self._rows is None:
            writer = FolderWriter(Path(told["nodes"]["path"]), "store")
            writer.restore(told["nodes"]["state"])
            self._rows = map_rows(writer, _lookup(Path(told["scratch"])))
        return _read_span(self._table, self._rows, told, number)

    def _sort(self, told: Told, bucket: int) -> None:
        self._ready(told)
        folders = bucket_folders(Path(told["scratch"]), spans_of(told))
        rows, record = range(told["num_nodes"]), self._table.record_type(told["num_nodes"])
        buckets = Buckets(folders, rows, record, most_buckets=told["most_buckets"])
        _sort_bucket(self._table, buckets, told, bucket)

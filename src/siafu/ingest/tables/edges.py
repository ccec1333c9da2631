"""The edge table of any size as the CSR arrays of a store, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import Array, FolderWriter, Partial, edge_type_dtype, index_dtype
from siafu.ingest.tables.buckets import Buckets, SortedRows, record_type
from siafu.ingest.tables.classes import TypeColumn, find_type_column
from siafu.ingest.tables.columns import is_list, number_block
from siafu.ingest.tables.files import MOST_NAMES, Piece, Table
from siafu.ingest.tables.ids import (
    IdKind,
    IdRows,
    PaddedIdError,
    SeenIds,
    column_kind,
    id_column,
    with_types,
)
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.store_builder import WrittenNodes
from siafu.record import Progress, shortened

_ROWS_AT_ONCE = 1 << 20
_CSV_ROW_BYTES = 12
_READ, _SORTED = "edges read", "edges sorted"
_ARRAY_OF_FIELD = {"weight": "edge_weight", "attr": "edge_attr", "type": "edge_type"}


class EdgeTable:
    """The edges of one graph, read as the options say."""

    def __init__(
        self, table: Table, options: TableOptions, progress: Progress, kind: IdKind | None = None
    ) -> None:
        """Prepare to read; `kind` is that of the node table's ids where there is one."""
        found = None
        if options.edge_type is None:
            found = find_type_column(table.schema(), options.edge_columns())
            options = replace(options, edge_type=found)
        self.options, self.progress = options, progress
        columns = options.edge_columns()
        table.check_columns(options.edge_flags())
        self.types = None if options.edge_type is None else TypeColumn(options.edge_type)
        numbers = [name for name in columns[2:] if name != options.edge_type]
        for name in numbers:
            _refuse_lists(table, name)
        self.kind: IdKind = kind or options.id_type or column_kind(table, options.src)
        self.table, self._numbers = table, numbers
        self.read_ids_as(self.kind)
        self._found_types = found is not None
        used = set(columns)
        self._unused = [name for name in table.schema().names if name not in used]

    def read_ids_as(self, kind: IdKind) -> None:
        """Take the ids as those of the nodes are: numbers or text."""
        self.kind = kind
        self.table = with_types(
            self.table,
            ids=self.options.edge_columns()[:2],
            kind=kind,
            numbers=self._numbers,
            is_asked=self.options.id_type is not None,
        )

    def attr_names(self) -> tuple[str, ...]:
        """Return what the features of an edge are called."""
        return self.options.edge_attr

    def notes(self) -> list[str]:
        """Return sentences for the user, once the edges are written."""
        notes = []
        if delimiter := self.table.delimiter():
            notes.append(f"The columns of the edge table are separated by {delimiter!r}.")
        if names := self.attr_names():
            notes.append(f"Edge features ({len(names):,}): {shortened(names, MOST_NAMES)}.")
        if self.types is not None and self._found_types:
            notes.append(f"Edge types are in column {self.types.column}: {len(self.types)}.")
        if self._unused:
            notes.append(f"Edge columns not used: {shortened(self._unused, MOST_NAMES)}.")
        return notes

    def write_seen_ids(self, writer: FolderWriter) -> WrittenNodes:
        """Write all ids that edges name, sorted: the nodes where there is no node table."""
        try:
            seen, notes = self._see_ids(), []
        except PaddedIdError as padded:
            self.read_ids_as("text")
            seen, notes = self._see_ids(), [padded.note()]
        seen.finish().save(writer)
        return WrittenNodes(notes=notes)

    def _see_ids(self) -> SeenIds:
        seen = SeenIds(self.kind)
        columns = (self.options.src, self.options.dst)
        for piece in self._pieces("finding nodes", columns):
            for name in columns:
                seen.add(id_column(piece, name, self.kind, makes_vertices=True))
        return seen

    def write(self, partial: Partial, rows: Callable[[], IdRows], num_nodes: int) -> int:
        """Write indptr, src and the edge data into the folder and return how many edges it has."""
        buckets = self._buckets(partial, num_nodes)
        if not partial.has(_READ):
            with buckets:
                self._scatter(partial, buckets, rows(), num_nodes)
        if self.types is not None:
            self.types.take_up(partial.facts(_READ)["types"])
        if not partial.has(_SORTED):
            self._sort(partial, buckets, num_nodes)
        return int(partial.facts(_SORTED)["num_edges"])

    def _buckets(self, partial: Partial, num_nodes: int) -> Buckets:
        """Return the buckets as they were cut when reading began: memory may be set anew since."""
        so_far = partial.facts(_READ)
        expected = self.table.estimate_rows(bytes_a_row=_CSV_ROW_BYTES)
        expected *= 2 if self.options.undirected else 1
        most = so_far.get("most_buckets", 2 * expected // self.options.bucket_edges + 1)
        return Buckets(
            partial.scratch / "buckets",
            range(num_nodes),
            self._record_type(num_nodes),
            most_buckets=most,
            sizes=so_far.get("sizes", ()),
        )

    def _scatter(self, partial: Partial, buckets: Buckets, rows: IdRows, num_nodes: int) -> None:
        """Read the edges into the buckets, from where the last note was made."""
        record, so_far = self._record_type(num_nodes), partial.facts(_READ)
        if self.types is not None:
            self.types.take_up(so_far.get("types", []))

        def facts() -> dict[str, Any]:
            return {
                "most_buckets": buckets.num_buckets,
                "position": position,
                "sizes": buckets.sizes(),
                "types": [] if self.types is None else self.types.met(),
            }

        position = tuple(so_far.get("position", (0, 0)))
        for piece in self._pieces("reading edges", self.options.edge_columns(), position):
            buckets.add(self._records(piece, rows, record))
            position = (piece.file_number, piece.first_row + piece.batch.num_rows)
            if partial.is_due:
                partial.note(_READ, **facts())
        partial.end(_READ, **facts())

    def _sort(self, partial: Partial, buckets: Buckets, num_nodes: int) -> None:
        """Sort one bucket after another into the arrays, from where the last note was made."""
        so_far = partial.facts(_SORTED)
        arrays = EdgeArrays(partial.writer, self._array_types(num_nodes), num_nodes, so_far)
        type_of_code = None if self.types is None else self.types.type_of_code()
        for bucket in range(int(so_far.get("buckets", 0)), buckets.num_buckets):
            for rows in buckets.sorted_rows(
                bucket, most_records=self.options.bucket_edges, type_of_code=type_of_code
            ):
                arrays.append(rows)
                self.progress("sorting edges", rows.low + len(rows.counts), num_nodes)
            partial.discard(buckets.path(bucket))
            if partial.is_due:
                partial.note(_SORTED, buckets=bucket + 1, **arrays.flushed())
        num_edges = arrays.close()
        partial.discard(partial.scratch / "buckets")
        partial.end(_SORTED, num_edges=num_edges)

    def _array_types(self, num_nodes: int) -> dict[str, np.dtype[Any]]:
        """Return the dtype of each field of a record as the store has it."""
        record = self._record_type(num_nodes)
        types = {name: record[name] for name in record.names if name not in ("dst", "reverse")}
        if self.types is not None:
            types["type"] = edge_type_dtype(len(self.types))
        return types

    def _record_type(self, num_nodes: int) -> Any:
        return record_type(
            index_dtype(num_nodes),
            undirected=self.options.undirected,
            weight=self.options.edge_weight is not None,
            attr=len(self.options.edge_attr),
            typed=self.types is not None,
        )

    def _pieces(
        self, phase: str, columns: Sequence[str], start: tuple[int, int] = (0, 0)
    ) -> Iterator[Piece]:
        total, done = self.table.num_rows(), self.table.rows_before(start)
        self.progress(phase, done, total)
        names = list(dict.fromkeys(columns))
        for piece in self.table.pieces(names, rows=_ROWS_AT_ONCE, start=start):
            yield piece
            done += piece.batch.num_rows
            self.progress(phase, done, total)
        if done == 0 and start == (0, 0):
            raise DataError(
                "The edge table has no rows.",
                seen=", ".join(str(file) for file in self.table.files[:3]),
                fix="check that the export was complete",
            )

    def _records(self, piece: Piece, rows: IdRows, record: Any) -> Array:
        """Return one record an edge and, for undirected graphs, one for its reverse after it."""
        num_edges = piece.batch.num_rows
        records = np.empty(num_edges, dtype=record)
        for end, name in (("src", self.options.src), ("dst", self.options.dst)):
            records[end] = self._find(piece, name, rows)
        if self.options.edge_weight is not None:
            records["weight"] = number_block(piece, [self.options.edge_weight])[:, 0]
        if self.options.edge_attr:
            records["attr"] = number_block(piece, self.options.edge_attr)
        if self.types is not None:
            records["type"] = self.types.codes(piece)
        if not self.options.undirected:
            return records
        records["reverse"] = False
        reverses = records.copy()
        reverses["reverse"] = True
        reverses["src"], reverses["dst"] = records["dst"], records["src"]
        return np.concatenate([records, reverses])

    def _find(self, piece: Piece, name: str, rows: IdRows) -> Array:
        column: pa.Array = id_column(piece, name, self.kind)
        found = rows.find(column)
        if len(found) and found.min() < 0:
            row = int(np.argmax(found < 0))
            raise DataError(
                "An edge names a node that the node table does not have.",
                seen=f"id {column[row].as_py()!r} in column {name!r}, {piece.where(row)}",
                fix="add the node to the node table, or drop the edge",
            )
        return found


def _refuse_lists(table: Table, name: str) -> None:
    kind = table.schema().field(name).type
    if is_list(kind):
        raise DataError(
            "A column of edges holds lists.",
            seen=f"column {name!r} of {table.files[0]} is {kind}",
            fix="give an edge one number per column, and name them all: --edge-attr a,b,c",
        )


class EdgeArrays:
    """The edge arrays of a store, appended to as rows come sorted; a note says how far."""

    def __init__(
        self,
        writer: FolderWriter,
        types: dict[str, np.dtype[Any]],
        num_nodes: int,
        so_far: dict[str, Any],
    ) -> None:
        self._writer = writer
        rows, self._edges = int(so_far.get("rows", 0)), int(so_far.get("edges", 0))
        self._indptr = writer.stream("indptr", (num_nodes + 1,), np.int64, kept_rows=rows)
        if not rows:
            self._indptr.append(np.zeros(1, np.int64))
        self._streams = {
            name: writer.stream(
                _ARRAY_OF_FIELD.get(name, name),
                (-1, *dtype.shape),
                dtype.base,
                kept_rows=self._edges,
            )
            for name, dtype in types.items()
        }

    def append(self, rows: SortedRows) -> None:
        """Add the edges of some rows, which follow those before."""
        self._indptr.append(self._edges + np.cumsum(rows.counts))
        for name, stream in self._streams.items():
            stream.append(rows.records[name])
        self._edges += len(rows.records)

    def flushed(self) -> dict[str, int]:
        """Return how far the arrays are, all of it on the disk by then."""
        for stream in (self._indptr, *self._streams.values()):
            stream.flush()
        return {"rows": self._indptr.written_rows, "edges": self._edges}

    def close(self) -> int:
        """Complete the arrays and return the number of edges."""
        for name in ("indptr", *(_ARRAY_OF_FIELD.get(name, name) for name in self._streams)):
            self._writer.close(name)
        return self._edges

"""The edge table of any size as the CSR arrays of a store, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import Array, FolderWriter, Partial, edge_type_dtype, index_dtype
from siafu.ingest.tables.buckets import Begun, Buckets, begin_records, record_type
from siafu.ingest.tables.budget import bucket_edges, edge_pieces, fit_tables
from siafu.ingest.tables.classes import NO_LABEL
from siafu.ingest.tables.columns import as_float32, number_block
from siafu.ingest.tables.edge_arrays import EdgeArrays
from siafu.ingest.tables.edge_columns import Dropped, choose_edge_columns
from siafu.ingest.tables.features import place_categories, read_block
from siafu.ingest.tables.files import MixedTypesError, Piece, Table
from siafu.ingest.tables.ids import (
    IdKind,
    IdRows,
    PaddedIdError,
    SeenIds,
    column_kind,
    id_column,
    with_types,
    written_otherwise,
)
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.problems import Problems
from siafu.ingest.tables.repeated import empty_ids
from siafu.ingest.tables.splits import split_codes
from siafu.ingest.tables.store_builder import WrittenEdges, WrittenNodes
from siafu.ops.threads import in_order, num_threads
from siafu.record import Progress

_AHEAD, _PIECES_AT_ONCE = 8, 64
"""Pieces worked on (and buckets sorted) at once; pieces between two notes."""
_CSV_ROW_BYTES = 12
_READ, _SORTED = "edges read", "edges sorted"


class EdgeTable:
    """The edges of one graph, read as the options say."""

    def __init__(
        self,
        table: Table,
        options: TableOptions,
        progress: Progress,
        kind: IdKind | None = None,
        problems: Problems | None = None,
    ) -> None:
        """Prepare to read; `kind` is that of the node table's ids where there is one."""
        self.options, self.progress = options, progress
        self.problems = problems or Problems()
        self.columns = choose_edge_columns(table, options, self.problems)
        self.types = self.columns.types
        self.kind: IdKind = kind or options.id_type or column_kind(table, self.columns.src)
        self.table, self._as_text = table, False
        self.read_ids_as(self.kind)

    def read_ids_as(self, kind: IdKind) -> None:
        """Take the ids as those of the nodes are: numbers or text."""
        self.kind = kind
        weight = self.columns.weights
        numbers = [weight.column] if weight.column and weight.is_read else []
        labels = self.columns.labels
        table = with_types(
            self.table,
            ids=(self.columns.src, self.columns.dst),
            kind=kind,
            numbers=numbers,
            is_asked=self.options.id_type is not None,
        )
        table = self.columns.features.typed(table, as_text=self._as_text)
        if self.types is not None:  # whole numbers stay such, also where they are features
            table = replace(
                table, types={n: t for n, t in table.types.items() if n != self.types.column}
            )
        self.table = table.with_text(labels.columns if labels else ())

    def written(self) -> WrittenEdges:
        """Return what is known of the edges beside their arrays, once they are written."""
        columns, types = self.columns, self.types
        shown = self.table.shown()
        delimiter = self.table.delimiter()
        apart = f"The columns of the edge table are separated by {delimiter!r}."
        return WrittenEdges(
            num_types=0 if types is None else len(types),
            type_names=() if types is None else types.names(),
            columns=columns.described(),
            targets=columns.targets(),
            class_names=() if columns.labels is None else tuple(columns.labels.class_names()),
            unused={name: one.why_not for name, one in columns.features.unused.items()},
            undirected=self.options.undirected,
            notes=[*([apart] if delimiter else []), *columns.notes(shown)],
        )

    def write_seen_ids(self, writer: FolderWriter) -> WrittenNodes:
        """Write all ids that edges name, sorted: the nodes where there is no node table."""
        try:
            seen, notes = self._see_ids(), []
        except PaddedIdError as padded:
            self.read_ids_as("text")
            seen, notes = self._see_ids(), [padded.note()]
        ids = seen.finish()
        if not len(ids):
            self.columns.check(self.problems, drop=False)
            self.problems.raise_any()
        ids.save(writer)
        return WrittenNodes(notes=notes)

    def _see_ids(self) -> SeenIds:
        seen = SeenIds(self.kind)
        columns = (self.columns.src, self.columns.dst)
        for piece in self._pieces("finding nodes", columns):
            kept = self._without_empty(piece)
            for name in columns:
                seen.add(id_column(kept, name, self.kind, makes_nodes=True))
        self.columns.dropped = Dropped()  # counted when the edges are read
        return seen

    def write(self, partial: Partial, rows: Callable[[], IdRows], num_nodes: int) -> int:
        """Write indptr, src and the edge data into the folder and return how many edges it has."""
        self.options = fit_tables(self.options, num_nodes)
        self._scan_targets()
        buckets = self._buckets(partial, num_nodes)
        if not partial.has(_READ):
            with buckets:
                self._scatter(partial, buckets, rows(), num_nodes)
        self.columns.take_up(partial.facts(_READ).get("columns", {}))
        self.columns.check(self.problems, self.options.drop_unknown)
        self.problems.raise_any()
        if not partial.has(_SORTED):
            self._sort(partial, buckets, num_nodes)
        return int(partial.facts(_SORTED)["num_edges"])

    def _scan_targets(self) -> None:
        labels = self.columns.labels
        if labels is not None:
            labels.begin()
            for piece in self._pieces("finding classes of edges", labels.columns):
                labels.scan(piece)
            labels.class_names()

    def _buckets(self, partial: Partial, num_nodes: int) -> Buckets:
        """Return the buckets as they were cut when reading began: memory may be set anew since."""
        so_far = partial.facts(_READ)
        expected = self.table.estimate_rows(bytes_a_row=_CSV_ROW_BYTES)
        expected *= 2 if self.options.undirected else 1
        at_once = 2 * min(_AHEAD, num_threads())
        most = 2 * expected // self._bucket_edges(num_nodes) * at_once + at_once
        most = so_far.get("most_buckets", most)
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
        self.columns.take_up(so_far.get("columns", {}))

        def facts() -> dict[str, Any]:
            return {
                "most_buckets": buckets.num_buckets,
                "position": position,
                "sizes": buckets.sizes(),
                "columns": self.columns.state(),
            }

        position = tuple(so_far.get("position", (0, 0)))
        found = self._looked_up(rows, record, position)

        def records() -> Iterator[Array]:
            nonlocal position, found
            for _ in range(_PIECES_AT_ONCE):
                try:
                    piece, begun = next(found)
                except StopIteration:
                    return
                except MixedTypesError:
                    if self._as_text:
                        raise
                    self._as_text = True
                    self.read_ids_as(self.kind)
                    found = self._looked_up(rows, record, position)
                    continue
                yield self._records(piece, rows, record, begun)
                position = (piece.file_number, piece.first_row + piece.batch.num_rows)

        before = None
        while position != before:
            before = position
            buckets.add_all(records(), ahead=_AHEAD)
            if position != before and partial.is_due:
                partial.note(_READ, **facts())
        partial.end(_READ, **facts())

    def _looked_up(
        self, rows: IdRows, record: Any, position: tuple[int, int]
    ) -> Iterator[tuple[Piece, Begun | None]]:
        """Yield the pieces from here on with records that threads looked the ends up for.

        Nothing instead says that an id is missing or not known, which is counted in order.
        """
        names = (self.columns.src, self.columns.dst)

        def look_up(piece: Piece) -> tuple[Piece, Begun | None]:
            if any(empty_ids(piece, name) is not None for name in names):
                return piece, None
            ends = [rows.find(id_column(piece, name, self.kind)) for name in names]
            known = all(not len(end) or end.min() >= 0 for end in ends)
            return piece, begin_records(ends, record) if known else None

        pieces = self._pieces("reading edges", self.columns.names(), position)
        return in_order(look_up, pieces, ahead=_AHEAD)

    def _sort(self, partial: Partial, buckets: Buckets, num_nodes: int) -> None:
        """Sort one bucket after another into the arrays, from where the last note was made."""
        so_far = partial.facts(_SORTED)
        arrays = EdgeArrays(partial.writer, self._array_types(num_nodes), num_nodes, so_far)
        type_of_code = None if self.types is None else self.types.type_of_code()
        done = int(so_far.get("buckets", 0))
        for bucket, found in buckets.all_sorted(
            done, most_records=self._bucket_edges(num_nodes), type_of_code=type_of_code
        ):
            # A bucket that comes in pieces has ended when the next one begins.
            if bucket > done:
                partial.discard(*(buckets.path(old) for old in range(done, bucket)))
                done = bucket
                if partial.is_due:
                    partial.note(_SORTED, buckets=done, **arrays.flushed())
            for rows in found:
                if self.columns.features.categories:
                    place_categories(rows.records["attr"], self.columns.features.readers)
                arrays.append(rows)
                self.progress("sorting edges", rows.low + len(rows.counts), num_nodes)
        num_edges = arrays.close()
        partial.discard(partial.scratch / "buckets")
        partial.end(_SORTED, num_edges=num_edges)

    def _array_types(self, num_nodes: int) -> dict[str, np.dtype[Any]]:
        """Return the dtype of each field of a record as the store has it."""
        record, left_out = self._record_type(num_nodes), {"dst", "reverse"}
        if self.columns.weights.why_not:
            left_out.add("weight")
        types = {name: record[name] for name in record.names if name not in left_out}
        if self.types is not None:
            types["type"] = edge_type_dtype(len(self.types))
        return types

    def _record_type(self, num_nodes: int) -> Any:
        return record_type(
            index_dtype(num_nodes),
            undirected=self.options.undirected,
            weight=self.columns.weights.column is not None and self.columns.weights.is_read,
            attr=self.columns.attr_width(),
            typed=self.types is not None,
            target=self._target_type(),
            others=self._other_fields(),
        )

    def _other_fields(self) -> list[tuple[str, Any]]:
        """Return the row of the table, by which predictions are joined to it, and the split."""
        rows = [("row", np.int64)] if self.options.edge_label is not None else []
        return rows + ([("split", np.uint8)] if self.columns.masks is not None else [])

    def _target_type(self) -> Any:
        """Return the dtype and shape of what is predicted of an edge; None where nothing is."""
        labels = self.columns.labels
        if labels is None:
            return None
        if labels.kind == "labels":
            raise DataError(
                "Edges have one class each, or numbers.",
                seen=f"columns {', '.join(labels.columns)} hold several classes of an edge",
                fix="name one column of classes, or columns of numbers: --edge-label COLUMN",
            )
        return (np.int64,) if labels.kind == "class" else (np.float32, (len(labels.described()),))

    def _bucket_edges(self, num_nodes: int) -> int:
        return bucket_edges(self.options, num_nodes, self._record_type(num_nodes).itemsize)

    def _pieces(
        self, phase: str, columns: Sequence[str], start: tuple[int, int] = (0, 0)
    ) -> Iterator[Piece]:
        total, done = self.table.num_rows(), self.table.rows_before(start)
        self.progress(phase, done, total)
        names = list(dict.fromkeys(columns))
        limits = edge_pieces(self.options, len(names) + self.columns.attr_width())
        for piece in self.table.pieces(names, start=start, **limits):
            yield piece
            done += piece.batch.num_rows
            self.progress(phase, done, total)
        if done == 0 and start == (0, 0):
            raise DataError(
                "The edge table has no rows.",
                seen=", ".join(str(file) for file in self.table.files[:3]),
                fix="check that the export was complete",
            )

    def _without_empty(self, piece: Piece) -> Piece:
        """Return the piece without edges that have no id at one end, which are counted."""
        for name in (self.columns.src, self.columns.dst):
            is_empty = empty_ids(piece, name)
            if is_empty is not None:
                dropped = self.columns.dropped
                dropped.empty += int(is_empty.sum())
                where = f"column {name!r}, {piece.where(int(np.argmax(is_empty)))}"
                dropped.first_empty = dropped.first_empty or where
                piece = piece.only(~is_empty)
        return piece

    def _records(self, piece: Piece, rows: IdRows, record: Any, begun: Begun | None) -> Array:
        """Return one record per edge and, for undirected graphs, one for its reverse after it."""
        columns = self.columns
        first_row = columns.dropped.rows
        columns.dropped.rows += piece.batch.num_rows
        if begun is None:
            piece, ends = self._with_known_ends(self._without_empty(piece), rows)
            begun = begin_records(ends, record)
        records = begun.records
        columns.dropped.loops += begun.loops
        if "weight" in record.names:
            records["weight"] = self._weights(piece)
        if columns.features.readers:
            records["attr"] = read_block(piece, columns.features.readers)
        if self.types is not None:
            records["type"] = self.types.codes(piece)
        if columns.labels is not None:
            records["target"] = columns.labels.block(piece)
        if "row" in record.names:
            records["row"] = first_row + piece.rows_kept()
        if columns.masks is not None:
            records["split"] = split_codes(columns.masks.read(piece), records["target"])
        return self._with_reverses(records) if self.options.undirected else records

    def _with_reverses(self, records: Array) -> Array:
        """Return the records and, after them, their reverses, which are not asked about again."""
        records["reverse"] = False
        reverses = records.copy()
        reverses["reverse"] = True
        reverses["src"], reverses["dst"] = records["dst"], records["src"]
        labels = self.columns.labels
        if labels is not None:
            reverses["target"] = NO_LABEL if labels.kind == "class" else np.nan
        for name, nothing in (("row", -1), ("split", 0)):
            if name in dict(self._other_fields()):
                reverses[name] = nothing
        return np.concatenate([records, reverses])

    def _weights(self, piece: Piece) -> Array:
        weights = self.columns.weights
        assert weights.column is not None
        if weights.is_asked:
            return number_block(piece, [weights.column])[:, 0]
        values = as_float32(piece.column(weights.column))
        weights.check(piece, values)
        return values

    def _rows_of(self, column: pa.Array, rows: IdRows) -> Array:
        """Return the rows of ids, -1 where there is none; blanks around an unknown one are none."""
        found = rows.find(column)
        if self.kind == "text" and len(found) and found.min() < 0:
            lost = np.flatnonzero(found < 0)
            again = rows.find(pc.utf8_trim_whitespace(column.take(pa.array(lost))))
            found[lost] = again
            self.columns.dropped.trimmed += int((again >= 0).sum())
        return found

    def _with_known_ends(self, piece: Piece, rows: IdRows) -> tuple[Piece, list[Array]]:
        """Return the edges whose two nodes are known, with the rows of those."""
        names = (self.columns.src, self.columns.dst)
        columns = [id_column(piece, name, self.kind) for name in names]
        ends = [self._rows_of(column, rows) for column in columns]
        lost = [end < 0 if len(end) and end.min() < 0 else None for end in ends]
        if lost[0] is None and lost[1] is None:
            return piece, ends
        dropped = self.columns.dropped
        unknown = np.zeros(piece.batch.num_rows, bool)
        for name, column, is_lost in zip(names, columns, lost, strict=True):
            if is_lost is not None:
                row = int(np.argmax(is_lost))
                if not dropped.first_unknown:
                    text = str(column[row].as_py())
                    shown = f"id {column[row].as_py()!r} in column {name!r}, {piece.where(row)}"
                    dropped.first_unknown = shown
                    dropped.written_otherwise = written_otherwise(text, rows, self.kind)
                unknown |= is_lost
        dropped.unknown += int(unknown.sum())
        return piece.only(~unknown), [end[~unknown] for end in ends]

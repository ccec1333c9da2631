"""The edge table of any size as the CSR arrays of a store, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, FolderWriter, Partial, edge_type_dtype, index_dtype
from siafu.ingest.tables.buckets import Begun, Buckets, SortedRows, begin_records, record_type
from siafu.ingest.tables.budget import bucket_edges, edge_pieces, fit_tables
from siafu.ingest.tables.columns import as_float32, number_block
from siafu.ingest.tables.edge_arrays import EdgeArrays, with_reverses
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
)
from siafu.ingest.tables.known_ends import with_known_ends, without_empty
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.problems import Problems
from siafu.ingest.tables.repeated import empty_ids
from siafu.ingest.tables.row_groups import Place
from siafu.ingest.tables.shared_edges import (
    READ,
    SORTED,
    WHOLE,
    Span,
    SpanNotes,
    bucket_folders,
    read_apart,
    seen_apart,
    sorted_apart,
    spans_of,
)
from siafu.ingest.tables.splits import split_codes
from siafu.ingest.tables.store_builder import WrittenEdges, WrittenNodes
from siafu.ops.threads import in_order, num_threads
from siafu.record import Progress

_AHEAD, _PIECES_AT_ONCE = 8, 64
"""Pieces worked on (and buckets sorted) at once; pieces between two notes."""
_CSV_ROW_BYTES = 12


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

    def write_seen_ids(self, writer: FolderWriter, partial: Partial) -> WrittenNodes:
        """Write all ids that edges name, sorted: the nodes where there is no node table."""
        seen, notes = None, list[str]()
        if partial.crew.size > 1:
            seen = seen_apart(self, partial.scratch, partial.crew)
        try:
            seen = seen or self.see_ids()
        except PaddedIdError as padded:
            self.read_ids_as("text")
            seen, notes = self.see_ids(), [padded.note()]
        ids = seen.finish()
        if not len(ids):
            self.columns.check(self.problems, drop=False)
            self.problems.raise_any()
        ids.save(writer)
        return WrittenNodes(notes=notes)

    def see_ids(self, span: Span = WHOLE) -> SeenIds:
        """Return the ids that a span of the table names."""
        seen = SeenIds(self.kind)
        columns = (self.columns.src, self.columns.dst)
        for piece in self._pieces("finding nodes", columns, *span):
            kept = without_empty(piece, self.columns)
            for name in columns:
                seen.add(id_column(kept, name, self.kind, makes_nodes=True))
        self.columns.dropped = Dropped()  # counted when the edges are read
        return seen

    def write(self, partial: Partial, rows: Callable[[], IdRows], num_nodes: int) -> int:
        """Write indptr, src and the edge data into the folder and return how many edges it has."""
        self.fit(num_nodes)
        self._scan_targets()
        buckets = self._buckets(partial, spans := self._spans(partial), num_nodes)
        if not partial.has(READ) and len(spans) > 1:
            read_apart(self, partial, rows, spans, num_nodes, buckets.num_buckets)
        elif not partial.has(READ):
            with buckets:
                self.scatter(partial, buckets, rows(), num_nodes)
        self.columns.take_up(partial.facts(READ).get("columns", {}))
        self.columns.check(self.problems, self.options.drop_unknown)
        self.problems.raise_any()
        if not partial.has(SORTED):
            self._sort(partial, buckets, num_nodes)
        return int(partial.facts(SORTED)["num_edges"])

    def fit(self, num_nodes: int) -> None:
        """Take pieces that fit, now that the number of nodes is known."""
        self.options = fit_tables(self.options, num_nodes)

    def _spans(self, partial: Partial) -> list[Span]:
        """Return the spans that ranks read, as they were when reading began."""
        so_far = partial.facts(READ)
        if so_far or partial.crew.size == 1 or not self.columns.may_be_read_apart:
            return spans_of(so_far)
        return self.table.spans(partial.crew.size)

    def _scan_targets(self) -> None:
        if (labels := self.columns.labels) is not None:
            labels.begin()
            for piece in self._pieces("finding classes of edges", labels.columns):
                labels.scan(piece)
            labels.class_names()

    def _buckets(self, partial: Partial, spans: list[Span], num_nodes: int) -> Buckets:
        """Return the buckets as they were cut when reading began: memory may be set anew since."""
        so_far = partial.facts(READ)
        expected = self.table.estimate_rows(bytes_a_row=_CSV_ROW_BYTES)
        expected *= 2 if self.options.undirected else 1
        at_once = 2 * min(_AHEAD, num_threads())
        most = 2 * expected // self._bucket_edges(num_nodes) * at_once + at_once
        most = so_far.get("most_buckets", most)
        return Buckets(
            bucket_folders(partial.scratch, spans),
            range(num_nodes),
            self.record_type(num_nodes),
            most_buckets=most,
            sizes=so_far.get("sizes", ()),
        )

    def scatter(
        self,
        partial: Partial | SpanNotes,
        buckets: Buckets,
        rows: IdRows,
        num_nodes: int,
        span: Span = WHOLE,
    ) -> None:
        """Read the edges of a span into the buckets, from where the last note was made."""
        record, so_far = self.record_type(num_nodes), partial.facts(READ)
        self.columns.take_up(so_far.get("columns", {}))

        def facts() -> dict[str, Any]:
            return {
                "most_buckets": buckets.num_buckets,
                "position": position,
                "sizes": buckets.sizes(),
                "columns": self.columns.state(),
            }

        position = tuple(so_far.get("position", span[0]))
        found = self._looked_up(rows, record, position, span[1])

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
                    found = self._looked_up(rows, record, position, span[1])
                    continue
                yield self._records(piece, rows, record, begun)
                position = (piece.file_number, piece.first_row + piece.batch.num_rows)

        before = None
        while position != before:
            before = position
            buckets.add_all(records(), ahead=_AHEAD)
            if position != before and partial.is_due:
                partial.note(READ, **facts())
        partial.end(READ, **facts())

    def _looked_up(
        self, rows: IdRows, record: Any, position: Place, stop: Place | None
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

        pieces = self._pieces("reading edges", self.columns.names(), position, stop)
        return in_order(look_up, pieces, ahead=_AHEAD)

    def _sort(self, partial: Partial, buckets: Buckets, num_nodes: int) -> None:
        """Sort one bucket after another into the arrays, from where the last note was made."""
        so_far = partial.facts(SORTED)
        arrays = EdgeArrays(partial.writer, self.array_types(num_nodes), num_nodes, so_far)
        done = int(so_far.get("buckets", 0))
        for bucket, found in self._all_sorted(partial, buckets, done, num_nodes):
            # A bucket that comes in pieces has ended when the next one begins.
            if bucket > done:
                partial.discard(*(p for old in range(done, bucket) for p in buckets.paths(old)))
                done = bucket
                if partial.is_due:
                    partial.note(SORTED, buckets=done, **arrays.flushed())
            for rows in found:
                arrays.append(rows)
                self.progress("sorting edges", rows.low + len(rows.counts), num_nodes)
        num_edges = arrays.close()
        partial.discard(partial.scratch / "buckets")
        partial.end(SORTED, num_edges=num_edges)

    def _all_sorted(
        self, partial: Partial, buckets: Buckets, done: int, num_nodes: int
    ) -> Iterator[tuple[int, list[SortedRows]]]:
        if partial.crew.size > 1:
            yield from sorted_apart(self, partial, buckets, done, num_nodes)
            return
        for bucket, found in buckets.all_sorted(done, **self._sorting(num_nodes)):
            for rows in found:
                self._place(rows)
            yield bucket, found

    def sorted_bucket(self, buckets: Buckets, bucket: int, num_nodes: int) -> Iterator[SortedRows]:
        """Yield the rows of one bucket in order, as the store has them."""
        for rows in buckets.sorted_rows(bucket, **self._sorting(num_nodes)):
            self._place(rows)
            yield rows

    def _sorting(self, num_nodes: int) -> dict[str, Any]:
        types = None if self.types is None else self.types.type_of_code()
        return {"most_records": self._bucket_edges(num_nodes), "type_of_code": types}

    def _place(self, rows: SortedRows) -> None:
        if (features := self.columns.features).categories:
            place_categories(rows.records["attr"], features.readers)

    def array_types(self, num_nodes: int) -> dict[str, np.dtype[Any]]:
        """Return the dtype of each field of a record as the store has it."""
        record, left_out = self.record_type(num_nodes), {"dst", "reverse"}
        if self.columns.weights.why_not:
            left_out.add("weight")
        types = {name: record[name] for name in record.names if name not in left_out}
        if self.types is not None:
            types["type"] = edge_type_dtype(len(self.types))
        return types

    def record_type(self, num_nodes: int) -> Any:
        """Return the dtype of what is kept of an edge until edges are sorted."""
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
        return bucket_edges(self.options, num_nodes, self.record_type(num_nodes).itemsize)

    def _pieces(
        self,
        phase: str,
        columns: Sequence[str],
        start: Place = WHOLE[0],
        stop: Place | None = None,
    ) -> Iterator[Piece]:
        total, done = self.table.num_rows(), self.table.rows_before(start)
        self.progress(phase, done, total)
        names = list(dict.fromkeys(columns))
        limits = edge_pieces(self.options, len(names) + self.columns.attr_width())
        for piece in self.table.pieces(names, start=start, stop=stop, **limits):
            yield piece
            done += piece.batch.num_rows
            self.progress(phase, done, total)
        if done == 0 and start == (0, 0):
            raise DataError(
                "The edge table has no rows.",
                seen=", ".join(str(file) for file in self.table.files[:3]),
                fix="check that the export was complete",
            )

    def _records(self, piece: Piece, rows: IdRows, record: Any, begun: Begun | None) -> Array:
        """Return one record per edge and, for undirected graphs, one for its reverse after it."""
        columns = self.columns
        first_row = columns.dropped.rows
        columns.dropped.rows += piece.batch.num_rows
        if begun is None:
            kept = without_empty(piece, columns)
            piece, ends = with_known_ends(kept, rows, columns, self.kind)
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
        if not self.options.undirected:
            return records
        return with_reverses(records, None if columns.labels is None else columns.labels.kind)

    def _weights(self, piece: Piece) -> Array:
        weights = self.columns.weights
        assert weights.column is not None
        if weights.is_asked:
            return number_block(piece, [weights.column])[:, 0]
        values = as_float32(piece.column(weights.column))
        weights.check(piece, values)
        return values

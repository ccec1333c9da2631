"""The edge table of any size as the CSR arrays of a store, in bounded memory."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import Array, FolderWriter, Ids, edge_type_dtype, index_dtype
from siafu.ingest.buckets import Buckets, SortedRows, record_type
from siafu.ingest.edge_types import TypeColumn, find_type_column
from siafu.ingest.id_rows import IdKind, IdRows, SeenIds, column_kind, id_column, with_types
from siafu.ingest.numbers import number_block
from siafu.ingest.progress import Progress
from siafu.ingest.table_files import Piece, Table
from siafu.ingest.table_options import TableOptions

_ROWS_AT_ONCE = 1 << 20
_COPIED_BYTES = 1 << 24
_CSV_ROW_BYTES = 12
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
        self.kind: IdKind = kind or options.id_type or column_kind(table, options.src)
        numbers = [name for name in columns[2:] if name != options.edge_type]
        self.table = with_types(table, ids=columns[:2], kind=self.kind, numbers=numbers)
        self._found_types = found is not None
        self._unused = [name for name in table.schema().names if name not in columns]

    def notes(self) -> list[str]:
        """Return sentences for the user, once the edges are written."""
        notes = []
        if self.types is not None and self._found_types:
            notes.append(f"Edge types are in column {self.types.column}: {len(self.types)}.")
        if self._unused:
            notes.append(f"Edge columns not used: {', '.join(self._unused)}.")
        return notes

    def seen_ids(self) -> Ids:
        """Return all ids that edges name, sorted: the vertices where there is no node table."""
        seen = SeenIds(self.kind)
        columns = (self.options.src, self.options.dst)
        for piece in self._pieces("finding vertices", columns):
            for name in columns:
                seen.add(id_column(piece, name, self.kind))
        return seen.finish()

    def write(self, writer: FolderWriter, rows: IdRows, num_nodes: int) -> int:
        """Write indptr, src and the edge data into the folder and return how many edges it has."""
        scratch = writer.path / "scratch"
        scratch.mkdir()
        record = self._record_type(num_nodes)
        expected = self.table.estimate_rows(bytes_a_row=_CSV_ROW_BYTES)
        expected *= 2 if self.options.undirected else 1
        buckets = Buckets(
            scratch / "buckets",
            range(num_nodes),
            record,
            most_buckets=2 * expected // self.options.bucket_edges + 1,
        )
        with buckets:
            for piece in self._pieces("reading edges", self.options.edge_columns()):
                buckets.add(self._records(piece, rows, record))
        stored = {} if self.types is None else {"type": edge_type_dtype(len(self.types))}
        names = _data_columns(record)
        spools = [Spool(scratch / name, record[name], stored.get(name)) for name in names]
        num_edges = self._write_sorted(writer, buckets, spools, num_nodes)
        shutil.rmtree(scratch)
        return num_edges

    def _record_type(self, num_nodes: int) -> Any:
        return record_type(
            index_dtype(num_nodes),
            undirected=self.options.undirected,
            weight=self.options.edge_weight is not None,
            attr=len(self.options.edge_attr),
            typed=self.types is not None,
        )

    def _pieces(self, phase: str, columns: tuple[str, ...] | list[str]) -> Iterator[Piece]:
        total, done = self.table.num_rows(), 0
        self.progress(phase, 0, total)
        for piece in self.table.pieces(list(dict.fromkeys(columns)), rows=_ROWS_AT_ONCE):
            yield piece
            done += piece.batch.num_rows
            self.progress(phase, done, total)
        if done == 0:
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
                "An edge names a vertex that the node table does not have.",
                seen=f"id {column[row].as_py()!r} in column {name!r}, {piece.where(row)}",
                fix="add the vertex to the node table, or drop the edge",
            )
        return found

    def _write_sorted(
        self, writer: FolderWriter, buckets: Buckets, spools: list["Spool"], num_nodes: int
    ) -> int:
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        type_of_code = None if self.types is None else self.types.type_of_code()
        for rows in buckets.sorted_rows(
            most_records=self.options.bucket_edges, type_of_code=type_of_code
        ):
            _append(rows, indptr, spools)
            self.progress("sorting edges", rows.low + len(rows.counts), num_nodes)
        np.cumsum(indptr, out=indptr)
        writer.save("indptr", indptr)
        num_edges = int(indptr[-1])
        for number, spool in enumerate(spools):
            self.progress("writing edges", number, len(spools))
            spool.move_to(writer, num_edges)
        self.progress("writing edges", len(spools), len(spools))
        return num_edges


def _data_columns(record: Any) -> list[str]:
    return [name for name in record.names if name not in ("dst", "reverse")]


def _append(rows: SortedRows, indptr: Array, spools: list["Spool"]) -> None:
    indptr[rows.low + 1 : rows.low + 1 + len(rows.counts)] = rows.counts
    for spool in spools:
        spool.append(np.ascontiguousarray(rows.records[spool.path.name]))


class Spool:
    """One edge array on its way: its length is known only once every bucket is sorted."""

    def __init__(
        self, path: Path, dtype: np.dtype[Any], stored: np.dtype[Any] | None = None
    ) -> None:
        """Keep values of this dtype; the array in the folder may have a narrower one."""
        self.path, self._dtype, self._stored = path, dtype, stored or dtype.base

    def append(self, values: Array) -> None:
        """Add values at the end."""
        with self.path.open("ab") as file:
            file.write(values.data.cast("B") if values.size else b"")

    def move_to(self, writer: FolderWriter, num_edges: int) -> None:
        """Write everything as an array of the folder, and delete it here."""
        name = _ARRAY_OF_FIELD.get(self.path.name, self.path.name)
        stream = writer.stream(name, (num_edges, *self._dtype.shape), self._stored)
        rows_at_once = max(1, _COPIED_BYTES // self._dtype.itemsize)
        with self.path.open("rb") as file:
            while len(rows := _read_rows(file, self._dtype, rows_at_once)):
                stream.append(rows)
        writer.close(name)
        self.path.unlink()


def _read_rows(file: IO[bytes], dtype: np.dtype[Any], rows: int) -> Array:
    return np.fromfile(file, dtype=dtype, count=rows)

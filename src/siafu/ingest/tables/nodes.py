"""The node table of any size as the node arrays of a store: ids, labels, masks, features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import MASKS, Array, FeatureColumn, FolderWriter, Ids, TargetColumn
from siafu.graph.array_stream import ArrayStream
from siafu.ingest.tables.budget import node_pieces
from siafu.ingest.tables.choosing import choose_features
from siafu.ingest.tables.classes import ClassName
from siafu.ingest.tables.features import place_categories, read_block
from siafu.ingest.tables.files import MixedTypesError, Piece, Table
from siafu.ingest.tables.ids import (
    IdKind,
    PaddedIdError,
    column_kind,
    id_column,
    ids_from_columns,
    with_types,
)
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.problems import Problems
from siafu.ingest.tables.repeated import LeftOut, recounted
from siafu.ingest.tables.splits import find_masks
from siafu.ingest.tables.store_builder import WrittenNodes
from siafu.ingest.tables.targets import Target, target_reader
from siafu.ingest.tables.told import Line, feature_lines, target_lines, told_table
from siafu.record import Progress


def label_columns(schema: pa.Schema, options: TableOptions) -> tuple[str, ...]:
    """Return the columns to predict: those named, or one that is called so and no feature."""
    if options.label is None:
        free = set(schema.names).difference(options.features or ())
        return next(((name,) for name in ("label", "y") if name in free), ())
    labels = (options.label,) if isinstance(options.label, str) else tuple(options.label)
    if options.needs_labels or set(labels) <= set(schema.names):
        return labels
    return ()


def node_flags(schema: pa.Schema, options: TableOptions) -> dict[str, str]:
    """Return the flag that names each column of the node table that has to be there."""
    assert options.node_id is not None
    flags = {options.node_id: "--node-id"}
    flags |= dict.fromkeys(label_columns(schema, options), "--label")
    if options.split is not None and options.needs_labels and options.edge_label is None:
        flags[options.split] = "--split-column"
    return flags | dict.fromkeys(options.features or options.left_out, "--features")


@dataclass(frozen=True, slots=True)
class ScannedNodes:
    """What is kept in memory of a node table: a few numbers per node."""

    ids: Ids
    masks: dict[str, Array]
    class_names: list[ClassName]


@dataclass(slots=True)
class _Gathered:
    """What one pass over the ids gathers."""

    ids: list[pa.Array] = field(default_factory=list)
    masks: list[list[Array]] = field(default_factory=list)


class NodeTable:
    """The nodes of one graph, read as the options say."""

    def __init__(
        self,
        table: Table,
        options: TableOptions,
        progress: Progress,
        problems: Problems | None = None,
    ) -> None:
        assert options.node_id is not None
        self.options, self.progress = options, progress
        self.problems = problems or Problems()
        self.node_id, schema = options.node_id, table.schema()
        table.check_columns(node_flags(schema, options))
        split = options.split if options.split in schema.names else None
        self.masks = find_masks(schema, split)
        labels = label_columns(schema, options)
        self.labels: Target | None = (
            target_reader(table, labels, options.target) if labels else None
        )
        used = [self.node_id, *labels, *(self.masks.columns if self.masks else ())]
        self.features = choose_features(
            table,
            self.problems,
            taken=used,
            asked=options.features,
            left_out=options.left_out,
            known=options.node_kinds,
            targets=labels,
        )
        self.kind: IdKind = options.id_type or column_kind(table, self.node_id)
        self._as_text = False
        self.table = self._typed(table)
        self._left_out = LeftOut()
        self._recounted: list[TargetColumn] | None = None
        self._padded: list[str] = []

    def _typed(self, table: Table) -> Table:
        table = with_types(
            table,
            ids=(self.node_id,),
            kind=self.kind,
            numbers=(),
            is_asked=self.options.id_type is not None,
        )
        table = self.features.typed(table, as_text=self._as_text)
        texts = self.labels.columns if self.labels and len(self.labels.columns) == 1 else ()
        return table.with_text(texts)

    def scan(self) -> ScannedNodes:
        """Return ids and masks, and learn classes and categories."""
        try:
            return self._scan()
        except PaddedIdError as padded:
            self.kind = "text"
            self.table = self._typed(self.table)
            self._padded = [padded.note()]
        except MixedTypesError:
            self._read_as_text()
        return self._scan()

    def _read_as_text(self) -> None:
        """Read features of CSV files as text from now on, whatever their first rows look like."""
        if self._as_text:
            raise AssertionError("text is never of mixed types")
        self._as_text = True
        self.table = self._typed(self.table)

    def feature_names(self) -> tuple[str, ...]:
        """Return the columns of x by name: a list is several."""
        return tuple(name for reader in self.features.readers for name in reader.names())

    def columns(self) -> list[FeatureColumn]:
        """Return what a schema says of the columns of x, once they were read."""
        return [column for reader in self.features.readers for column in reader.columns()]

    def targets(self) -> list[TargetColumn]:
        """Return what a schema says of the columns to predict, once they were read."""
        if self._recounted is not None:
            return self._recounted
        return self.labels.described() if self.labels else []

    def notes(self) -> list[str]:
        """Return sentences for the user, once all was read."""
        notes = [*self._padded, *(self.labels.notes() if self.labels else ())]
        notes += [*self.features.notes(), *self._left_out.notes()]
        for reader in self.features.readers:
            notes += reader.notes()
        if delimiter := self.table.delimiter():
            notes.append(f"The columns of the node table are separated by {delimiter!r}.")
        lines = [Line(self.node_id, self.kind, "id")]
        lines += target_lines(self.targets())
        lines += [Line(name, "split", "split") for name in self.masks.columns] if self.masks else []
        lines += feature_lines(self.features)
        return [*notes, told_table(f"Columns of the nodes ({self._shown()}):", lines)]

    def _shown(self) -> str:
        more = f" and {len(self.table.files) - 1:,} more" if len(self.table.files) > 1 else ""
        return f"{self.table.shown()}{more}"

    def _scan(self) -> ScannedNodes:
        labels, masks = self.labels, self.masks
        names = [self.node_id, *(labels.columns if labels else ())]
        names += [*(masks.columns if masks else ()), *(r.name for r in self.features.categories)]
        found = _Gathered()
        self._left_out.begin()
        if labels:
            labels.begin()
        for piece in self._pieces("scanning nodes", names):
            self._left_out.see(piece)
            kept = self._left_out.without_empty(piece, self.node_id)
            found.ids.append(id_column(kept, self.node_id, self.kind))
            if labels:
                labels.scan(kept)
            if masks:
                found.masks.append(masks.read(kept))
            for reader in self.features.categories:
                reader.learn(kept)
        self._left_out.check(self.problems, self.options.drop_unknown)
        joined = [np.concatenate(parts) for parts in zip(*found.masks, strict=True)]
        ids = ids_from_columns(found.ids, self.kind)
        return ScannedNodes(
            ids,
            dict(zip(MASKS, joined, strict=True)) if joined else {},
            labels.class_names() if labels else [],
        )

    def write(self, writer: FolderWriter) -> WrittenNodes:
        """Write ids, x and y into the folder and return what else is known."""
        return self._written(writer, self.scan())

    def write_once_each(self, writer: FolderWriter) -> WrittenNodes:
        """Write the nodes where rows name one twice: equal rows are one, others a problem."""
        scanned = self.scan()
        keep = self._left_out.find_repeated(scanned.ids)
        masks = {name: mask[keep] for name, mask in scanned.masks.items()}
        return self._written(
            writer, ScannedNodes(scanned.ids.take(keep), masks, scanned.class_names)
        )

    def _written(self, writer: FolderWriter, scanned: ScannedNodes) -> WrittenNodes:
        scanned.ids.save(writer)
        try:
            width = self._write_rows(writer, len(scanned.ids))
        except MixedTypesError:
            self._read_as_text()
            width = self._write_rows(writer, len(scanned.ids))
        self._left_out.check_repeated(self.problems)
        if self.labels and self._left_out.has_repeated:
            self._recounted = recounted(self.labels.described(), writer.load("y"))
        for reader in self.features.readers:
            reader.check(self.problems)
        return WrittenNodes(
            masks=scanned.masks,
            class_names=scanned.class_names,
            width=width,
            columns=self.columns(),
            targets=self.targets(),
            unused={name: one.why_not for name, one in self.features.unused.items()},
            notes=self.notes(),
            problems=self.problems.to_facts(),
        )

    def _write_rows(self, writer: FolderWriter, num_nodes: int) -> int:
        """Write x and y and return the width of x."""
        streams: dict[str, ArrayStream] = {}
        try:
            for blocks in self._blocks("writing nodes"):
                for name, block in blocks.items():
                    if name not in streams:
                        shape = (num_nodes, *block.shape[1:])
                        streams[name] = writer.stream(name, shape, block.dtype)
                    streams[name].append(block)
        except MixedTypesError:
            for stream in streams.values():
                stream.abandon()
            raise
        for name in streams:
            writer.close(name)
        return streams["x"].shape[1] if "x" in streams else 0

    def read(self) -> dict[str, Array]:
        """Return x and y, where the table has them, in memory; `scan` comes first."""
        parts: dict[str, list[Array]] = {}
        for blocks in self._blocks("reading nodes"):
            for name, block in blocks.items():
                parts.setdefault(name, []).append(block)
        return {name: np.concatenate(blocks) for name, blocks in parts.items()}

    def _blocks(self, phase: str) -> Iterator[dict[str, Array]]:
        """Yield the rows of x and y of each piece."""
        labels, readers = self.labels, self.features.readers
        names = [*(labels.columns if labels else ()), *self.features.names]
        for reader in readers:
            reader.begin()
        self._left_out.begin_writing()
        for piece in self._pieces(phase, names) if names else ():
            blocks: dict[str, Array] = {}
            if readers:
                blocks["x"] = read_block(piece, readers)
                place_categories(blocks["x"], readers)
            if labels:
                blocks["y"] = labels.block(piece)
            yield self._left_out.rest(blocks)

    def _pieces(self, phase: str, names: Sequence[str]) -> Iterator[Piece]:
        total, done = self.table.num_rows(), 0
        names = list(dict.fromkeys(names))
        width = len(names) + sum(reader.width for reader in self.features.readers)
        for piece in self.table.pieces(names, **node_pieces(self.options, width)):
            yield piece
            done += piece.batch.num_rows
            self.progress(phase, done, total)
        if done == 0:
            raise DataError(
                "The node table has no rows.",
                seen=", ".join(str(file) for file in self.table.files[:3]),
                fix="check that the export was complete",
            )

"""The node table of any size as the node arrays of a store: ids, labels, masks, features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import MASKS, Array, FolderWriter, Ids
from siafu.graph.array_stream import ArrayStream
from siafu.ingest.tables.classes import ClassName, Labels, label_reader
from siafu.ingest.tables.columns import (
    index_columns,
    is_list,
    is_numeric,
    is_text,
    list_widths,
    not_numbers,
    number_block,
    odd_values,
    why_not_numbers,
)
from siafu.ingest.tables.files import MOST_NAMES, Piece, Table
from siafu.ingest.tables.ids import (
    IdKind,
    PaddedIdError,
    column_kind,
    id_column,
    ids_from_columns,
    with_types,
)
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.store_builder import WrittenNodes
from siafu.record import Progress, shortened, suggestion

_ROWS_AT_ONCE = 1 << 15
_MASK_OF_WORD = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


class Masks(Protocol):
    """Reads which split each node of a piece is in."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        ...

    def read(self, piece: Piece) -> list[Array]:
        """Return the train, val and test masks of a piece."""
        ...


@dataclass(frozen=True, slots=True)
class SplitWords:
    """A column of words: train, val (or valid), test, or nothing."""

    columns: tuple[str]

    def read(self, piece: Piece) -> list[Array]:
        """Return the train, val and test masks of a piece."""
        column = piece.column(self.columns[0])
        if not (is_text(column.type) or pa.types.is_null(column.type)):
            raise DataError(
                "The column of splits holds no words.",
                seen=f"column {self.columns[0]!r} of {piece.file} is {column.type}",
                fix="write train, val or test in it, or leave a cell empty",
            )
        encoded = column.cast(pa.large_string()).dictionary_encode()
        words = [self._mask_of(word) for word in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        chosen = np.array([*words, ""])[codes]
        return [chosen == name for name in MASKS]

    def _mask_of(self, word: str) -> str:
        mask = _MASK_OF_WORD.get(word.strip().lower(), "")
        if not mask and word.strip():
            raise DataError(
                "A split is not understood.",
                seen=f"{word!r} in column {self.columns[0]!r}",
                fix=f"{suggestion(word, _MASK_OF_WORD)}use train, val or test, or leave it empty",
            )
        return mask


@dataclass(frozen=True, slots=True)
class SplitFlags:
    """Three columns of true and false."""

    columns: tuple[str, str, str]

    def read(self, piece: Piece) -> list[Array]:
        """Return the train, val and test masks of a piece."""
        flags = [number_block(piece, [name])[:, 0] != 0 for name in self.columns]
        twice = sum(flag.astype(np.int8) for flag in flags) > 1
        if np.any(twice):
            raise DataError(
                "A node is in two splits.",
                seen=piece.where(int(np.argmax(twice))),
                fix="put each node into at most one of train, val and test",
            )
        return flags


@dataclass(frozen=True, slots=True)
class VertexColumns:
    """What each column of a node table is for."""

    node_id: str
    labels: Labels | None
    masks: Masks | None
    features: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    """Why columns that look like features are none."""


def choose_columns(table: Table, options: TableOptions) -> VertexColumns:
    """Return which column of the node table means what; raise where one is missing."""
    schema = table.schema()
    labels = _label_columns(schema, options)
    masks = _mask_columns(schema, options)
    taken = {options.node_id, *labels, *(masks.columns if masks else ())}
    features: tuple[str, ...] | None = options.features
    index: tuple[str, ...] = ()
    if features is None:
        free = {column.name: column.type for column in schema if column.name not in taken}
        index = index_columns(schema, list(free))
        features = tuple(
            name for name, kind in free.items() if name not in index and is_numeric(kind)
        )
    flags = {options.node_id: "--node-id"} | dict.fromkeys(labels, "--label")
    flags |= dict.fromkeys(masks.columns if masks else (), "--split-column")
    table.check_columns(flags | dict.fromkeys(features, "--features"))
    if options.features is not None:
        _refuse_text(table, options.features)
    used = taken | set(features) | set(index)
    unused = [name for name in schema.names if name not in used]
    reasons = why_not_numbers(table, unused) if options.features is None else {}
    notes = list(reasons.values())
    if index:
        notes.append(f"No feature: {_quoted(index)}, the index of a pandas table.")
    return VertexColumns(
        options.node_id,
        label_reader(table, labels) if labels else None,
        masks,
        features,
        tuple(name for name in unused if name not in reasons),
        tuple(notes),
    )


def _quoted(names: Sequence[str]) -> str:
    return shortened([name or "the column without a name" for name in names], MOST_NAMES)


def _refuse_text(table: Table, features: tuple[str, ...]) -> None:
    """Raise where a feature column of the first file is text, before anything is written."""
    schema, first = table.schema(), replace(table, files=table.files[:1])
    texts = [name for name in features if is_text(schema.field(name).type)]
    for name, odd in odd_values(first, texts).items():
        if odd is not None:
            raise not_numbers(odd.piece, name)


def _label_columns(schema: pa.Schema, options: TableOptions) -> tuple[str, ...]:
    if options.label is None:
        return next(((name,) for name in ("label", "y") if name in schema.names), ())
    return (options.label,) if isinstance(options.label, str) else tuple(options.label)


def _mask_columns(schema: pa.Schema, options: TableOptions) -> Masks | None:
    if options.split is not None:
        return SplitWords((options.split,))
    if "split" in schema.names and not is_numeric(schema.field("split").type):
        return SplitWords(("split",))
    for ending in ("", "_mask"):
        train, val, test = (name + ending for name in MASKS)
        if all(name in schema.names and _is_flag(schema, name) for name in (train, val, test)):
            return SplitFlags((train, val, test))
    return None


def _is_flag(schema: pa.Schema, name: str) -> bool:
    kind = schema.field(name).type
    return is_numeric(kind) and not is_list(kind)


@dataclass(frozen=True, slots=True)
class ScannedVertices:
    """What is kept in memory of a node table: a few numbers per node."""

    ids: Ids
    masks: dict[str, Array]
    class_names: list[ClassName]


class NodeTable:
    """The nodes of one graph, read as the options say."""

    def __init__(self, table: Table, options: TableOptions, progress: Progress) -> None:
        self.options, self.progress = options, progress
        self.columns = choose_columns(table, options)
        self.kind: IdKind = options.id_type or column_kind(table, options.node_id)
        self.table = self._typed(table)
        self._widths: tuple[int, ...] = ()
        self._padded: list[str] = []

    def _typed(self, table: Table) -> Table:
        return with_types(
            table,
            ids=(self.options.node_id,),
            kind=self.kind,
            numbers=self.columns.features,
            is_asked=self.options.id_type is not None,
        )

    def scan(self) -> ScannedVertices:
        """Return ids and masks, and learn the classes."""
        try:
            return self._scan()
        except PaddedIdError as padded:
            self.kind = "text"
            self.table = self._typed(self.table)
            self._padded = [padded.note()]
            return self._scan()

    def feature_names(self) -> tuple[str, ...]:
        """Return the columns of x by name, once they were read: a list is several."""
        return tuple(
            name if width < 0 else f"{name}[{place}]"
            for name, width in zip(self.columns.features, self._widths, strict=False)
            for place in range(max(1, width))
        )

    def notes(self) -> list[str]:
        """Return sentences for the user, once all was read."""
        columns, names = self.columns, self.feature_names()
        notes = [*self._padded, *(columns.labels.notes() if columns.labels else ()), *columns.notes]
        if delimiter := self.table.delimiter():
            notes.append(f"The columns of the node table are separated by {delimiter!r}.")
        notes.append(
            f"Features ({len(names):,}): {shortened(names, MOST_NAMES)}."
            if names
            else "No features are used."
        )
        if columns.unused:
            notes.append(f"Node columns not used: {shortened(columns.unused, MOST_NAMES)}.")
        return notes

    def _scan(self) -> ScannedVertices:
        columns, labels = self.columns, self.columns.labels
        names = [columns.node_id, *(labels.columns if labels else ())]
        names += columns.masks.columns if columns.masks else ()
        ids: list[pa.Array] = []
        masks: list[list[Array]] = []
        for piece in self._pieces("scanning nodes", names):
            ids.append(id_column(piece, columns.node_id, self.kind))
            if labels:
                labels.scan(piece)
            if columns.masks:
                masks.append(columns.masks.read(piece))
        joined = [np.concatenate(parts) for parts in zip(*masks, strict=True)]
        return ScannedVertices(
            ids_from_columns(ids, self.kind),
            dict(zip(MASKS, joined, strict=True)) if joined else {},
            labels.class_names() if labels else [],
        )

    def write(self, writer: FolderWriter) -> WrittenNodes:
        """Write ids, x and y into the folder and return what else is known."""
        scanned = self.scan()
        scanned.ids.save(writer)
        width = self._write_rows(writer, len(scanned.ids))
        return WrittenNodes(
            masks=scanned.masks,
            class_names=scanned.class_names,
            width=width,
            feature_names=list(self.feature_names()),
            notes=self.notes(),
        )

    def _write_rows(self, writer: FolderWriter, num_nodes: int) -> int:
        """Write x and y and return the width of x."""
        streams: dict[str, ArrayStream] = {}
        for blocks in self._blocks("writing nodes"):
            for name, block in blocks.items():
                if name not in streams:
                    shape = (num_nodes, *block.shape[1:])
                    streams[name] = writer.stream(name, shape, block.dtype)
                streams[name].append(block)
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
        labels, features = self.columns.labels, self.columns.features
        names = [*(labels.columns if labels else ()), *features]
        for piece in self._pieces(phase, names) if names else ():
            blocks = {"x": number_block(piece, features)} if features else {}
            if labels:
                blocks["y"] = labels.block(piece)
            self._check_widths(piece)
            yield blocks

    def _check_widths(self, piece: Piece) -> None:
        """Learn the lengths of lists in the first piece; raise where another has others."""
        names = self.columns.features
        widths = list_widths(piece, names)
        self._widths = self._widths or widths
        for name, first, width in zip(names, self._widths, widths, strict=True):
            if first != width or width == 0:
                raise DataError(
                    "The lists of a column differ in length, or are empty.",
                    seen=f"column {name!r}: {abs(first)} numbers at first, {abs(width)} from "
                    f"{piece.where(0)} on",
                    fix="give every row a list of one length, or name the features with --features",
                )

    def _pieces(self, phase: str, names: list[str]) -> Iterator[Piece]:
        total, done = self.table.num_rows(), 0
        for piece in self.table.pieces(list(dict.fromkeys(names)), rows=_ROWS_AT_ONCE):
            yield piece
            done += piece.batch.num_rows
            self.progress(phase, done, total)
        if done == 0:
            raise DataError(
                "The node table has no rows.",
                seen=", ".join(str(file) for file in self.table.files[:3]),
                fix="check that the export was complete",
            )

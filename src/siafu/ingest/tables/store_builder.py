"""The arrays of one graph on their way into a store, and what is said about them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from siafu.graph import (
    MASKS,
    Array,
    EdgeTypeName,
    FolderWriter,
    Graph,
    IntegerIds,
    JobFacts,
    Partial,
    TextIds,
    file_facts,
    graph_facts,
    load_ids,
)
from siafu.ingest.arrays import labelled_only, with_split
from siafu.ingest.tables.classes import ClassName, TypeColumn
from siafu.ingest.tables.ids import IdKind, IdRows, index_ids
from siafu.ingest.tables.options import TableOptions

_VERTICES = "vertices"
_RULES = 4
"""Raised when the same tables become another store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How masks are drawn where the data has none, or where a split was asked for."""

    split: str | None = None
    """Fractions or nodes per class; None keeps the masks of the data and else takes a default."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenNodes:
    """What is known of the nodes beside the arrays that were written of them."""

    masks: dict[str, Array] = field(default_factory=dict)
    class_names: list[ClassName] = field(default_factory=list)
    width: int = 0
    """Features of a node."""
    feature_names: list[str] = field(default_factory=list)
    """What they are called, where the data says it."""
    notes: list[str] = field(default_factory=list)


def table_job(files: Sequence[Path], options: TableOptions) -> JobFacts:
    """Return what makes the store of these files the same again."""
    settings = asdict(options) | {"nodes": None if options.nodes is None else str(options.nodes)}
    # Memory set anew changes no edge.
    del settings["bucket_edges"]
    return {"rules": _RULES, "options": settings, "files": file_facts(*files)}


def drawing_job(drawing: Drawing | None) -> JobFacts:
    """Return what makes drawn masks the same again."""
    return {"split": None if drawing is None else asdict(drawing)}


class EdgeSource(Protocol):
    """Edges of any source on their way into a store."""

    types: TypeColumn | None

    def read_ids_as(self, kind: IdKind) -> None:
        """Take the ids as those of the nodes are: numbers or text."""
        ...

    def attr_names(self) -> tuple[str, ...]:
        """Return what the features of an edge are called."""
        ...

    def write(self, partial: Partial, rows: Callable[[], IdRows], num_nodes: int) -> int:
        """Write indptr, src and the edge data and return how many edges there are."""
        ...

    def notes(self) -> list[str]:
        """Return sentences for the user, once the edges are written."""
        ...


class StoreBuilder:
    """Puts the arrays of one graph into a folder that is made in steps."""

    def __init__(self, partial: Partial, name: str, drawing: Drawing | None) -> None:
        self.partial, self.name, self.drawing = partial, name, drawing
        self.resumed = partial.ended
        self.notes: list[str] = []
        self.num_edges, self.num_edge_types = 0, 0
        self.edge_type_names: tuple[EdgeTypeName, ...] = ()
        self.edge_attr_names: tuple[str, ...] = ()

    def take_vertices(self, write: Callable[[FolderWriter], WrittenNodes]) -> None:
        """Let the nodes be written, ids, x and y, unless an earlier process has."""
        if not self.partial.has(_VERTICES):
            written = write(self.partial.writer)
            self.partial.save(
                _VERTICES,
                written.masks,
                masks=list(written.masks),
                class_names=written.class_names,
                width=written.width,
                feature_names=written.feature_names,
                notes=written.notes,
            )
        facts = self.partial.facts(_VERTICES)
        self.masks = {name: self._mask(name) for name in facts["masks"]}
        self.class_names: list[ClassName] = facts["class_names"]
        self.width, self.notes = int(facts["width"]), list(facts["notes"])
        self.feature_names = tuple(facts["feature_names"])
        ids = load_ids(self.partial.writer)
        self.num_nodes = len(ids)
        self.id_kind: IdKind = "text" if isinstance(ids, TextIds) else "integer"
        self.y = self._labels()

    def _mask(self, name: str) -> Array:
        mask = self.partial.load(_VERTICES, name)
        assert mask is not None
        return np.array(mask)

    def _labels(self) -> Array | None:
        """Return one label a node; of several a stand-in that takes no memory."""
        if "y" not in self.partial.writer:
            several = (self.num_nodes, len(self.class_names))
            return np.broadcast_to(np.uint8(0), several) if self.class_names else None
        y = self.partial.writer.load("y")
        return np.array(y) if y.ndim == 1 else np.broadcast_to(np.uint8(0), y.shape)

    def _rows(self) -> IdRows:
        ids = load_ids(self.partial.writer)
        copies = (np.array(getattr(ids, name)) for name in ids.__slots__)
        return index_ids(type(ids)(*copies))

    def take_edges(self, edges: EdgeSource) -> None:
        """Write the edges."""
        edges.read_ids_as(self.id_kind)
        self.num_edges = edges.write(self.partial, self._rows, self.num_nodes)
        if edges.types is not None:
            self.num_edge_types = len(edges.types)
            self.edge_type_names = edges.types.names()
        self.edge_attr_names = edges.attr_names()
        self.notes += edges.notes()

    def finish(self) -> list[str]:
        """Write masks and facts; return the notes."""
        if self.resumed:
            self.notes.append(f"Went on from earlier work: {', '.join(self.resumed)}.")
        self.masks, left_out = labelled_only(self.masks, self.y)
        outline, notes = self._outline(), self.notes
        if self.drawing is None or self.drawing.split is None:
            notes = notes + left_out
        if self.drawing is not None:
            outline, drawn = with_split(outline, self.drawing.split, self.drawing.seed)
            notes = notes + drawn
        for name in MASKS:
            mask = getattr(outline, name)
            if mask is not None:
                self.partial.writer.save(name, mask)
        self.partial.writer.facts |= graph_facts(outline)
        if self.class_names:
            self.partial.writer.facts["class_names"] = self.class_names
        return notes

    def _outline(self) -> Graph:
        """Return a graph of the right sizes: what is on disk stands in as zeros of no memory."""
        zeros_E = np.broadcast_to(np.uint8(0), (self.num_edges,))
        return Graph(
            name=self.name,
            indptr=np.broadcast_to(np.int64(0), (self.num_nodes + 1,)),
            src=zeros_E,
            edge_type=zeros_E if self.num_edge_types else None,
            num_edge_types=self.num_edge_types,
            edge_type_names=self.edge_type_names,
            ids=IntegerIds(np.empty(0, dtype=np.int64)),
            x=np.broadcast_to(np.float32(0), (self.num_nodes, self.width)) if self.width else None,
            y=self.y,
            num_classes=len(self.class_names),
            train=self.masks.get("train"),
            val=self.masks.get("val"),
            test=self.masks.get("test"),
            feature_names=self.feature_names,
            edge_attr_names=self.edge_attr_names,
        )

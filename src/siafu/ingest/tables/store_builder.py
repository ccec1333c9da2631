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
    FeatureColumn,
    FolderWriter,
    Graph,
    IntegerIds,
    JobFacts,
    Partial,
    Schema,
    TargetColumn,
    TextIds,
    file_facts,
    graph_facts,
    load_ids,
)
from siafu.ingest.arrays import labelled_only, with_split
from siafu.ingest.tables.classes import ClassName
from siafu.ingest.tables.ids import IdKind, IdRows, index_ids
from siafu.ingest.tables.options import TableOptions

_NODES = "nodes"
_RULES = 9
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
    columns: list[FeatureColumn] | None = None
    """What they are, where the data names them."""
    targets: list[TargetColumn] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    """Columns that are not held, and why."""
    notes: list[str] = field(default_factory=list)
    problems: list[list[str]] = field(default_factory=list)
    """What is wrong, told once the edges were read too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenEdges:
    """What is known of the edges beside the arrays that were written of them."""

    num_types: int = 0
    type_names: tuple[EdgeTypeName, ...] = ()
    columns: list[FeatureColumn] = field(default_factory=list)
    """What the features of an edge are."""
    targets: list[TargetColumn] = field(default_factory=list)
    class_names: tuple[ClassName, ...] = ()
    """Of what is to be predicted of edges."""
    unused: dict[str, str] = field(default_factory=dict)
    undirected: bool = False
    """Whether reverse edges were added."""
    notes: list[str] = field(default_factory=list)


def table_job(files: Sequence[Path], options: TableOptions) -> JobFacts:
    """Return what makes the store of these files the same again."""
    settings = asdict(options) | {"nodes": None if options.nodes is None else str(options.nodes)}
    for name in options.of_memory:  # set anew it changes no edge
        del settings[name]
    return {"rules": _RULES, "options": settings, "files": file_facts(*files)}


def drawing_job(drawing: Drawing | None) -> JobFacts:
    """Return what makes drawn masks the same again."""
    return {"split": None if drawing is None else asdict(drawing)}


class EdgeSource(Protocol):
    """Edges of any source on their way into a store."""

    def read_ids_as(self, kind: IdKind) -> None:
        """Take the ids as those of the nodes are: numbers or text."""
        ...

    def write(self, partial: Partial, rows: Callable[[], IdRows], num_nodes: int) -> int:
        """Write indptr, src and the edge data and return how many edges there are."""
        ...

    def written(self) -> WrittenEdges:
        """Return what is known of the edges beside their arrays, once they are written."""
        ...


class StoreBuilder:
    """Puts the arrays of one graph into a folder that is made in steps."""

    def __init__(
        self,
        partial: Partial,
        name: str,
        drawing: Drawing | None,
        told: Sequence[str] = (),
        ids: dict[str, str] | None = None,
    ) -> None:
        """`told` is what was said of the tables so far, `ids` which columns are ids."""
        self._ids = ids or {}
        self.partial, self.name, self.drawing = partial, name, drawing
        self.resumed = partial.ended
        self._told = list(told)
        self.num_edges, self.edges = 0, WrittenEdges()

    def take_nodes(
        self, write: Callable[[FolderWriter], WrittenNodes], *, again: bool = False
    ) -> None:
        """Let the nodes be written, ids, x and y, unless an earlier process has."""
        if again or not self.partial.has(_NODES):
            written = write(self.partial.writer)
            self.partial.save(
                _NODES,
                written.masks,
                masks=list(written.masks),
                class_names=written.class_names,
                width=written.width,
                columns=_plain(written.columns),
                targets=_plain(written.targets),
                unused=written.unused,
                notes=written.notes,
                problems=written.problems,
            )
        facts = self.partial.facts(_NODES)
        self.masks = {name: self._mask(name) for name in facts["masks"]}
        self.class_names: list[ClassName] = facts["class_names"]
        self.width, self.notes = int(facts["width"]), [*self._told, *facts["notes"]]
        self.problems: list[list[str]] = facts["problems"]
        self.columns = (
            None
            if facts["columns"] is None
            else [FeatureColumn.model_validate(column) for column in facts["columns"]]
        )
        self.targets = [TargetColumn.model_validate(column) for column in facts["targets"]]
        self.unused: dict[str, str] = facts["unused"]
        ids = load_ids(self.partial.writer)
        self.num_nodes = len(ids)
        self.id_kind: IdKind = "text" if isinstance(ids, TextIds) else "integer"
        self.y = self._labels()

    def _mask(self, name: str) -> Array:
        mask = self.partial.load(_NODES, name)
        assert mask is not None
        return np.array(mask)

    def _labels(self) -> Array | None:
        """Return one label a node; of several the first stands in for all of them."""
        if "y" not in self.partial.writer:
            several = (self.num_nodes, len(self.class_names))
            return np.broadcast_to(np.uint8(0), several) if self.class_names else None
        y = self.partial.writer.load("y")
        if y.dtype.kind == "f":
            return np.array(y)
        return np.array(y) if y.ndim == 1 else np.broadcast_to(np.array(y[:, :1]), y.shape)

    def _rows(self) -> IdRows:
        """Return where the nodes are; their ids stay in files."""
        return index_ids(load_ids(self.partial.writer))

    def take_edges(self, edges: EdgeSource) -> None:
        """Write the edges."""
        edges.read_ids_as(self.id_kind)
        self.num_edges = edges.write(self.partial, self._rows, self.num_nodes)
        self.edges = edges.written()
        self.notes += self.edges.notes

    def finish(self) -> list[str]:
        """Write masks and facts; return the notes."""
        self.partial.writer.facts["told"] = list(self.notes)
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
        zeros_E, edges = np.broadcast_to(np.uint8(0), (self.num_edges,)), self.edges
        numbers = tuple(target.name for target in self.targets if target.kind == "number")
        edge_numbers = tuple(one.name for one in edges.targets if one.kind == "number")
        return Graph(
            name=self.name,
            indptr=np.broadcast_to(np.int64(0), (self.num_nodes + 1,)),
            src=zeros_E,
            edge_type=zeros_E if edges.num_types else None,
            num_edge_types=edges.num_types,
            edge_type_names=edges.type_names,
            ids=IntegerIds(np.empty(0, dtype=np.int64)),
            x=np.broadcast_to(np.float32(0), (self.num_nodes, self.width)) if self.width else None,
            y=self.y,
            num_classes=len(self.class_names),
            train=self.masks.get("train"),
            val=self.masks.get("val"),
            test=self.masks.get("test"),
            feature_names=tuple(column.name for column in self.columns or ()),
            edge_attr_names=tuple(column.name for column in edges.columns),
            target_names=numbers,
            edge_y=_stand_in(self.num_edges, len(edge_numbers)) if edges.targets else None,
            num_edge_classes=len(edges.class_names),
            edge_class_names=edges.class_names,
            edge_target_names=edge_numbers,
            schema=self._schema(),
        )

    def _schema(self) -> Schema | None:
        """Return what the columns are; nothing where the data does not name any."""
        if self.columns is None and not self.edges.columns and not self.edges.targets:
            return None
        return Schema(
            nodes=tuple(self.columns or ()),
            edges=tuple(self.edges.columns),
            targets=tuple(self.targets),
            edge_targets=tuple(self.edges.targets),
            unused=self.unused,
            edge_unused=self.edges.unused,
            ids=self._ids,
            undirected=self.edges.undirected,
        )


def _plain(columns: Sequence[FeatureColumn | TargetColumn] | None) -> list[JobFacts] | None:
    """Return columns as JSON holds them."""
    return None if columns is None else [column.model_dump(mode="json") for column in columns]


def _stand_in(rows: int, numbers: int) -> Array:
    """Return targets of the right shape that take no memory: classes where there are no numbers."""
    if numbers:
        return np.broadcast_to(np.float32(0), (rows, numbers))
    return np.broadcast_to(np.int64(0), (rows,))

"""The arrays of one graph on their way into a store, and what is said about them."""

from dataclasses import dataclass

import numpy as np

from siafu.graph import (
    MASKS,
    Array,
    EdgeTypeName,
    FolderWriter,
    Graph,
    Ids,
    IntegerIds,
    graph_facts,
)
from siafu.ingest.edges import EdgeTable
from siafu.ingest.id_rows import rows_of
from siafu.ingest.labels import ClassName
from siafu.ingest.masks import labelled_only, with_split
from siafu.ingest.vertices import NodeTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How masks are drawn where the data has none, or where a split was asked for."""

    split: str | None = None
    """Fractions or vertices a class; None keeps the masks of the data and else takes a default."""
    seed: int = 0


class StoreBuilder:
    """Puts the arrays of one graph into a folder that is being written."""

    def __init__(self, writer: FolderWriter, name: str, drawing: Drawing | None) -> None:
        self.writer, self.name, self.drawing = writer, name, drawing
        self.notes: list[str] = []
        self.num_edges, self.num_edge_types, self.width = 0, 0, 0
        self.edge_type_names: tuple[EdgeTypeName, ...] = ()
        self.masks: dict[str, Array] = {}
        self.class_names: list[ClassName] = []
        self.y: Array | None = None

    def take_ids(self, ids: Ids) -> None:
        """Write the ids and make them known to the edges."""
        self.num_nodes = len(ids)
        self.rows = rows_of(ids)
        ids.save(self.writer)

    def take_nodes(self, nodes: NodeTable) -> None:
        """Write everything the node table has."""
        scanned = nodes.scan()
        self.take_ids(scanned.ids)
        self.masks, self.class_names = scanned.masks, scanned.class_names
        self.width, self.y = nodes.write(self.writer, self.num_nodes)
        if nodes.columns.labels:
            self.notes += nodes.columns.labels.notes()
            if self.y is None:
                self.y = np.broadcast_to(np.uint8(0), (self.num_nodes, len(self.class_names)))
        self.notes += nodes.columns.notes
        if nodes.columns.unused:
            self.notes.append(f"Node columns not used: {', '.join(nodes.columns.unused)}.")

    def take_edges(self, edges: EdgeTable) -> None:
        """Write the edges."""
        self.num_edges = edges.write(self.writer, self.rows, self.num_nodes)
        if edges.types is not None:
            self.num_edge_types = len(edges.types)
            self.edge_type_names = edges.types.names()
        self.notes += edges.notes()

    def finish(self) -> list[str]:
        """Write masks and facts; return the notes."""
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
                self.writer.save(name, mask)
        self.writer.facts |= graph_facts(outline)
        if self.class_names:
            self.writer.facts["class_names"] = self.class_names
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
        )

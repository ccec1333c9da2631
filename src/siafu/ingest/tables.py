"""A node table and an edge table, Parquet or CSV, as a store, in bounded memory.

What grows with the graph: a few numbers a vertex (id, label, masks, degree). Edges and features
pass through in pieces; the edges are sorted in buckets on disk beside the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siafu.errors import DataError
from siafu.graph import (
    MASKS,
    Array,
    FolderWriter,
    Graph,
    Ids,
    IntegerIds,
    graph_facts,
    write_folder,
)
from siafu.ingest.edges import EdgeTable
from siafu.ingest.id_rows import rows_of
from siafu.ingest.labels import ClassName
from siafu.ingest.masks import with_split
from siafu.ingest.progress import Progress, silent
from siafu.ingest.table_files import TABLE_ENDINGS, Table, table_files
from siafu.ingest.table_options import TableOptions
from siafu.ingest.vertices import NodeTable

_NODE_NAMES = ("nodes", "node", "vertices")
_EDGE_NAMES = ("edges", "edge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Where the tables of one graph are."""

    name: str
    edges: Table
    nodes: Table | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How masks are drawn where the data has none, or where a split was asked for."""

    split: str | None = None
    seed: int = 0


def find_tables(source: Path, options: TableOptions) -> Tables:
    """Return the tables of a folder, or of one file of edges."""
    nodes, edges = options.nodes, source
    if source.is_dir():
        nodes = nodes or _named(source, _NODE_NAMES)
        found = _named(source, _EDGE_NAMES)
        if found is None and (nodes is not None or not _holds_edges(source, options)):
            inside = sorted(path.name for path in source.iterdir())
            raise DataError(
                "The folder has no edge table.",
                seen=f"{source} with {', '.join(inside[:12]) or 'nothing'}",
                fix="name it edges.parquet or edges.csv, or put its files into edges/",
            )
        edges = found or source
    return Tables(
        name=source.name.split(".")[0],
        edges=Table("edge table", table_files(edges, "edge table")),
        nodes=Table("node table", table_files(nodes, "node table")) if nodes else None,
    )


def _named(folder: Path, names: Sequence[str]) -> Path | None:
    candidates = [folder / f"{name}{ending}" for name in names for ending in (*TABLE_ENDINGS, "")]
    return next((path for path in candidates if path.exists()), None)


def _holds_edges(folder: Path, options: TableOptions) -> bool:
    """Return whether the files right in the folder have the columns of edges."""
    files = [path for path in sorted(folder.iterdir()) if path.name.endswith(TABLE_ENDINGS)]
    if not files:
        return False
    return {options.src, options.dst} <= set(Table("edge table", (files[0],)).schema().names)


def build_store(
    tables: Tables,
    target: Path | str,
    *,
    options: TableOptions | None = None,
    drawing: Drawing | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Write the tables as a store at `target`, whole or not at all; return notes for the user."""
    options, report = options or TableOptions(), progress or silent
    with write_folder(target, "store", overwrite=overwrite) as writer:
        builder = StoreBuilder(writer, tables.name, drawing or Drawing())
        if tables.nodes is None:
            edges = EdgeTable(tables.edges, options, report)
            builder.take_ids(edges.seen_ids())
        else:
            nodes = NodeTable(tables.nodes, options, report)
            edges = EdgeTable(tables.edges, options, report, nodes.kind)
            builder.take_nodes(nodes)
        builder.take_edges(edges)
        return builder.finish()


class StoreBuilder:
    """Puts the arrays of one graph into a folder that is being written."""

    def __init__(self, writer: FolderWriter, name: str, drawing: Drawing) -> None:
        self.writer, self.name, self.drawing = writer, name, drawing
        self.notes: list[str] = []
        self.num_edges, self.width = 0, 0
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
        if nodes.columns.unused:
            self.notes.append(f"Node columns not used: {', '.join(nodes.columns.unused)}.")

    def take_edges(self, edges: EdgeTable) -> None:
        """Write the edges."""
        self.num_edges = edges.write(self.writer, self.rows, self.num_nodes)
        if edges.unused:
            self.notes.append(f"Edge columns not used: {', '.join(edges.unused)}.")

    def finish(self) -> list[str]:
        """Write masks and facts; return the notes."""
        outline, split_notes = with_split(self._outline(), self.drawing.split, self.drawing.seed)
        for name in MASKS:
            mask = getattr(outline, name)
            if mask is not None:
                self.writer.save(name, mask)
        self.writer.facts |= graph_facts(outline)
        if self.class_names:
            self.writer.facts["class_names"] = self.class_names
        return self.notes + split_notes

    def _outline(self) -> Graph:
        """Return a graph of the right sizes: what is on disk stands in as zeros of no memory."""
        return Graph(
            name=self.name,
            indptr=np.broadcast_to(np.int64(0), (self.num_nodes + 1,)),
            src=np.broadcast_to(np.int32(0), (self.num_edges,)),
            ids=IntegerIds(np.empty(0, dtype=np.int64)),
            x=np.broadcast_to(np.float32(0), (self.num_nodes, self.width)) if self.width else None,
            y=self.y,
            num_classes=len(self.class_names),
            train=self.masks.get("train"),
            val=self.masks.get("val"),
            test=self.masks.get("test"),
        )

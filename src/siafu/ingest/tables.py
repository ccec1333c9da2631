"""A node table and an edge table, Parquet or CSV, as a store, in bounded memory.

What grows with the graph: a few numbers a vertex (id, label, masks, degree). Edges and features
pass through in pieces; the edges are sorted in buckets on disk beside the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from siafu.errors import DataError
from siafu.graph import make_in_steps
from siafu.ingest.edges import EdgeTable
from siafu.ingest.store_builder import Drawing, StoreBuilder, drawing_job, table_job
from siafu.ingest.table_files import TABLE_ENDINGS, Table, table_files
from siafu.ingest.table_options import TableOptions
from siafu.ingest.vertices import NodeTable
from siafu.record import Progress, silent

NODE_NAMES = ("nodes", "node", "vertices")
_EDGE_NAMES = ("edges", "edge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Where the tables of one graph are."""

    name: str
    edges: Table
    nodes: Table | None = None


def find_tables(source: Path, options: TableOptions) -> Tables:
    """Return the tables of a folder, or of one file of edges."""
    nodes, edges = options.nodes, source
    if source.is_dir():
        nodes = nodes or named_table(source, NODE_NAMES)
        found = named_table(source, _EDGE_NAMES)
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


def named_table(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the file or folder of the table with one of these names."""
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
    job = table_job(tables.edges.files + (tables.nodes.files if tables.nodes else ()), options)
    job |= drawing_job(drawing)
    with make_in_steps(target, "store", job=job, overwrite=overwrite) as partial:
        builder = StoreBuilder(partial, tables.name, drawing)
        if tables.nodes is None:
            edges = EdgeTable(tables.edges, options, report)
            builder.take_vertices(edges.write_seen_ids)
        else:
            nodes = NodeTable(tables.nodes, options, report)
            edges = EdgeTable(tables.edges, options, report, nodes.kind)
            builder.take_vertices(nodes.write)
        builder.take_edges(edges)
        return builder.finish()

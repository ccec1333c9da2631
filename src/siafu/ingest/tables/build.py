"""A node table and an edge table, Parquet or CSV, as a store, in bounded, predicted memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from siafu.errors import DataError
from siafu.graph import index_dtype, make_in_steps
from siafu.ingest.tables.buckets import record_type
from siafu.ingest.tables.edges import EdgeTable
from siafu.ingest.tables.files import TABLE_ENDINGS, Table, table_files
from siafu.ingest.tables.nodes import NodeTable
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.store_builder import Drawing, StoreBuilder, drawing_job, table_job
from siafu.record import Progress, silent

NODE_NAMES = ("nodes", "node", "vertices")
_EDGE_NAMES = ("edges", "edge")
# What is held of a node at the highest: its id twice while they are gathered, where it is in a
# table of ids, its label, its masks, and their drawing. Text ids are longer and hashed.
_VERTEX_BYTES = 64
_TEXT_BYTES = 64
# A piece of a table, decoded and made into records: 1 M edges or 32 k nodes.
_PIECE_BYTES = 192 << 20
# A bucket is held as it was read and as it is sorted, beside keys and an order.
_SORTING_BYTES = 24
_FEWEST_BUCKET_EDGES = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Where the tables of one graph are."""

    name: str
    edges: Table
    nodes: Table | None = None


def find_tables(source: Path, options: TableOptions) -> Tables:
    """Return the tables of a folder, or of one file of edges."""
    nodes, edges = _beside(options.nodes, source), source
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


def _beside(nodes: Path | None, source: Path) -> Path | None:
    """Return the node table that was named: from here, or else from where the edges are."""
    if nodes is None or nodes.exists():
        return nodes
    near = (source if source.is_dir() else source.parent) / nodes
    return near if near.exists() else nodes


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


def predict_ingest_bytes(num_nodes: int, options: TableOptions) -> int:
    """Return the predicted peak memory of ingesting tables, beyond what runs now."""
    record = record_type(
        index_dtype(num_nodes),
        undirected=options.undirected,
        weight=options.edge_weight is not None,
        attr=len(options.edge_attr),
        typed=True,
    )
    vertex = _VERTEX_BYTES + (_TEXT_BYTES if options.id_type == "text" else 0)
    edge = 2 * record.itemsize + _SORTING_BYTES
    return vertex * num_nodes + edge * options.bucket_edges + _PIECE_BYTES


def fit_buckets(options: TableOptions, num_nodes: int, available: int) -> TableOptions:
    """Return the options with the largest buckets that fit, or the smallest that are of use."""
    edges = options.bucket_edges
    while edges > _FEWEST_BUCKET_EDGES:
        smaller = replace(options, bucket_edges=edges)
        if predict_ingest_bytes(num_nodes, smaller) <= available:
            break
        edges //= 2
    return replace(options, bucket_edges=edges)

"""How much memory turning tables into a store takes, told before it starts."""

from dataclasses import replace
from pathlib import Path

from siafu.graph import index_dtype
from siafu.ingest.buckets import record_type
from siafu.ingest.ogb import find_ogb
from siafu.ingest.table_options import TableOptions
from siafu.ingest.tables import find_tables

# What is held of a vertex at the highest: its id twice while they are gathered, where it is in a
# table of ids, its label, its masks, and their drawing. Text ids are longer and hashed.
_VERTEX_BYTES = 64
_TEXT_BYTES = 64
# A piece of a table, decoded and made into records: 1 M edges or 32 k vertices.
_PIECE_BYTES = 192 << 20
# A bucket is held as it was read and as it is sorted, beside keys and an order.
_SORTING_BYTES = 24
_FEWEST_BUCKET_EDGES = 1 << 18


def count_vertices(source: Path, options: TableOptions) -> int | None:
    """Return how many vertices the tables have, where files tell it without being read."""
    if find_ogb(source) is not None:
        return None
    tables = find_tables(source, options)
    return None if tables.nodes is None else tables.nodes.num_rows()


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

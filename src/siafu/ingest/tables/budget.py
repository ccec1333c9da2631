"""What reading tables takes, and pieces and buckets that fit into a budget."""

from dataclasses import replace
from typing import TypedDict

import pyarrow as pa

from siafu.errors import BudgetError
from siafu.ingest.tables.edge_arrays import predicted_record
from siafu.ingest.tables.options import TableOptions
from siafu.memory import Budget, held_bytes

# What is held of a node at the highest: its id twice while they are gathered, where it is in a
# table of ids, its label, its masks, and their drawing. Text ids are longer and hashed.
_NODE_BYTES = 64
_TEXT_BYTES = 64
# Per edge of a piece: row groups of a table that are decoded, and sixteen pieces made into records.
_PIECE_EDGE_BYTES = 1024
# Blocks of CSV files, buffers of files, compiled code.
_FIXED_BYTES = 64 << 20
# A bucket is held as it was read and as it is sorted, beside keys and an order.
_SORTING_BYTES = 24
_FEWEST_BUCKET_EDGES = 1 << 16
_FEWEST_PIECE_EDGES = 1 << 14
_EDGE_NUMBERS = 8
"""Numbers of an edge that a piece has room for: with more columns it has fewer edges."""
_NODE_NUMBERS = 24
"""Numbers of nodes in a piece, per edge of a piece."""
_MOST_NODES = 1 << 15
_FEWEST_ROWS = 64


class PieceLimits(TypedDict):
    """How a table is read."""

    rows: int
    decoded_bytes: int


def edge_pieces(options: TableOptions, width: int) -> PieceLimits:
    """Return how the edges are read, of which each has so many numbers."""
    rows = options.piece_edges * _EDGE_NUMBERS // max(_EDGE_NUMBERS, width)
    return PieceLimits(rows=max(_FEWEST_ROWS, rows), decoded_bytes=_decoded_bytes(options))


def node_pieces(options: TableOptions, width: int) -> PieceLimits:
    """Return how the nodes are read, of which each has so many numbers."""
    rows = min(_MOST_NODES, options.piece_edges * _NODE_NUMBERS // max(1, width))
    return PieceLimits(rows=max(_FEWEST_ROWS, rows), decoded_bytes=_decoded_bytes(options))


def _decoded_bytes(options: TableOptions) -> int:
    return options.piece_edges * _PIECE_EDGE_BYTES // 2


def predict_ingest_bytes(num_nodes: int, options: TableOptions) -> int:
    """Return the predicted peak memory of ingesting tables, beyond what runs now."""
    record = predicted_record(num_nodes, options)
    node = _NODE_BYTES + (_TEXT_BYTES if options.id_type == "text" else 0)
    edge = 2 * record.itemsize + _SORTING_BYTES
    pieces = _PIECE_EDGE_BYTES * options.piece_edges + _FIXED_BYTES
    return node * num_nodes + edge * options.bucket_edges + pieces


def bucket_edges(options: TableOptions, num_nodes: int, record_bytes: int) -> int:
    """Return the edges sorted at once: fewer where a record is wider than was foreseen."""
    foreseen = predicted_record(num_nodes, options).itemsize
    return max(1, options.bucket_edges * min(foreseen, record_bytes) // record_bytes)


def least_ingest_bytes(num_nodes: int, options: TableOptions) -> int:
    """Return what ingesting tables takes at least."""
    buckets = min(options.bucket_edges, _FEWEST_BUCKET_EDGES)
    pieces = min(options.piece_edges, _FEWEST_PIECE_EDGES)
    least = replace(options, bucket_edges=buckets, piece_edges=pieces)
    return predict_ingest_bytes(num_nodes, least)


def fit_tables(options: TableOptions, num_nodes: int | None) -> TableOptions:
    """Return the options with the largest pieces and buckets that fit into their budget.

    Raises where none do. While the number of nodes is not known, the budget stays, for a second
    look when it is.
    """
    budget = options.budget
    if budget is None:
        return options
    pa.default_memory_pool().release_unused()  # what an earlier pass freed can be had again
    free, nodes, fitted = budget.free, num_nodes or 0, options
    if (least := least_ingest_bytes(nodes, options)) > free:
        raise _too_small(budget, least, free, num_nodes)
    while predict_ingest_bytes(nodes, fitted) > free:
        fitted = replace(
            fitted,
            bucket_edges=_halved(fitted.bucket_edges, _FEWEST_BUCKET_EDGES),
            piece_edges=_halved(fitted.piece_edges, _FEWEST_PIECE_EDGES),
        )
    return replace(fitted, budget=budget if num_nodes is None else None)


def _halved(edges: int, fewest: int) -> int:
    return edges if edges <= fewest else max(fewest, edges // 2)


def _too_small(budget: Budget, need: int, free: int, num_nodes: int | None) -> BudgetError:
    what = "tables of any size" if num_nodes is None else f"tables of {num_nodes:,} nodes"
    return BudgetError(
        "Reading the tables would not fit in memory.",
        seen=f"{what} need about {need / 2**20:,.0f} MiB ({need} bytes) beside the "
        f"{held_bytes() / 2**20:,.0f} MiB that Python holds, {free / 2**20:,.0f} MiB are free",
        fix=budget.fix(need),
    )

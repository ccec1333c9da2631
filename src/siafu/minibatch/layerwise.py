"""A function of every vertex and all its in-neighbours, some vertices at a time.

Layer by layer this is inference over the whole graph; its memory is that of one piece and of the
rows that come out, which may go to a file. With one aggregation it is the constant input of a first
layer.

Shapes: N owned rows, M rows of a piece, V vertices it reads.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import tell
from siafu.minibatch.relay import Relay
from siafu.minibatch.schedule import Minibatch
from siafu.minibatch.served import ROW_BITS
from siafu.minibatch.subgraph import Subgraph
from siafu.shard import HeldRows, RowReader, ScratchRows, new_rows

Compute = Callable[[Subgraph, dict[str, Tensor]], Tensor]
"""Maps a piece, and rows of its vertices by column, to a row for each of its M rows."""

_ROWS_AT_ONCE = 1 << 14
_EDGES_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 1 << 28
"""Of the rows a piece reads, if no two of its edges start at one vertex."""


def map_rows(
    relay: Relay, columns: tuple[str, ...], compute: Compute, *, on_disk: bool = False
) -> RowReader:
    """Return compute(...) of every owned row; every rank calls this together.

    The relay must draw one hop of all in-edges.
    """
    assert relay.sampling.fanouts == (-1,), "a piece reads all in-edges, once"
    line, num_owned = relay.line, relay.served.shard.num_owned
    row_bytes = sum(_row_bytes(relay.served.vertex_columns[name]) for name in columns)
    edges = min(_EDGES_AT_ONCE, max(_ROWS_AT_ONCE, _BYTES_AT_ONCE // row_bytes))
    spans = row_spans(relay.served.shard.csr.indptr, edges, _ROWS_AT_ONCE)
    rounds = int(max(row[0] for row in tell([float(len(spans))], line, "control")))
    out: ScratchRows | HeldRows | None = None
    for number in range(rounds):
        low, high = spans[number] if number < len(spans) else (0, 0)
        seeds = torch.arange(low, high) | line.rank << ROW_BITS
        piece = relay.sample(0, [Minibatch(number, seeds)])[0]
        addresses, place = piece.addresses.unique(return_inverse=True)
        found = relay.fetch(addresses, columns)
        rows = {name: column.index_select(0, place) for name, column in found.items()}
        result = compute(piece, rows).cpu()
        if out is None:
            shape = (num_owned, *result.shape[1:])
            out = new_rows(shape, result.dtype, on_disk=on_disk)
        out.write(low, result)
    assert out is not None, "there is one round at least"
    return out


def _row_bytes(reader: RowReader) -> int:
    return reader.dtype.itemsize * math.prod(reader.shape[1:])


def row_spans(indptr: Tensor, most_edges: int, most_rows: int) -> list[tuple[int, int]]:
    """Return spans of rows that are small in rows and, but for a hub, in edges."""
    spans, low, last = [], 0, len(indptr) - 1
    while low < last:
        fits = int(torch.searchsorted(indptr, indptr[low] + most_edges, right=True)) - 1
        high = min(max(fits, low + 1), low + most_rows, last)
        spans.append((low, high))
        low = high
    return spans or [(0, 0)]

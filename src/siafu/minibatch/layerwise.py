"""A function of every vertex and all its in-neighbours, some vertices at a time.

Layer by layer this is inference over the whole graph; its memory is that of one piece and of the
rows that come out, which may go to a file. With one aggregation it is the constant input of a first
layer.

Shapes: N owned rows, M rows of a piece, V vertices it reads.
"""

import tempfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from siafu.comm import tell
from siafu.minibatch.relay import Relay
from siafu.minibatch.schedule import Minibatch
from siafu.minibatch.served import ROW_BITS
from siafu.minibatch.subgraph import Subgraph
from siafu.shard import FileRows, HeldRows, RowReader

Compute = Callable[[Subgraph, dict[str, Tensor]], Tensor]
"""Maps a piece, and rows of its vertices by column, to a row for each of its M rows."""

_ROWS_AT_ONCE = 1 << 14
_EDGES_AT_ONCE = 1 << 20


def map_rows(
    relay: Relay, columns: tuple[str, ...], compute: Compute, *, on_disk: bool = False
) -> RowReader:
    """Return compute(...) of every owned row; every rank calls this together.

    The relay must draw one hop of all in-edges.
    """
    assert relay.sampling.fanouts == (-1,), "a piece reads all in-edges, once"
    line, num_owned = relay.line, relay.served.shard.num_owned
    spans = _spans(relay.served.shard.csr.indptr)
    rounds = int(max(row[0] for row in tell([float(len(spans))], line, "control")))
    out: Tensor | None = None
    for number in range(rounds):
        low, high = spans[number] if number < len(spans) else (0, 0)
        seeds = torch.arange(low, high) | line.rank << ROW_BITS
        piece = relay.sample(0, [Minibatch(number, seeds)])[0]
        addresses, place = piece.addresses.unique(return_inverse=True)
        rows = {n: r.index_select(0, place) for n, r in relay.fetch(addresses, columns).items()}
        result = compute(piece, rows).cpu()
        if out is None:
            out = _room(num_owned, result, on_disk=on_disk)
        out[low:high] = result
    assert out is not None, "there is one round at least"
    return FileRows(out.numpy()) if on_disk else HeldRows(out)


def _room(num_rows: int, like: Tensor, *, on_disk: bool) -> Tensor:
    shape = (num_rows, *like.shape[1:])
    if not on_disk or not num_rows:
        return torch.empty(shape, dtype=like.dtype)
    with tempfile.TemporaryFile(prefix="siafu-rows-") as file:  # gone with its last mapping
        array = np.memmap(file, np.dtype(str(like.dtype).removeprefix("torch.")), "w+", shape=shape)
    return torch.from_numpy(array)


def _spans(indptr: Tensor) -> list[tuple[int, int]]:
    """Return spans of rows that are small in rows and, but for a hub, in edges."""
    spans, low, last = [], 0, len(indptr) - 1
    while low < last:
        fits = int(torch.searchsorted(indptr, indptr[low] + _EDGES_AT_ONCE, right=True)) - 1
        high = min(max(fits, low + 1), low + _ROWS_AT_ONCE, last)
        spans.append((low, high))
        low = high
    return spans or [(0, 0)]

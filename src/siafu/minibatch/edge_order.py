"""Training edges in an order of their own each epoch, never in memory together.

An edge's place is drawn by its two ends, so the order does not depend on who owns what. Every epoch
a rank puts its edges into a file, piece after piece, each by the bucket of their draws: B equal
ranges of these. The buckets that some minibatches lie in are taken from all pieces when they are
needed, and from all ranks where the order is that of all.

Shapes: S edges, P pieces of this rank, B buckets, W ranks.
"""

import numpy as np
import torch
from torch import Tensor

from siafu.comm import World, start_exchange, tell
from siafu.minibatch.held_out import column_numbers, edge_ends
from siafu.minibatch.layerwise import row_spans
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.ops import DrawKey, uniform_pairs
from siafu.shard import Shard, new_rows

PIECE_EDGES = 1 << 19
"""Sorted at once: some 50 MB."""
BUCKET_EDGES = 1 << 18


class EdgeOrder:
    """Edges as numbers of source and destination, loops left out, repeated ones once.

    Every rank makes one together; with an order of all ranks they read together too.
    """

    def __init__(self, shard: Shard, line: World, seed: int, *, of_all_ranks: bool) -> None:
        self._shard, self._line, self._seed, self._of_all = shard, line, seed, of_all_ranks
        self._numbers = column_numbers(shard, line)
        self._spans = row_spans(shard.csr.indptr, PIECE_EDGES, PIECE_EDGES)
        mine = sum(len(self._pairs(low, high)) for low, high in self._spans)
        self.totals = [int(row[0]) for row in tell([float(mine)], line, "control")]
        """Edges of each rank."""
        total = sum(self.totals) if of_all_ranks else mine
        self._num_buckets = max(1, -(-total // BUCKET_EDGES))
        self._rows = new_rows((mine, 2), torch.int64, on_disk=shard.is_mapped)
        self._epoch = -1
        self._cuts = np.zeros((len(self._spans), self._num_buckets + 1), np.int64)
        """[P, B + 1]: where the buckets of each piece are in `_rows`."""
        self._counts_WB = np.zeros((1, self._num_buckets), np.int64)
        self._starts = np.zeros(self._num_buckets + 1, np.int64)
        """Where each bucket starts in the order, and the end of the last."""
        self._held, self._from, self._until = _no_edges(), 0, 0
        """Edges of some buckets, in order, the first of them and the one after the last."""

    def read(self, epoch: int, places: range) -> Tensor:
        """Return int64 [S, 2]: the edges at these places of an epoch's order."""
        if epoch != self._epoch:
            self._shuffle(epoch)
        if not places:
            return _no_edges()
        ends = np.searchsorted(self._starts, [places.start, places.stop - 1], "right") - 1
        first, last = ends.tolist()
        if not self._from <= first <= self._until:
            self._held, self._from, self._until = _no_edges(), first, first
        self._held = self._held[self._starts[first] - self._starts[self._from] :]
        self._from = first
        if last >= self._until:
            self._held = torch.cat([self._held, self._take(self._until, last + 1)])
            self._until = last + 1
        low = places.start - int(self._starts[first])
        return self._held[low : low + len(places)]

    def _pairs(self, low: int, high: int) -> Tensor:
        """Return the edges into some owned rows, sorted."""
        src, dst = edge_ends(self._shard, self._numbers, low, high)
        count = self._shard.num_vertices
        key = (src * count + dst)[src != dst].unique()
        return torch.stack([key // count, key % count], dim=1)

    def _draws(self, pairs: Tensor) -> Tensor:
        key = DrawKey(self._seed, self._epoch, ORDER_PURPOSE)
        src, dst = pairs.T.contiguous()
        return uniform_pairs(key, src, dst, 1, dtype=torch.float64)[:, 0]

    def _shuffle(self, epoch: int) -> None:
        """Put this rank's edges in the order of the epoch, each piece by itself."""
        self._epoch, count, cuts, at = epoch, self._num_buckets, self._cuts, 0
        for piece, span in enumerate(self._spans):
            pairs = self._pairs(*span)
            bucket = (self._draws(pairs) * count).long().clamp(max=count - 1)
            self._rows.write(at, pairs.index_select(0, bucket.argsort()))
            cuts[piece, 0] = at
            cuts[piece, 1:] = at + torch.bincount(bucket, minlength=count).cumsum(0).numpy()
            at += len(pairs)
        mine_B = np.diff(cuts).sum(axis=0)
        table = [mine_B.tolist()]
        if self._of_all:
            table = tell([float(number) for number in mine_B], self._line, "control")
        self._counts_WB = np.array(table, np.int64)
        self._starts[1:] = self._counts_WB.sum(axis=0).cumsum()
        self._held, self._from, self._until = _no_edges(), 0, 0

    def _take(self, first: int, end: int) -> Tensor:
        """Return the edges of some buckets, in order."""
        pieces = [self._rows.slice(int(cut[first]), int(cut[end])) for cut in self._cuts]
        pairs = torch.cat(pieces)
        if self._of_all and self._line.size > 1:
            pairs = torch.cat([pairs, self._others(pairs, first, end)])
        pairs = pairs[(pairs[:, 0] * self._shard.num_vertices + pairs[:, 1]).argsort()]
        return pairs[self._draws(pairs).argsort(stable=True)]

    def _others(self, mine: Tensor, first: int, end: int) -> Tensor:
        line = self._line
        counts = self._counts_WB[:, first:end].sum(axis=1).tolist()
        counts[line.rank] = 0
        sent = tuple(len(mine) if rank != line.rank else 0 for rank in range(line.size))
        copies = mine.repeat(line.size - 1, 1)
        return start_exchange(copies, sent, tuple(counts), line, "control").wait(line, "edges")


def _no_edges() -> Tensor:
    return torch.empty(0, 2, dtype=torch.int64)

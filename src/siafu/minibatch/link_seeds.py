"""Minibatches of edges for link prediction: their order, and their ends and negatives as seeds.

Shapes: B edges of a minibatch, K negatives of each, E edges of a sub-graph.
"""

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from siafu.comm import World, start_exchange, tell
from siafu.graph import Array, forget
from siafu.minibatch.held_out import column_numbers, edge_ends
from siafu.minibatch.layerwise import row_spans
from siafu.minibatch.relay import epoch_of_draws
from siafu.minibatch.schedule import ORDER_PURPOSE, Minibatch, Step
from siafu.minibatch.served import ROW_BITS
from siafu.minibatch.subgraph import Subgraph
from siafu.ops import DrawKey, Numbering, uniform_pairs, uniform_rows
from siafu.shard import Shard, new_rows

PIECE_EDGES = 1 << 19
"""Sorted at once: some 50 MB."""
BUCKET_EDGES = 1 << 18
_BLOCK = 256
_BLOCKS_AT_ONCE = 1 << 12
_NEGATIVES_PURPOSE = ORDER_PURPOSE - 3


class EdgeOrder:
    """Training edges in an order of their own each pass over them, never in memory together.

    Edges are numbers of source and destination, loops left out, repeated ones once. An edge's place
    is drawn by its two ends, so the order does not depend on who owns what. Every pass a rank puts
    its edges into a file, piece after piece, each by the bucket of their draws: B equal ranges of
    these. The buckets that some minibatches lie in are taken from all pieces when they are needed,
    and from all ranks where the order is that of all.

    Every rank makes one together; with an order of all ranks they read together too.
    Shapes: S edges, P pieces of this rank, B buckets, W ranks.
    """

    def __init__(self, shard: Shard, channel: World, seed: int, *, of_all_ranks: bool) -> None:
        self._shard, self._channel, self._seed, self._of_all = shard, channel, seed, of_all_ranks
        self._numbers = column_numbers(shard, channel)
        self._spans = row_spans(shard.csr.indptr, PIECE_EDGES, PIECE_EDGES)
        mine = sum(len(self._pairs(low, high)) for low, high in self._spans)
        self.totals = [int(row[0]) for row in tell([float(mine)], channel, "control")]
        """Edges of each rank."""
        total = sum(self.totals) if of_all_ranks else mine
        self._num_buckets = max(1, -(-total // BUCKET_EDGES))
        self._rows = new_rows((mine, 2), torch.int64, on_disk=shard.is_mapped)
        self._turn = -1
        self._cuts = np.zeros((len(self._spans), self._num_buckets + 1), np.int64)
        """[P, B + 1]: where the buckets of each piece are in `_rows`."""
        self._counts_WB = np.zeros((1, self._num_buckets), np.int64)
        self._starts = np.zeros(self._num_buckets + 1, np.int64)
        """Where each bucket starts in the order, and the end of the last."""
        self._held, self._from, self._until = _no_edges(), 0, 0
        """Edges of some buckets, in order, the first of them and the one after the last."""

    def read(self, turn: int, places: range) -> Tensor:
        """Return int64 [S, 2]: the edges at these places of the order of a pass."""
        if turn != self._turn:
            self._shuffle(turn)
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
        count = self._shard.num_nodes
        key = (src * count + dst)[src != dst].unique()
        return torch.stack([key // count, key % count], dim=1)

    def _draws(self, pairs: Tensor) -> Tensor:
        key = DrawKey(self._seed, self._turn, ORDER_PURPOSE)
        src, dst = pairs.T.contiguous()
        return uniform_pairs(key, src, dst, 1, dtype=torch.float64)[:, 0]

    def _shuffle(self, turn: int) -> None:
        """Put this rank's edges in the order of the pass, each piece by itself."""
        self._turn, count, cuts, at = turn, self._num_buckets, self._cuts, 0
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
            table = tell([float(number) for number in mine_B], self._channel, "control")
        self._counts_WB = np.array(table, np.int64)
        self._starts[1:] = self._counts_WB.sum(axis=0).cumsum()
        self._held, self._from, self._until = _no_edges(), 0, 0

    def _take(self, first: int, end: int) -> Tensor:
        """Return the edges of some buckets, in order."""
        pieces = [self._rows.slice(int(cut[first]), int(cut[end])) for cut in self._cuts]
        pairs = torch.cat(pieces)
        if self._of_all and self._channel.size > 1:
            pairs = torch.cat([pairs, self._others(pairs, first, end)])
        pairs = pairs[(pairs[:, 0] * self._shard.num_nodes + pairs[:, 1]).argsort()]
        return pairs[self._draws(pairs).argsort(stable=True)]

    def _others(self, mine: Tensor, first: int, end: int) -> Tensor:
        channel = self._channel
        counts = self._counts_WB[:, first:end].sum(axis=1).tolist()
        counts[channel.rank] = 0
        sent = tuple(len(mine) if rank != channel.rank else 0 for rank in range(channel.size))
        copies = mine.repeat(channel.size - 1, 1)
        return start_exchange(copies, sent, tuple(counts), channel, "control").wait(
            channel, "edges"
        )


def _no_edges() -> Tensor:
    return torch.empty(0, 2, dtype=torch.int64)


class Directory:
    """Where a node lives, from its number in the whole graph, without a table of all nodes.

    Rows of a part rise with their numbers, so a node's row is the count of nodes of its part before
    it: counted up to each block beforehand, and within the block when asked. 1/32 byte per node and
    part is kept, the rest stays in the file.
    """

    def __init__(self, part_of: Array, num_parts: int) -> None:
        """`part_of` has the part of each node of the whole graph; it may be memory-mapped."""
        self._part_of, self._num_parts = part_of, num_parts
        num_blocks = -(-len(part_of) // _BLOCK)
        counts = np.zeros((num_blocks, num_parts), np.int64)
        for low in range(0, num_blocks, _BLOCKS_AT_ONCE):
            high = min(low + _BLOCKS_AT_ONCE, num_blocks)
            piece = np.asarray(part_of[low * _BLOCK : high * _BLOCK], np.int64)
            cell = np.arange(len(piece)) // _BLOCK * num_parts + piece
            found = np.bincount(cell, minlength=(high - low) * num_parts)
            counts[low:high] = found.reshape(high - low, num_parts)
            forget(part_of)
        self._before = counts.cumsum(axis=0) - counts

    def addresses(self, numbers: Tensor) -> Tensor:
        """Return the address of each node."""
        if self._num_parts == 1:
            return numbers.clone()
        pieces = [self._look_up(piece.numpy()) for piece in numbers.split(_BLOCKS_AT_ONCE)]
        return torch.from_numpy(np.concatenate(pieces))

    def _look_up(self, number_Q: Array) -> Array:
        owner_Q = np.asarray(self._part_of[number_Q], np.int64)
        block_Q = number_Q // _BLOCK
        window = block_Q[:, None] * _BLOCK + np.arange(_BLOCK)
        earlier = window < number_Q[:, None]
        parts = self._part_of[np.minimum(window, number_Q[:, None])]
        within_Q = ((parts == owner_Q[:, None]) & earlier).sum(axis=1)
        return owner_Q << ROW_BITS | self._before[block_Q, owner_Q] + within_Q


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkBatching:
    """How edges become seeds."""

    negatives: int = 1
    """Destinations drawn for each edge; 0: those of the other edges of the minibatch."""
    exclude_targets: bool = True
    """No messages pass over the edges of a minibatch while it is trained on."""


class LinkSeeds:
    """Turns minibatches of edges, by their places in an order, into seeds, as addresses.

    The seeds are B sources, B destinations, then K negatives of each edge.
    """

    def __init__(self, shard: Shard, batching: LinkBatching, order: EdgeOrder, seed: int) -> None:
        self.batching, self.order, self.seed = batching, order, seed
        self.num_nodes = shard.num_nodes
        self.directory = Directory(shard.part_of, shard.world.size)

    def expand(self, epoch: int, steps: list[Step]) -> list[Step]:
        """Return consecutive steps with seeds in place of edges; every rank calls this together."""
        # A macrobatch may end one pass over all edges and begin the next.
        passes = [list(some) for _, some in groupby(steps, key=lambda step: step.turn)]
        return [step for some in passes for step in self._expand_pass(epoch, some)]

    def _expand_pass(self, epoch: int, steps: list[Step]) -> list[Step]:
        """Return the same for steps of one pass."""
        start = steps[0].places.start
        pairs = self.order.read(steps[0].turn, range(start, steps[-1].places.stop))

        def seeded(batch: Minibatch) -> Minibatch:
            low = batch.places.start - start if batch.places else 0
            return self._seeds(epoch, batch, pairs[low : low + len(batch.places)])

        return [replace(step, mine=[seeded(batch) for batch in step.mine]) for step in steps]

    def _seeds(self, epoch: int, batch: Minibatch, pairs_B2: Tensor) -> Minibatch:
        src_B, dst_B = pairs_B2.unbind(1)
        key = DrawKey(self.seed, epoch_of_draws(epoch, batch.number), _NEGATIVES_PURPOSE)
        count = 2 * self.batching.negatives
        draws = uniform_rows(key, torch.arange(len(dst_B)), count, dtype=torch.float64)
        others_BK = other_nodes(draws, dst_B, self.num_nodes)
        numbers = torch.cat([src_B, dst_B, others_BK.flatten()])
        return replace(batch, seeds=self.directory.addresses(numbers))

    def num_edges(self, batch: Minibatch) -> int:
        """B."""
        return len(batch.seeds) // (2 + self.batching.negatives)

    def without_targets(self, batch: Minibatch, subgraph: Subgraph) -> Subgraph:
        """Return the sub-graph less the minibatch's own edges, in both directions."""
        if not self.batching.exclude_targets:
            return subgraph
        count, num_nodes = self.num_edges(batch), len(subgraph.addresses)
        device, end = subgraph.index.device, subgraph.ends[0]
        seeds = rows_of_seeds(batch.seeds)[: 2 * count].to(device)
        src_B, dst_B = seeds.view(2, count)
        targets = torch.cat([dst_B * num_nodes + src_B, src_B * num_nodes + dst_B])
        degree = subgraph.indptr.diff()
        seed_M = torch.arange(subgraph.num_seeds, device=device)
        row_E = seed_M.repeat_interleave(degree[: subgraph.num_seeds], output_size=end)
        drop_E = torch.isin(row_E * num_nodes + subgraph.index[:end].long(), targets)
        keep_E = torch.ones(len(subgraph.index), dtype=torch.bool, device=device)
        keep_E[:end] = ~drop_E
        dropped_E = row_E[drop_E]
        removed = torch.bincount(dropped_E, minlength=len(degree))
        degree = degree - removed
        return replace(
            subgraph,
            indptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
            index=subgraph.index[keep_E],
            edges={name: column[keep_E] for name, column in subgraph.edges.items()},
            ends=tuple(each - len(dropped_E) for each in subgraph.ends),
            removed=removed,
            counts=degree,
        )


def rows_of_seeds(seeds: Tensor) -> Tensor:
    """Return the row of each seed in its sub-graph, which has repeated ones once."""
    return Numbering().add(seeds)[0].long()


def other_nodes(draws_B2K: Tensor, not_B: Tensor, num_nodes: int) -> Tensor:
    """Return [B, K] nodes, uniform over all but one, from two draws each.

    One draw has 32 bits, too few to be uniform over very many nodes.
    """
    draws_BK = draws_B2K[:, 0::2] + draws_B2K[:, 1::2] * 2.0**-32
    others_BK = (draws_BK * (num_nodes - 1)).long().clamp(max=num_nodes - 2)
    return others_BK + (others_BK >= not_B[:, None])

"""Rows of all nodes by a model that is not taken apart into layers, where memory is limited.

A piece is owned nodes with all their in-edges, for as many hops as training draws: none is larger
than the minibatches that training has room for, but a node that is larger by itself goes alone.

Shapes: N owned rows, C columns of the shard, R rows asked for.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import World, exchange_halo, tell
from siafu.minibatch import ROW_BITS, Columns, Feed, Minibatch, Relay, Sampling, Subgraph
from siafu.shard import Shard, WrittenRows, new_rows

_AIM = 0.9
"""Of what a piece may have: the next seeds may share fewer of their neighbours."""
_TRIES = 12
"""Pieces drawn to begin with, each up to twice as large as the one before."""

Compute = Callable[[Subgraph, Columns], Tensor]
"""Maps a piece, and rows of its nodes by column, to a row for each of its seeds."""


class Pieces:
    """Seeds taken so many at a time that what they read has room; all ranks call alike."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self.hops = feed, len(feed.relay.sampling.fanouts)
        self._nodes, self._edges = _of_training(feed)
        self._met_N = most_met(feed.shard, self.hops, feed.channel)
        self._each = float(min(self._nodes, self._edges))
        """Nodes that the seeds of a piece may meet, counted anew as often as they are met."""
        self._relay = self._relay_of(self.hops)
        rows_N, ends_N = torch.arange(feed.shard.num_owned), self._met_N.cumsum(0)
        for _ in range(_TRIES):
            high = self._end(ends_N, 0)
            piece = self._drawn(rows_N[:high])
            self._note(float(self._met_N[:high].sum()), piece)
            is_small = self._fill(piece) < _AIM / 2 and high < len(rows_N)
            if not self._any(is_small):
                break

    def count(self) -> int:
        """Return about how many pieces all nodes are, on the rank that has most."""
        mine = math.ceil(float(self._met_N.sum()) / self._each)
        return int(self._most(mine))

    def bytes_alone(self, bytes_of: Callable[[float, float], float], left: float) -> float:
        """Return what the node takes that meets most, on any rank, by its nodes and edges.

        It is drawn only where it may take more than is left, and no further than it does.
        """
        rows = self._met_N.argmax().view(1) if len(self._met_N) else torch.arange(0)
        met = float(self._met_N[rows].sum())
        mine = bytes_of(min(met, self._feed.shard.num_nodes), met)
        if not self._any(mine > left):
            return self._most(mine)
        for hops in range(1, self.hops + 1):
            piece = self._drawn(rows, self._relay_of(hops))
            mine = bytes_of(piece.reached[-1], len(piece.index))
            if self._any(mine > left):
                break
        return self._most(mine)

    def rows(self, rows_R: Tensor, width: int, compute: Compute) -> WrittenRows:
        """Return a row for each of some owned nodes, on disk where those of layers would be.

        `width` is what they are expected to be.
        """
        room, out = self._feed.room(width, 1), None
        ends_R, at, goes_on = self._met_N[rows_R].cumsum(0), 0, True
        while goes_on:
            high = self._end(ends_R, at)
            piece = self._drawn(rows_R[at:high])
            self._note(float(self._met_N[rows_R[at:high]].sum()), piece)
            fits = high - at <= 1 or self._fill(piece) <= 1
            columns = columns_of(self._feed, self._relay, piece, none=not fits)
            if fits and high > at:
                made = compute(piece, columns)
                if out is None:
                    shape = (len(rows_R), made.size(1))
                    out = new_rows(shape, made.dtype, on_disk=room.on_disk)
                out.write(at, made.cpu())
                at = high
                del made
            del piece, columns  # before the next are drawn
            goes_on = self._any(at < len(rows_R))
        if out is None:
            return new_rows((0, width), torch.get_default_dtype(), on_disk=False)
        return out

    def _relay_of(self, hops: int) -> Relay:
        return self._feed.relay_for(Sampling(fanouts=(-1,) * hops))

    def _end(self, ends_R: Tensor, at: int) -> int:
        """Return where the piece ends that begins there: of one seed at least, if any is left."""
        before = float(ends_R[at - 1]) if at else 0.0
        fits = int(torch.searchsorted(ends_R, before + self._each, right=True))
        return min(max(fits, at + 1), len(ends_R))

    def _drawn(self, rows: Tensor, relay: Relay | None = None) -> Subgraph:
        seeds = rows | self._feed.channel.rank << ROW_BITS
        return (relay or self._relay).sample(0, [Minibatch(0, seeds)])[0]

    def _fill(self, piece: Subgraph) -> float:
        """Return what a piece has of what it may."""
        return max(piece.reached[-1] / self._nodes, len(piece.index) / self._edges)

    def _note(self, met: float, piece: Subgraph) -> None:
        """Settle what the next piece may meet: what would fill it if it shared as much."""
        fill, before = self._fill(piece), self._each
        if fill > 1:
            self._each = min(before, met / 2, _AIM * met / fill)
        elif met > before / 2:  # not of the few that are left in the end
            self._each = min(2 * before, _AIM * met / fill)

    def _any(self, mine: bool) -> bool:
        return self._most(mine) > 0

    def _most(self, mine: float) -> float:
        return max(row[0] for row in tell([float(mine)], self._feed.channel, "control"))


def most_met(shard: Shard, hops: int, channel: World) -> Tensor:
    """Return float64 [N]: the nodes met within so many hops, each as often as it is met."""
    met_N = torch.ones(shard.num_owned, dtype=torch.float64)
    for _ in range(hops):
        met_C = torch.cat([met_N, exchange_halo(met_N, shard.plan, channel)])
        met_N = torch.ones_like(met_N)
        for low, high, piece in shard.edge_pieces():
            met_N[low:high].index_add_(0, piece.rows(), met_C.index_select(0, piece.index))
    return met_N


def columns_of(feed: Feed, relay: Relay, piece: Subgraph, *, none: bool = False) -> Columns:
    """Return rows of a sub-graph's nodes by column; `none` asks for nothing, beside other ranks."""
    addresses, place = piece.addresses.unique(return_inverse=True)
    addresses = addresses[:0] if none else addresses
    fetched = relay.fetch(addresses, feed.columns)
    return {} if none else {name: fetched.pop(name)[place] for name in tuple(fetched)}


def _of_training(feed: Feed) -> tuple[int, int]:
    """Return the nodes and edges of the largest minibatch tried, of training nodes if any are."""
    trial = feed.trial()
    if trial.edges:
        return trial.reached[-1], trial.edges
    size, num_owned = feed.sampler.schedule.batch_size, feed.shard.num_owned
    rows = torch.arange(num_owned)[:: max(1, num_owned // max(1, size))][:size]
    seeds = rows | feed.channel.rank << ROW_BITS
    relay = feed.relay_for(feed.relay.sampling)
    drawn = relay.sample(0, [Minibatch(0, seeds)])[0]
    table = tell([float(drawn.reached[-1]), float(len(drawn.index))], feed.channel, "control")
    nodes, edges = (max(1, int(max(column))) for column in zip(*table, strict=True))
    return nodes, edges

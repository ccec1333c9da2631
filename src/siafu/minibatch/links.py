"""Minibatches of edges for link prediction: their ends and negatives are the seeds.

Shapes: B edges of a minibatch, K negatives of each, E edges of a sub-graph.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from siafu.minibatch.directory import Directory
from siafu.minibatch.edge_order import EdgeOrder
from siafu.minibatch.relay import epoch_of_draws
from siafu.minibatch.schedule import ORDER_PURPOSE, Minibatch, Step
from siafu.minibatch.subgraph import Subgraph
from siafu.ops import DrawKey, Numbering, uniform_rows
from siafu.shard import Shard

_PURPOSE = ORDER_PURPOSE - 3


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
        self.num_vertices = shard.num_vertices
        self.directory = Directory(shard.part_of, shard.world.size)

    def expand(self, epoch: int, steps: list[Step]) -> list[Step]:
        """Return consecutive steps with seeds in place of edges; every rank calls this together."""
        start = steps[0].places.start
        pairs = self.order.read(epoch, range(start, steps[-1].places.stop))

        def seeded(batch: Minibatch) -> Minibatch:
            low = batch.places.start - start if batch.places else 0
            return self._seeds(epoch, batch, pairs[low : low + len(batch.places)])

        return [replace(step, mine=[seeded(batch) for batch in step.mine]) for step in steps]

    def _seeds(self, epoch: int, batch: Minibatch, pairs_B2: Tensor) -> Minibatch:
        src_B, dst_B = pairs_B2.unbind(1)
        key = DrawKey(self.seed, epoch_of_draws(epoch, batch.number), _PURPOSE)
        count = 2 * self.batching.negatives
        draws = uniform_rows(key, torch.arange(len(dst_B)), count, dtype=torch.float64)
        others_BK = other_vertices(draws, dst_B, self.num_vertices)
        numbers = torch.cat([src_B, dst_B, others_BK.flatten()])
        return replace(batch, seeds=self.directory.addresses(numbers))

    def num_edges(self, batch: Minibatch) -> int:
        """B."""
        return len(batch.seeds) // (2 + self.batching.negatives)

    def without_targets(self, batch: Minibatch, subgraph: Subgraph) -> Subgraph:
        """Return the sub-graph less the minibatch's own edges, in both directions."""
        if not self.batching.exclude_targets:
            return subgraph
        count, num_vertices = self.num_edges(batch), len(subgraph.addresses)
        src_B, dst_B = rows_of_seeds(batch.seeds)[: 2 * count].view(2, count)
        targets = torch.cat([dst_B * num_vertices + src_B, src_B * num_vertices + dst_B])
        end = int(subgraph.indptr[subgraph.num_seeds]) if subgraph.num_seeds else 0
        degree = subgraph.indptr.diff()
        row_E = torch.arange(subgraph.num_seeds).repeat_interleave(degree[: subgraph.num_seeds])
        drop_E = torch.isin(row_E * num_vertices + subgraph.index[:end].long(), targets)
        keep_E = torch.ones(len(subgraph.index), dtype=torch.bool)
        keep_E[:end] = ~drop_E
        removed = torch.bincount(row_E[drop_E], minlength=len(degree))
        degree = degree - removed
        return replace(
            subgraph,
            indptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
            index=subgraph.index[keep_E],
            edges={name: column[keep_E] for name, column in subgraph.edges.items()},
            removed=removed,
        )


def rows_of_seeds(seeds: Tensor) -> Tensor:
    """Return the row of each seed in its sub-graph, which has repeated ones once."""
    return Numbering().add(seeds)[0].long()


def other_vertices(draws_B2K: Tensor, not_B: Tensor, num_vertices: int) -> Tensor:
    """Return [B, K] vertices, uniform over all but one, from two draws each.

    One draw has 32 bits, too few to be uniform over very many vertices.
    """
    draws_BK = draws_B2K[:, 0::2] + draws_B2K[:, 1::2] * 2.0**-32
    others_BK = (draws_BK * (num_vertices - 1)).long().clamp(max=num_vertices - 2)
    return others_BK + (others_BK >= not_B[:, None])

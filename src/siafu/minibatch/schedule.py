"""Which vertices or edges each minibatch has, and who works on it: the same count for every rank.

A step is one update of the weights: some minibatches, each on one rank. Sizes are as even as can
be, so no rank is left over and nothing is dropped or used twice in an epoch.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from siafu.comm import World
from siafu.ops import DrawKey, uniform_pairs, uniform_rows

ORDER_PURPOSE = 1 << 20
"""Stream of the draws that shuffle seeds; those of hops follow it."""

Order = Literal["local", "global"]


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Seeds that are sampled and trained on together."""

    number: int
    """Of all in its epoch; keys its draws."""
    seeds: Tensor
    """int64: addresses; none where a rank has nothing to do in a step. Before they are seeds,
    edges are dealt as vertex numbers [B, 2]."""


@dataclass(frozen=True, eq=False)
class Step:
    """One update of the weights."""

    mine: list[Minibatch]
    """This rank's, in the order of their numbers; ranks have equally many, some without seeds."""
    holders: list[int]
    """The rank of each minibatch of the step, by number."""
    num_seeds: int
    """Vertices, or edges, of all ranks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Seeds in an order of their own each epoch, cut into steps."""

    world: World
    seed: int
    ids: Tensor
    """int64: number in the whole graph of each seed, of this rank or of all; [S, 2], both ends, for
    edges."""
    dealt: Tensor
    """What minibatches are given of each: the address of a vertex, or an edge as in `ids`."""
    totals: list[int]
    """Seeds of each rank (`local`), or of all together."""
    order: Order
    batch_size: int
    step_minibatches: int
    """Minibatches of a step."""

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        if self.order == "local":
            return max(1, -(-max(self.totals) // self.batch_size))
        return max(1, -(-sum(self.totals) // (self.batch_size * self.step_minibatches)))

    def steps(self, epoch: int) -> list[Step]:
        """Return the steps of an epoch as this rank sees them."""
        key = DrawKey(self.seed, epoch, ORDER_PURPOSE)
        if self.ids.dim() == 1:
            draws = uniform_rows(key, self.ids, 1, dtype=torch.float64)
        else:
            draws = uniform_pairs(key, self.ids[:, 0], self.ids[:, 1], 1, dtype=torch.float64)
        seeds = self.dealt.index_select(0, draws[:, 0].argsort(stable=True))
        make = self._local_step if self.order == "local" else self._global_step
        return [make(seeds, number) for number in range(self.num_steps)]

    def _local_step(self, seeds: Tensor, step: int) -> Step:
        """Every rank works for vertices it owns."""
        cuts = [_share(total, step, self.num_steps) for total in self.totals]
        low, high = cuts[self.world.rank]
        number = step * self.world.size + self.world.rank
        return Step(
            [Minibatch(number, seeds[low:high])],
            list(range(self.world.size)),
            sum(high - low for low, high in cuts),
        )

    def _global_step(self, seeds: Tensor, step: int) -> Step:
        """Minibatches are the same for any number of ranks, and dealt to them in turn."""
        ranks, count = self.world.size, self.step_minibatches
        cuts = [
            _share(len(seeds), step * count + place, self.num_steps * count)
            for place in range(count)
        ]
        mine = [
            Minibatch(step * count + place, seeds[slice(*cuts[place])])
            for place in range(self.world.rank, count, ranks)
        ]
        idle = -(-count // ranks) - len(mine)
        mine += [Minibatch(self.num_steps * count, seeds[:0])] * idle
        holders = [place % ranks for place in range(count)]
        return Step(mine, holders, sum(high - low for low, high in cuts))


def _share(total: int, part: int, parts: int) -> tuple[int, int]:
    return part * total // parts, (part + 1) * total // parts

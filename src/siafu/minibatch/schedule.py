"""Which nodes or edges each minibatch has, and who works on it: the same count for every rank.

A step is one update of the weights: some minibatches, each on one rank. Sizes are as even as can
be, so no rank is left over and nothing is dropped or used twice in an epoch.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from siafu.comm import World
from siafu.ops import DrawKey, uniform_rows

ORDER_PURPOSE = 1 << 20
"""Stream of the draws that shuffle seeds; those of hops follow it."""

SeedOrder = Literal["local", "global"]


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Seeds that are sampled and trained on together."""

    number: int
    """Of all in its epoch; keys its draws, of edges where they are not shared."""
    seeds: Tensor
    """int64: addresses; none where a rank has nothing to do in a step."""
    places: range = range(0)
    """Where edges are dealt: those of them in the epoch's order, which are to become seeds."""
    draws: int | None = None
    """Keys its draws of edges, where others share them."""

    @property
    def keyed(self) -> int:
        """The number that keys its draws of edges."""
        return self.number if self.draws is None else self.draws


@dataclass(frozen=True, eq=False)
class Step:
    """One update of the weights."""

    mine: list[Minibatch]
    """This rank's, in the order of their numbers; ranks have equally many, some without seeds."""
    holders: list[int]
    """The rank of each minibatch of the step, by number."""
    num_seeds: int
    """Nodes, or edges, of all ranks."""
    places: range
    """In the pass's order, which is this rank's (`local`) or that of all."""
    turn: int
    """Which pass over all seeds it is of, from 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Seeds in an order of their own each pass, cut into steps; an epoch is a pass or less."""

    world: World
    seed: int
    ids: Tensor | None = None
    """int64: number in the whole graph of each seed, of this rank or of all; None where edges are
    dealt, by their places in an order that is kept elsewhere."""
    dealt: Tensor | None = None
    """Address of each of them."""
    totals: list[int]
    """Seeds of each rank (`local`), or of all together."""
    order: SeedOrder
    batch_size: int
    step_minibatches: int
    """Minibatches of a step."""
    most_steps: int | None = None
    """Of an epoch: the next one goes on from there."""
    share_draws: int = 0
    """Steps in turn whose minibatches at one place draw edges alike; 0 for none."""
    _order: dict[int, Tensor] = field(default_factory=dict)
    """Seeds in the order of the latest pass, kept where it lasts for several epochs."""

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return min(self.most_steps or self.pass_steps, self.pass_steps)

    @property
    def pass_steps(self) -> int:
        """Steps that use every seed once."""
        if self.order == "local":
            return max(1, -(-max(self.totals) // self.batch_size))
        return max(1, -(-sum(self.totals) // (self.batch_size * self.step_minibatches)))

    def dealing(self, partition: str) -> str:
        """Return by what seeds are dealt: alike, the steps of an epoch are the same ones."""
        if self.order == "global":
            size = f"{self.step_minibatches} x {self.batch_size}"
            return f"{self.num_steps} steps of {size} of {sum(self.totals)} seeds"
        ranks = f"{len(self.totals)} ranks, --partition {partition}"
        return f"{self.num_steps} steps of {self.batch_size} per rank on {ranks}"

    def on(self, device: torch.device) -> "Schedule":
        """Return the same schedule, which shuffles on a device."""
        if self.ids is None or self.dealt is None:
            return self
        return replace(self, ids=self.ids.to(device), dealt=self.dealt.to(device))

    def steps(self, epoch: int) -> list[Step]:
        """Return the steps of an epoch as this rank sees them.

        Their numbers differ within it, since it is no longer than a pass.
        """
        make = self._local_step if self.order == "local" else self._global_step
        first = (epoch - 1) * self.num_steps
        places = [
            divmod(number, self.pass_steps) for number in range(first, first + self.num_steps)
        ]
        steps = [make(self._seeds(turn + 1), number, turn + 1) for turn, number in places]
        if self.num_steps == self.pass_steps:
            self._order.clear()
        return steps

    def _seeds(self, turn: int) -> Tensor:
        """Return the seeds in the order of a pass."""
        if self.ids is None or self.dealt is None:
            return torch.empty(0, dtype=torch.int64)
        if turn not in self._order:
            key = DrawKey(self.seed, turn, ORDER_PURPOSE)
            draws = uniform_rows(key, self.ids, 1, dtype=torch.float64)
            self._order.clear()
            self._order[turn] = self.dealt.index_select(0, draws[:, 0].argsort(stable=True))
        return self._order[turn]

    def _local_step(self, seeds: Tensor, step: int, turn: int) -> Step:
        """Every rank works for nodes it owns."""
        cuts = [_share(total, step, self.pass_steps) for total in self.totals]
        low, high = cuts[self.world.rank]
        number = step * self.world.size + self.world.rank
        draws = draws_of(number, self.world.size, self.share_draws)
        return Step(
            [Minibatch(number, seeds[low:high], range(low, high), draws)],
            list(range(self.world.size)),
            sum(high - low for low, high in cuts),
            range(low, high),
            turn,
        )

    def _global_step(self, seeds: Tensor, step: int, turn: int) -> Step:
        """Minibatches are the same for any number of ranks, and dealt to them in turn."""
        ranks, count = self.world.size, self.step_minibatches
        total, parts = sum(self.totals), self.pass_steps * count
        cuts = [_share(total, step * count + place, parts) for place in range(count)]
        mine = [
            Minibatch(
                step * count + place,
                seeds[slice(*cuts[place])],
                range(*cuts[place]),
                draws_of(step * count + place, count, self.share_draws),
            )
            for place in range(self.world.rank, count, ranks)
        ]
        idle = -(-count // ranks) - len(mine)
        mine += [Minibatch(self.pass_steps * count, seeds[:0])] * idle
        holders = [place % ranks for place in range(count)]
        places = range(cuts[0][0], cuts[-1][1])
        return Step(mine, holders, len(places), places, turn)


def draws_of(number: int, step_minibatches: int, share_draws: int) -> int:
    """Return the number that keys the draws of a minibatch: its own, or the first it shares with.

    Minibatches of one step never share: their gradients are added up, and should err apart.
    """
    if not share_draws:
        return number
    step, place = divmod(number, step_minibatches)
    return step // share_draws * step_minibatches + place


def _share(total: int, part: int, parts: int) -> tuple[int, int]:
    return part * total // parts, (part + 1) * total // parts

"""Which rank owns which snapshots: time blocks, each cut among the ranks by edges.

Shapes: T snapshots, P ranks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from siafu.errors import PlanError


@dataclass(frozen=True, slots=True)
class TimeBlock:
    """A span of time that is worked on at once, cut among the ranks."""

    number: int
    bounds: tuple[int, ...]
    """P + 1 snapshots: rank p owns those from bounds[p] to bounds[p + 1]."""

    @property
    def start(self) -> int:
        """The first snapshot."""
        return self.bounds[0]

    @property
    def stop(self) -> int:
        """The first snapshot after the block."""
        return self.bounds[-1]

    @property
    def steps(self) -> tuple[int, ...]:
        """How many snapshots each rank owns."""
        return tuple(b - a for a, b in pairwise(self.bounds))

    def owned(self, rank: int) -> range:
        """Return the snapshots of a rank."""
        return range(self.bounds[rank], self.bounds[rank + 1])

    def busy_ranks(self) -> list[int]:
        """Return the ranks that own any snapshot, in order of time."""
        return [rank for rank, count in enumerate(self.steps) if count]


@dataclass(frozen=True, slots=True)
class TimePlan:
    """All time blocks; the first `num_train` of them are trained on, the others only scored."""

    blocks: tuple[TimeBlock, ...]
    num_train: int
    num_ranks: int

    def owner(self, step: int) -> int:
        """Return the rank that owns a snapshot."""
        block = self.blocks[bisect_right([b.start for b in self.blocks], step) - 1]
        return bisect_right(block.bounds, step) - 1

    def owned(self, rank: int) -> list[int]:
        """Return the snapshots of a rank."""
        return [step for block in self.blocks for step in block.owned(rank)]

    def before(self, block: TimeBlock) -> TimeBlock | None:
        """Return the block before this one."""
        return self.blocks[block.number - 1] if block.number else None


def plan_time(
    costs_T: Sequence[int], num_ranks: int, *, train_steps: int, block_steps: int = 0
) -> TimePlan:
    """Return blocks of at most `block_steps` snapshots (0: any), none across the end of training.

    Inside a block every rank gets a contiguous span; the largest sum of costs is as small as
    can be.
    """
    if len(costs_T) < num_ranks:
        raise too_few_snapshots(len(costs_T), num_ranks)
    spans = _spans(0, train_steps, block_steps)
    num_train = len(spans)
    spans += _spans(train_steps, len(costs_T), block_steps)
    blocks = tuple(
        TimeBlock(number, tuple(lo + cut for cut in balanced_cuts(costs_T[lo:hi], num_ranks)))
        for number, (lo, hi) in enumerate(spans)
    )
    return TimePlan(blocks, num_train, num_ranks)


def too_few_snapshots(num_steps: int, num_ranks: int) -> PlanError:
    """Return the error for a rank that would have nothing to do."""
    return PlanError(
        "There are fewer snapshots than ranks.",
        seen=f"{num_steps} snapshots, {num_ranks} ranks along time",
        fix=f"use --ranks {max(1, num_steps)} or fewer, a shorter --window, or --node-parts to "
        "have several ranks share a snapshot",
    )


def _spans(start: int, stop: int, block_steps: int) -> list[tuple[int, int]]:
    """Return spans of at most `block_steps` whose lengths differ by one at most."""
    steps = stop - start
    if not steps:
        return []
    count = ceil(steps / block_steps) if block_steps else 1
    cuts = [start + steps * number // count for number in range(count + 1)]
    return list(pairwise(cuts))


def balanced_cuts(costs: Sequence[int], num_parts: int) -> list[int]:
    """Return `num_parts` + 1 cuts of a sequence, its most expensive span as cheap as can be.

    No part is empty unless there are fewer things than parts; then the first ones hold one each.
    """
    low, high = max(costs, default=0), sum(costs)
    while low < high:
        limit = (low + high) // 2
        if _parts_needed(costs, limit) <= num_parts:
            high = limit
        else:
            low = limit + 1
    return _cut(costs, num_parts, low)


def _parts_needed(costs: Sequence[int], limit: int) -> int:
    parts, load = 1, 0
    for cost in costs:
        if load and load + cost > limit:
            parts, load = parts + 1, 0
        load += cost
    return parts


def _cut(costs: Sequence[int], num_parts: int, limit: int) -> list[int]:
    total = [0, *accumulate(costs)]
    cuts = [0]
    for part in range(num_parts):
        start, left = cuts[-1], num_parts - part - 1
        # As much as the limit allows, but leave one for each of the parts to come.
        stop = bisect_right(total, total[start] + limit) - 1
        cuts.append(min(max(stop, start + 1), max(start + 1, len(costs) - left), len(costs)))
    cuts[-1] = len(costs)
    return cuts

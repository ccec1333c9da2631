"""What minibatches read, from a few that are drawn before training, and how many go together."""

import math
from dataclasses import dataclass

from siafu.comm import tell
from siafu.minibatch.macrobatch import MacrobatchSampler
from siafu.ops import Numbering

_TRIAL_STEPS = 8
_MOST_STEPS = 64
_PAYS = 0.97
"""Rows a step after doubling, over those before, that still make it worth the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What some steps of an epoch read: the most of any rank."""

    curve: list[float]
    """Distinct vertices of the first 1, 2, ... steps."""
    graph_bytes: float
    """Of a step's edges and addresses."""
    row_bytes: int
    """Of a vertex, all its columns."""
    reached: tuple[int, ...]
    """Vertices of a minibatch met up to each hop, from the seeds alone to all."""
    edges: int
    """Of a minibatch."""

    def rows(self, size: int) -> float:
        """Return the distinct vertices of so many steps.

        Beyond the steps drawn the curve goes on as a power of their number.
        """
        known = len(self.curve)
        power = 1.0
        if known > 1 and self.curve[0] > 0:
            power = math.log(self.curve[-1] / self.curve[0]) / math.log(known)
        if size <= known:
            return self.curve[size - 1]
        return self.curve[-1] * (size / known) ** power

    def macrobatch_bytes(self, size: int) -> float:
        """Return what macrobatches of so many steps take: two are in memory at a time."""
        return 2 * (self.rows(size) * self.row_bytes + size * self.graph_bytes)


def draw_trial(sampler: MacrobatchSampler, row_bytes: int) -> Trial:
    """Return what some steps of the first epoch read, drawn without their rows.

    Every rank calls this together.
    """
    relay = sampler.relay
    steps = sampler.seeded(1, sampler.schedule.steps(1)[:_TRIAL_STEPS])
    flat = [batch for step in steps for batch in step.mine]
    drawn = relay.sample(1, flat)
    graph_bytes = sum(one.num_bytes for one in drawn) / len(steps)
    reached = [float(max(counts)) for counts in zip(*(one.reached for one in drawn), strict=True)]
    edges = float(max(len(one.index) for one in drawn))
    union, curve = Numbering(), []
    per_step = len(drawn) // len(steps)
    for place in range(len(steps)):
        for one in drawn[place * per_step : (place + 1) * per_step]:
            union.add(one.addresses)
        curve.append(float(len(union)))
    table = tell([*curve, graph_bytes, edges, *reached], relay.line, "control")
    worst = [max(column) for column in zip(*table, strict=True)]
    graph_bytes, edges, *reached = worst[len(curve) :]
    return Trial(
        curve=worst[: len(curve)],
        graph_bytes=graph_bytes,
        row_bytes=row_bytes,
        reached=tuple(int(count) for count in reached),
        edges=int(edges),
    )


def largest_that_pays(trial: Trial, budget_bytes: float, num_steps: int) -> int:
    """Return how many steps to fetch at once: the most that pay, within the budget.

    The more the vertices of steps overlap, the more a larger macrobatch saves: doubling pays while
    it saves 3 % of the rows a step.
    """
    size = 1
    while 2 * size <= min(num_steps, _MOST_STEPS):
        fits = trial.macrobatch_bytes(2 * size) <= budget_bytes
        if not fits or trial.rows(2 * size) > 2 * _PAYS * trial.rows(size):
            break
        size *= 2
    return size

"""How many steps are worth fetching in one go, by what a few of them take.

A macrobatch is fetched while the one before it is trained on. The more steps it has, the fewer
rounds of messages and repeated rows there are, the more memory it takes, and the longer training
waits for the first one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from siafu.comm import tell
from siafu.minibatch.macrobatch import Macrobatch, MacrobatchSampler
from siafu.minibatch.subgraph import Subgraph
from siafu.ops import Numbering

_TRIAL_STEPS = 8
_TIMED_STEPS = 4
_EVERY = 4
"""Of a step's rows, those that tell what a row costs beside the round."""
TRIED_ROWS = 2 + 1 / _EVERY
"""Times that rows of a step are fetched before training, to know what they cost."""
MOST_STEPS = 64
_NEAR_BEST = 1.02
"""An epoch that takes no longer than this over the best is as good, and smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What some steps of an epoch read: the most of any rank."""

    curve: list[float]
    """Distinct nodes of the first 1, 2, ... steps."""
    graph_bytes: float
    """Of a step's edges and addresses."""
    row_bytes: int
    """Of a node, all its columns."""
    reached: tuple[int, ...]
    """Nodes of a minibatch met up to each hop, from the seeds alone to all."""
    edges: int
    """Of a minibatch."""
    is_fetched: bool = True
    """Whether macrobatches have rows, or all rows lie where they are read."""

    def rows(self, size: int) -> float:
        """Return the distinct nodes of so many steps.

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
        row_bytes = self.row_bytes if self.is_fetched else 0
        return 2 * (self.rows(size) * row_bytes + size * self.graph_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Seconds of the slowest rank."""

    fixed: float
    """Of drawing and fetching a macrobatch, whatever its size: messages on their way."""
    drawn: float
    """Of each step whose edges are drawn."""
    row: float
    """Of each distinct row fetched."""
    trained: float = 0.0
    """Of each step trained, nothing being fetched beside it."""
    busy: float = 1.0
    """The share of drawing and fetching that takes cores away from training."""

    def fetch(self, trial: Trial, size: int) -> float:
        """Return what a macrobatch of so many steps takes until it is there."""
        rows = trial.rows(size) if trial.is_fetched else 0.0
        return self.fixed + size * self.drawn + self.row * rows

    def epoch(self, trial: Trial, size: int, num_steps: int) -> float:
        """Return what an epoch takes whose first macrobatch nobody has fetched."""
        fetch, train = self.fetch(trial, size), size * self.trained
        each = max(fetch, train + self.busy * fetch)
        return fetch + max(0.0, num_steps / size - 1) * each + train


def choose_macrobatch(
    trial: Trial, costs: StepCosts, budget_bytes: float, num_steps: int, most: int = MOST_STEPS
) -> int:
    """Return how many steps to fetch in one go: the fewest whose epoch is about the shortest.

    Within the budget, and a power of two; 1 where none fits.
    """
    sizes = [1]
    while 2 * sizes[-1] <= min(num_steps, most):
        if trial.macrobatch_bytes(2 * sizes[-1]) > budget_bytes:
            break
        sizes.append(2 * sizes[-1])
    seconds = [costs.epoch(trial, size, num_steps) for size in sizes]
    near = _NEAR_BEST * min(seconds)
    return next(size for size, epoch in zip(sizes, seconds, strict=True) if epoch <= near)


def tried_steps(num_steps: int) -> int:
    """Return how many steps are drawn before training, to settle how many go together."""
    if num_steps == 1:
        return 0
    return min(_TRIAL_STEPS, num_steps) + 2 + min(_TIMED_STEPS, num_steps)


def draw_trial(sampler: MacrobatchSampler, row_bytes: int) -> Trial:
    """Return what some steps of the first epoch read, drawn without their rows.

    Every rank calls this together.
    """
    relay = sampler.relay
    count = min(_TRIAL_STEPS, sampler.schedule.num_steps)
    drawn = _draw(sampler, count)
    # Beside each address stands where its row lies.
    graph_bytes = sum(one.num_bytes + one.addresses.nbytes for one in drawn) / count
    reached = [float(max(counts)) for counts in zip(*(one.reached for one in drawn), strict=True)]
    edges = float(max(len(one.index) for one in drawn))
    union, curve = Numbering(), []
    per_step = len(drawn) // count
    for place in range(count):
        for one in drawn[place * per_step : (place + 1) * per_step]:
            union.add(one.addresses.cpu())
        curve.append(float(len(union)))
    table = tell([*curve, graph_bytes, edges, *reached], relay.channel, "control")
    worst = [max(column) for column in zip(*table, strict=True)]
    graph_bytes, edges, *reached = worst[len(curve) :]
    return Trial(
        curve=worst[: len(curve)],
        graph_bytes=graph_bytes,
        row_bytes=row_bytes,
        reached=tuple(int(count) for count in reached),
        edges=int(edges),
        is_fetched=not relay.holds_rows,
    )


def measure_costs(sampler: MacrobatchSampler, train: Callable[[Macrobatch], object]) -> StepCosts:
    """Return what steps of the first epoch take on the slowest rank; all ranks call together.

    `train` trains on a macrobatch of one step. Everything is done once before it is timed.
    """
    relay, columns = sampler.relay, sampler.columns
    count = min(_TIMED_STEPS, sampler.schedule.num_steps)
    trained, all_U = _train_once(sampler, train)
    some_U = all_U[::_EVERY]
    began, used = time.perf_counter(), time.process_time()
    of_one = _seconds(relay.device, lambda: _draw(sampler, 1))
    of_several = _seconds(relay.device, lambda: _draw(sampler, count))
    of_some = _seconds(relay.device, lambda: relay.fetch(some_U, columns))
    of_all = _seconds(relay.device, lambda: relay.fetch(all_U, columns))
    wall, used = time.perf_counter() - began, time.process_time() - used
    drawn = max(0.0, (of_several - of_one) / max(1, count - 1))
    row = max(0.0, (of_all - of_some) / max(1, len(all_U) - len(some_U)))
    fixed = max(0.0, of_one - drawn) + max(0.0, of_all - row * len(all_U))
    busy = min(1.0, used / (wall * torch.get_num_threads()))
    on_cores = sampler.schedule.world.device.type == "cpu"
    mine = [fixed, drawn, row, trained, busy if on_cores else 0.0]
    table = tell(mine, relay.channel, "control")
    fixed, drawn, row, trained, busy = (max(column) for column in zip(*table, strict=True))
    return StepCosts(fixed=fixed, drawn=drawn, row=row, trained=trained, busy=busy)


def _train_once(
    sampler: MacrobatchSampler, train: Callable[[Macrobatch], object]
) -> tuple[float, torch.Tensor]:
    """Return the seconds of training the first step, and the addresses that it reads."""
    first = sampler.build(1, sampler.schedule.steps(1)[:1])
    train(first)
    seconds = _seconds(sampler.schedule.world.device, lambda: train(first))
    graphs = [graph for step in first.subgraphs for graph in step]
    return seconds, torch.cat([graph.addresses for graph in graphs]).unique()


def _draw(sampler: MacrobatchSampler, count: int) -> list[Subgraph]:
    """Return the sub-graphs of the first steps."""
    steps = sampler.seeded(1, sampler.schedule.steps(1)[:count])
    return sampler.relay.sample(1, [batch for step in steps for batch in step.mine])


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began

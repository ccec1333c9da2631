"""From a run to the same run on a cluster in virtual time: an interval's epoch as it was measured.

A pipeline notes in which order an interval's passage waits, how long its gathers take on this
machine and how many bytes its rows are; the pool notes its tasks. The medians of all ranks, in the
same order, are the script of a simulated cluster.
"""

import statistics
from collections import deque

from siafu.comm import World
from siafu.elastic.costs import TaskCosts
from siafu.pipeline.cluster_plan import GraphWork, Script, TensorWork
from siafu.pipeline.scheduler import AwaitRows, Steps

_REMEMBERED = 64


class PassageCosts:
    """What the passages of one rank take beside their tensor tasks."""

    def __init__(self) -> None:
        self._order: list[str | tuple[int, int]] = []
        """Kinds of tasks, and (direction, layer) of gathers, as the first passage had them."""
        self._gathers: dict[tuple[int, int], deque[float]] = {}
        self._sent: dict[tuple[int, int], int] = {}
        self._has_order = False

    def watched(self, steps: Steps) -> Steps:
        """Return the steps; those of the first passage are noted."""
        return steps if self._has_order else self._noted(steps)

    def _noted(self, steps: Steps) -> Steps:
        self._has_order = True
        wait = next(steps, None)
        while wait is not None:
            if isinstance(wait, AwaitRows):
                self._order.append((wait.direction, wait.layer))
            else:
                self._order.append(wait.task.kind)
            came = yield wait
            try:
                wait = steps.send(came)
            except StopIteration:
                return

    def note_gather(self, wait: AwaitRows, seconds: float) -> None:
        """Take in how long a gather took."""
        key = wait.direction, wait.layer
        self._gathers.setdefault(key, deque(maxlen=_REMEMBERED)).append(seconds)

    def note_sent(self, direction: int, layer: int, num_bytes: int) -> None:
        """Take in how many bytes an interval has sent to other ranks."""
        key = direction, layer
        self._sent[key] = max(self._sent.get(key, 0), num_bytes)

    def script(self, tasks: TaskCosts, world: World, threads: int) -> Script:
        """Return an interval's epoch, on average over ranks; every rank calls this together.

        Gathers ran on so many threads; a task of a pool on one.
        """
        counts = world.gather_numbers([float(len(self._order))], "metric")
        if min(count for (count,) in counts) == 0:
            return ()  # a rank without nodes has no passage to tell of
        told = [self._numbers(step, tasks) for step in self._order]
        table = world.gather_numbers([number for numbers in told for number in numbers], "metric")
        means = [statistics.fmean(column) for column in zip(*table, strict=True)]
        # Kinds share most of what stays the same: it is kept once.
        kept = round(max(means[4::5]))
        script: list[TensorWork | GraphWork] = []
        for place, step in enumerate(self._order):
            seconds, sent, received, weights, _ = means[5 * place : 5 * place + 5]
            if isinstance(step, tuple):
                script.append(GraphWork(*step, seconds * threads, round(sent)))
                continue
            sizes = round(sent), round(received), round(weights)
            script.append(TensorWork(step, seconds, *sizes, (("constants", kept),)))
        return tuple(script)

    def _numbers(self, step: str | tuple[int, int], tasks: TaskCosts) -> list[float]:
        """Return seconds, bytes sent and received, of weights and of constants."""
        if isinstance(step, tuple):
            seconds = statistics.median(self._gathers.get(step, (0.0,)))
            return [seconds, float(self._sent.get(step, 0)), 0.0, 0.0, 0.0]
        cost = tasks.of(step)
        if cost is None:
            return [0.0] * 5
        sizes = (cost.sent_bytes, cost.received_bytes, cost.weight_bytes, cost.constant_bytes)
        return [cost.usual_seconds, *map(float, sizes)]

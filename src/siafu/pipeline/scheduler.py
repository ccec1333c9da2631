"""What goes on next: which interval starts an epoch, which graph task is most urgent.

Decisions alone, without a clock, threads or tensors of their own: a rank's loop (`pipeline.py`)
drives them in real time, a simulated server (`cluster.py`) in virtual time.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from siafu.elastic import Task, Tensors

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class AwaitTask:
    """Goes on with the tensors of the task's reply."""

    task: Task


@dataclass(frozen=True, slots=True)
class AwaitRows:
    """Goes on when an interval's neighbours have written what it reads."""

    direction: int
    layer: int


Wait = AwaitTask | AwaitRows
Steps = Generator[Wait, Tensors, None]


class Starter(Protocol):
    """Who runs tensor tasks, and wants to know how many graph tasks could run."""

    def start(self, task: Task) -> None:
        """Have the task run; its reply comes some day."""
        ...

    def observe(self, graph_waiting: int) -> None:
        """Take note of the graph tasks that could be done now."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """What a scheduler asks of whoever owns the rows and the weights."""

    begin: Callable[[int, int], Steps]
    """Returns the steps of (interval, epoch)."""
    finish: Callable[[int, int], None]
    """Is told that (interval, epoch) has no more steps."""
    ready: Callable[[int, AwaitRows, list[int]], list[int]]
    """Returns those of the intervals, all in one epoch, that may read what they wait for."""


class Scheduler:
    """A rank's intervals on their way through epochs."""

    def __init__(
        self, intervals: list[int], runner: Starter, hooks: Hooks, *, staleness: int, overlap: bool
    ) -> None:
        self._intervals, self._runner, self._hooks = intervals, runner, hooks
        self.staleness, self._overlap = staleness, overlap
        self._passages: dict[int, tuple[int, Steps]] = {}
        """Interval: the epoch it is in, and what is left of it."""
        self._epoch_of = dict.fromkeys(intervals, 0)
        """The last epoch that each interval has begun."""
        self._idle = dict.fromkeys(intervals)
        """Those that are in no epoch."""
        self.waiting: dict[tuple[int, AwaitRows], list[int]] = {}
        """Epoch and what is waited for: by which intervals."""
        self.running: dict[int, int] = {}
        """Number of a tensor task: its interval."""
        self._held: list[Task] = []
        """Tasks that wait for their turn, without overlap."""

    def begin_after(self, version: int) -> None:
        """Take all intervals to be done with so many epochs."""
        self._epoch_of = dict.fromkeys(self._intervals, version)

    @property
    def is_idle(self) -> bool:
        """Whether no interval is in an epoch."""
        return not self._passages

    def epoch(self, interval: int) -> int:
        """Return the epoch that an interval is in."""
        return self._passages[interval][0]

    def oldest(self, version: int) -> int:
        """Return the oldest epoch that an interval is in, or would start next."""
        active = [epoch for epoch, _ in self._passages.values()]
        idle = [self._epoch_of[interval] + 1 for interval in self._idle]
        return min([*active, *idle], default=version + 1)

    def most_epoch(self, version: int, horizon: int) -> int:
        """Return the last epoch that may begin, after `version` steps of the optimiser."""
        return min(horizon, version + 1 + self.staleness)

    def start(self, version: int, horizon: int) -> None:
        """Start intervals on epochs that may begin."""
        most = self.most_epoch(version, horizon)
        for interval in sorted(i for i in self._idle if self._epoch_of[i] < most):
            self._epoch_of[interval] += 1
            epoch = self._epoch_of[interval]
            del self._idle[interval]
            self._passages[interval] = epoch, self._hooks.begin(interval, epoch)
            self.resume(interval, None)

    def resume(self, interval: int, came: Tensors | None) -> None:
        """Take an interval to its next wait."""
        epoch, steps = self._passages[interval]
        try:
            wait = next(steps) if came is None else steps.send(came)
        except StopIteration:
            del self._passages[interval]
            self._idle[interval] = None
            self._hooks.finish(interval, epoch)
            return
        if isinstance(wait, AwaitRows):
            self.waiting.setdefault((epoch, wait), []).append(interval)
            return
        self.running[wait.task.number] = interval
        if self._overlap:
            self._runner.start(wait.task)
        else:
            self._held.append(wait.task)

    def next_graph_task(self) -> tuple[int, AwaitRows] | None:
        """Return the most urgent graph task that can be done; whoever does it resumes it then."""
        if not self._overlap and (self.running and not self._held):
            return None
        ready = {
            key: found
            for key, intervals in self.waiting.items()
            if (found := self._hooks.ready(*key, intervals))
        }
        self._runner.observe(sum(map(len, ready.values())))
        if not ready:
            held, self._held = self._held, []
            for task in held:
                self._runner.start(task)
            return None
        key = min(ready, key=_urgency)
        interval = min(ready[key])
        self.waiting[key].remove(interval)
        if not self.waiting[key]:
            del self.waiting[key]
        return interval, key[1]

    def answered(self, number: int) -> int | None:
        """Return the interval that waited for a task; None where none did."""
        return self.running.pop(number, None)


def _urgency(key: tuple[int, AwaitRows]) -> tuple[int, int, int]:
    """Return numbers that are least for what goes first: old epochs, and the furthest in them."""
    epoch, wait = key
    return epoch, wait.direction, wait.layer if wait.direction == BACKWARD else -wait.layer

"""A rank's pool in use: watched by a dispatcher, sized by a tuner, counted as it would be billed.

How many workers a rank wants: enough that its graph tasks never starve, and no more. Tensor tasks
return as graph tasks. With too many workers they pile up before this rank's threads: a long graph
queue, no tensor task waiting. With too few those threads have nothing to do while tensor tasks
wait. Between the two lies the number of workers looked for (Thorpe et al., 2021).
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from siafu.elastic.costs import TaskCosts
from siafu.elastic.dispatch import Dispatcher
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.task import Reply, Task
from siafu.errors import ConfigError

_FIRST_WORKERS = 100
_WINDOW = 20
"""Observations whose mean is acted on."""
_MOST_CUT = 0.25
"""The share of the workers that one step takes away at most."""
_RISE_SHARE = 1 / 16
"""Of the intervals: how many workers one step adds at most."""
_SHRINKING = 0.05
"""A queue that lost this share since the last window is left to empty."""
_MOST_HOLD = 32
"""Windows without a cut after a cut that proved too much; doubles up to this."""

Direction = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank sees of its queues at one moment."""

    graph_waiting: float
    """Graph tasks that wait for this rank's threads."""
    tensor_waiting: float
    """Tensor tasks that wait for a worker."""


_NO_LOAD = Load(0, 0)


class Autotuner:
    """Adds workers one step at a time, takes them away by a share (AIMD).

    Steps shrink when they turn back and grow while they go on, so the number settles, and yet
    follows when the work changes. A cut that starved the graph tasks is tried again only after a
    pause that doubles.
    """

    def __init__(self, *, intervals: int, most: int = _FIRST_WORKERS, threads: int = 1) -> None:
        """Start with min(intervals, most, 100) workers, for `threads` that run graph tasks."""
        if min(intervals, most, threads) < 1:
            seen = f"intervals={intervals}, most={most}, threads={threads}"
            raise ConfigError("Tuning needs numbers above 0.", seen=seen, fix="use 1 or more")
        self._most, self._threads = min(intervals, most), threads
        self.wanted = min(self._most, _FIRST_WORKERS)
        self._most_rise = max(1, round(_RISE_SHARE * self._most))
        self._cut, self._rise = _MOST_CUT, self._most_rise
        self._hold, self._held = 1, 0
        """Windows to hold still after the next cut too many; windows left of such a pause."""
        self._last: Direction = 0
        self._window: list[Load] = []
        self._before = _NO_LOAD

    def observe(self, load: Load) -> int:
        """Return how many workers are wanted, now that this was seen.

        Observations come at a steady pace, such as one a tick. The answer changes at the end of a
        window, if at all.
        """
        self._window.append(load)
        if len(self._window) == _WINDOW:
            mean = Load(
                sum(load.graph_waiting for load in self._window) / _WINDOW,
                sum(load.tensor_waiting for load in self._window) / _WINDOW,
            )
            self._move(self._direction(mean))
            self._before = mean
            self._window.clear()
        return self.wanted

    def _direction(self, mean: Load) -> Direction:
        """Return whether fewer or more are needed; between two levels, neither."""
        graph, tensor = mean.graph_waiting, mean.tensor_waiting
        if graph > 2 * self._threads and tensor < 1:
            return 0 if _is_shrinking(graph, self._before.graph_waiting) else -1
        if graph < self._threads / 2 and tensor > 1:
            return 0 if _is_shrinking(tensor, self._before.tensor_waiting) else 1
        return 0

    def _move(self, direction: Direction) -> None:
        self._held = max(0, self._held - 1)
        if direction == 1:
            self._add()
        elif direction == -1 and not self._held:
            self._take_away()

    def _add(self) -> None:
        if self._last == -1:
            self._cut, self._rise = self._cut / 2, max(1, self._rise // 2)
            self._hold = min(_MOST_HOLD, 2 * self._hold)
        elif self._last == 1:
            self._rise = min(self._most_rise, 2 * self._rise)
        self._held = self._hold
        self.wanted = min(self._most, self.wanted + self._rise)
        self._last = 1

    def _take_away(self) -> None:
        if self._last == -1:
            self._cut = min(_MOST_CUT, 2 * self._cut)
        self.wanted = max(1, self.wanted - max(1, round(self._cut * self.wanted)))
        self._last = -1


def _is_shrinking(now: float, before: float) -> bool:
    return now < before - max(1.0, _SHRINKING * before)


def round_up(seconds: float, step: float) -> float:
    """Return the least multiple of `step` that is no shorter."""
    # 0.007 / 0.001 is a little above 7 in floats; a millionth of a step costs nobody a step more.
    return math.ceil(seconds / step - 1e-6) * step


@dataclass(eq=False, slots=True)
class PoolUse:
    """Totals over every attempt that was answered, also those that came too late to be used."""

    step_seconds: float = 0.001
    """What an invocation's time is rounded up to a multiple of."""
    requests: int = 0
    billed_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_gb: float | None = None
    """Of a worker, where the pool knows."""
    paid: Callable[[], tuple[int, float]] | None = None
    """The pool's own count of requests and billed seconds: it knows of attempts that got lost."""
    costs: TaskCosts | None = None
    """What tasks take, of a pool that is simulated."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def counting(self, deliver: Deliver) -> Deliver:
        """Return a `Deliver` that counts what passes through it."""

        def take(reply: Reply) -> None:
            self.count(reply)
            deliver(reply)

        return take

    def totals(self) -> tuple[int, float]:
        """Return requests and billed seconds."""
        return (self.requests, self.billed_seconds) if self.paid is None else self.paid()

    def count(self, reply: Reply) -> None:
        """Add one attempt."""
        usage = reply.usage
        with self._lock:
            self.requests += 1
            self.billed_seconds += round_up(usage.seconds, self.step_seconds)
            self.sent_bytes += usage.sent_bytes
            self.received_bytes += usage.received_bytes


_PACE_SECONDS = 0.01
"""Between two observations of the tuner, which go by a steady pace."""


class Runner:
    """What a pipeline gives its tensor tasks to."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        use: PoolUse,
        tuner: Autotuner | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a tuner the pool keeps its size."""
        self.dispatcher, self.use, self.tuner, self._clock = dispatcher, use, tuner, clock
        self._observed, self._asked_for = 0.0, dispatcher.workers

    def start(self, task: Task) -> None:
        """Have the task run; its reply is delivered once."""
        self.dispatcher.start(task)

    def tick(self) -> float:
        """Look after tasks that take too long; return the seconds until the next look."""
        return self.dispatcher.tick()

    def observe(self, graph_waiting: int) -> None:
        """Let the tuner know how many graph tasks could be done now."""
        now = self._clock()
        if self.tuner is None or self.dispatcher.degraded or now - self._observed < _PACE_SECONDS:
            return
        self._observed = now
        queued = max(0, self.dispatcher.outstanding - self.dispatcher.workers)
        wanted = self.tuner.observe(Load(graph_waiting, queued))
        if wanted != self._asked_for:  # not what there is: slots may have been given up
            self.dispatcher.resize(wanted)
            self._asked_for = wanted

    def forget(self, key: str) -> None:
        """Have the pool let go of a kept bundle."""
        self.dispatcher.forget(key)

    def close(self) -> None:
        """End the workers."""
        self.dispatcher.close()

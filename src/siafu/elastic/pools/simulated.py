"""Cloud functions without a cloud: real results of this machine, delivered when they would come.

What a cloud function does to a task is a stated model: delays, speed, faults, billing.
"""

import heapq
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Self

from siafu.elastic.pools.pool import Deliver, LocalPool, Pool
from siafu.elastic.runner import round_up
from siafu.elastic.task import Reply, Task, Usage
from siafu.errors import ConfigError, PoolError
from siafu.ops.random.reference import philox

_WORD = 0xFFFFFFFF
_CROWD = 100
"""Workers at which the paper gives the second bandwidth."""
_CHANCES = ("failure", "loss", "duplicate", "straggler")


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to one attempt, drawn before it begins."""

    fails: bool
    """Answered with a failure, without a result."""
    is_lost: bool
    """Computed and paid for, never answered."""
    is_duplicated: bool
    """Answered twice."""
    slowdown: float
    """1, or the factor of a straggler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudModel:
    """A cloud function's times and faults; without arguments only computing takes time."""

    latency_seconds: float = 0.0
    """Of a request and its answer together."""
    cold_start_seconds: float = 0.0
    """Before a worker's first task, and after it has been idle too long; not billed."""
    warm_seconds: float = math.inf
    """How long an idle worker stays warm and keeps its bundles."""
    bandwidth_alone: float = math.inf
    """Bits per second to or from a worker that runs alone."""
    bandwidth_crowded: float | None = None
    """The same at 100 workers or more, on a straight line between; without it as alone."""
    speed: float = 1.0
    """A worker's, in terms of this machine's: 0.5 takes twice as long. No result comes before it
    was computed here, so above 1 the other delays must hide the difference."""
    failure: float = 0.0
    """Chance that an attempt is answered with a failure."""
    loss: float = 0.0
    """Chance that the answer is lost."""
    duplicate: float = 0.0
    """Chance that the answer comes twice."""
    straggler: float = 0.0
    """Chance that an attempt takes `straggler_factor` times as long."""
    straggler_factor: float = 10.0
    billing_seconds: float = 0.001
    """Busy time is billed in whole multiples of this."""
    memory_gb: float = 0.0
    """Of a worker; billing multiplies by it."""

    def __post_init__(self) -> None:
        for name in _CHANCES:
            if not 0 <= getattr(self, name) <= 1:
                self._refuse(name, "use a chance from 0 to 1")
        for name in ("bandwidth_alone", "bandwidth_crowded", "speed", "billing_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                self._refuse(name, "use a number above 0")
        for name in ("latency_seconds", "cold_start_seconds", "warm_seconds", "memory_gb"):
            if not getattr(self, name) >= 0:
                self._refuse(name, "use 0 or more")
        if not self.straggler_factor >= 1:
            self._refuse("straggler_factor", "use 1 or more")
        if self.bandwidth_crowded is not None and math.isinf(self.bandwidth_alone):
            self._refuse("bandwidth_alone", "set it beside bandwidth_crowded")

    def _refuse(self, name: str, fix: str) -> None:
        raise ConfigError(
            f"{name} of the cloud model is out of range.", seen=f"{getattr(self, name)}", fix=fix
        )

    @classmethod
    def ideal(cls, *, latency_seconds: float = 0.0) -> Self:
        """Return a model in which only latency and computing take time."""
        return cls(latency_seconds=latency_seconds)

    @classmethod
    def aws_lambda(cls) -> Self:
        """Return a Lambda of 192 MB as Thorpe et al. (2021) used them.

        Size, share of a core and bandwidths are the paper's. Latency, starts and faults it does
        not give: those are plain assumptions, to be replaced by what is measured.
        """
        return cls(
            latency_seconds=0.02,
            cold_start_seconds=0.5,
            warm_seconds=300.0,
            bandwidth_alone=800e6,
            bandwidth_crowded=200e6,
            speed=0.11,
            failure=1e-4,
            loss=1e-4,
            straggler=0.01,
            straggler_factor=5.0,
            memory_gb=0.1875,
        )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, float]) -> Self:
        """Return a model from the fields of a file; what it does not name is ideal."""
        known = [field.name for field in fields(cls)]
        for name, value in settings.items():
            if name not in known:
                raise ConfigError(
                    "The cloud model has no such field.", seen=name, fix=f"use {', '.join(known)}"
                )
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(
                    f"{name} of the cloud model is no number.",
                    seen=f"{value!r}",
                    fix="use a number",
                )
        return cls(**{name: float(value) for name, value in settings.items()})

    def transfer_seconds(self, num_bytes: int, workers_in_use: int) -> float:
        """Return how long bytes take to or from one of so many busy workers."""
        alone, crowded = self.bandwidth_alone, self.bandwidth_crowded
        if crowded is None or workers_in_use <= 1:
            return 8 * num_bytes / alone
        share = min(1.0, (workers_in_use - 1) / (_CROWD - 1))
        return 8 * num_bytes / ((1 - share) * alone + share * crowded)

    def billed_seconds(self, busy_seconds: float) -> float:
        """Return the time that is paid for."""
        return round_up(busy_seconds, self.billing_seconds)

    def draw(self, seed: int, number: int, attempt: int) -> Faults:
        """Return what happens to an attempt at a task: the same for the same three numbers."""
        counter = (number & _WORD, (number >> 32) & _WORD, attempt & _WORD, 0)
        words = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
        hits = {
            name: word / 2**32 < getattr(self, name)
            for name, word in zip(_CHANCES, words, strict=True)
        }
        return Faults(
            fails=hits["failure"],
            is_lost=hits["loss"],
            is_duplicated=hits["duplicate"],
            slowdown=self.straggler_factor if hits["straggler"] else 1.0,
        )


_REMEMBERED_TASKS = 100_000
"""For so many tasks it is known how often they were attempted."""
_END_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class _Worker:
    """A simulated worker: it has no thread, only a state."""

    name: str
    warm_until: float = -1.0
    kept: set[str] = field(default_factory=set)
    """Keys of the bundles it has."""


@dataclass(frozen=True, eq=False, slots=True)
class _Attempt:
    task: Task
    worker: _Worker
    faults: Faults
    begun: float
    wait_seconds: float
    """Latency and start-up."""
    sent_bytes: int
    workers_in_use: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What the simulated workers would be paid for."""

    requests: int = 0
    seconds: float = 0.0
    """Busy, each request rounded up as the model says."""


def _local(deliver: Deliver) -> Pool:
    return LocalPool(deliver, workers=len(os.sched_getaffinity(0)))


class SimulatedPool:
    """Workers as a `CloudModel` describes them, with real waits.

    Tasks are computed by a pool of this machine that loses none (`make_inner`), as soon as their
    worker would take them, and delivered no sooner than the model says. Where this machine is too
    slow to compute in that time they come later, and the simulation says too little of the cloud.
    """

    def __init__(
        self,
        deliver: Deliver,
        *,
        model: CloudModel,
        workers: int,
        seed: int,
        make_inner: Callable[[Deliver], Pool] = _local,
    ) -> None:
        self._deliver, self._model, self._seed, self._workers = deliver, model, seed, workers
        self._changed = threading.Condition()
        """Guards all below."""
        self._queue: deque[Task] = deque()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._names, self._numbers = count(), count()
        self._attempts: dict[int, _Attempt] = {}
        """What the inner pool computes, by the number it goes by there."""
        self._times_started: dict[int, int] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._bill = Spent()
        self._is_closed = False
        self._inner = make_inner(self._computed)
        self._timer = threading.Thread(target=self._keep_time, name="siafu-timer", daemon=True)
        self._timer.start()

    @property
    def workers(self) -> int:
        """How many tasks may run at once."""
        return self._workers

    @property
    def bill(self) -> Spent:
        """What all attempts that ended so far would cost."""
        with self._changed:
            return self._bill

    def start(self, task: Task) -> None:
        """Begin the task, or queue it while all workers are busy."""
        with self._changed:
            if self._is_closed:
                raise PoolError("The pool is closed.", seen="a task", fix="open another pool")
            self._queue.append(task)
            begun = self._begin_all()
        self._compute(begun)

    def resize(self, workers: int) -> None:
        """Let so many tasks run at once; those that run go on."""
        if workers < 1:
            raise PoolError("A pool needs workers.", seen=f"{workers}", fix="ask for 1 or more")
        with self._changed:
            self._workers = workers
            del self._idle[: max(0, len(self._busy) + len(self._idle) - workers)]
            begun = self._begin_all()
        self._compute(begun)

    def forget(self, key: str) -> None:
        """Free a bundle on all workers."""
        with self._changed:
            for worker in (*self._idle, *self._busy):
                worker.kept.discard(key)
            # Their tasks have been answered, or nobody would let go of what they name.
            named = [task for task in self._queue if key in {b.key for b in task.bundles}]
            for task in named:
                self._queue.remove(task)
        self._inner.forget(key)

    def close(self) -> None:
        """End the timer and the inner pool; tasks that wait or run are dropped."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        self._timer.join(_END_SECONDS)
        self._inner.close()

    def _begin_all(self) -> list[tuple[int, _Attempt]]:
        """Give waiting tasks to free workers; the caller has them computed, without the lock."""
        begun = []
        while self._queue and len(self._busy) < self._workers:
            number, attempt = next(self._numbers), self._begin(self._queue.popleft())
            self._attempts[number] = attempt
            begun.append((number, attempt))
        return begun

    def _begin(self, task: Task) -> _Attempt:
        now, model = time.monotonic(), self._model
        # The one that was busy last: others may go cold meanwhile, as they do in a cloud.
        worker = self._idle.pop() if self._idle else _Worker(f"simulated {next(self._names)}")
        self._busy.add(worker)
        is_cold = now > worker.warm_until
        if is_cold:
            worker.kept.clear()
        sent_bytes = sum(b.num_bytes for b in task.bundles if b.key not in worker.kept)
        worker.kept |= {bundle.key for bundle in task.bundles if bundle.lifetime != "once"}
        wait_seconds = model.latency_seconds + (model.cold_start_seconds if is_cold else 0.0)
        faults = model.draw(self._seed, task.number, self._count_attempt(task.number))
        return _Attempt(task, worker, faults, now, wait_seconds, sent_bytes, len(self._busy))

    def _count_attempt(self, number: int) -> int:
        """Return how often the task was begun before."""
        before = self._times_started.get(number, 0)
        self._times_started[number] = before + 1
        if len(self._times_started) > _REMEMBERED_TASKS:
            del self._times_started[next(iter(self._times_started))]
        return before

    def _compute(self, begun: list[tuple[int, _Attempt]]) -> None:
        for number, attempt in begun:
            if attempt.faults.fails:
                self._computed(Reply(number, failure="The simulated worker failed."))
            else:
                self._inner.start(replace(attempt.task, number=number))

    def _computed(self, reply: Reply) -> None:
        """Have the reply of the inner pool delivered when it would come."""
        with self._changed:
            if self._is_closed:
                return
            attempt = self._attempts.pop(reply.number)
            reply, busy_seconds = self._as_from_cloud(attempt, reply)
            due = attempt.begun + attempt.wait_seconds + busy_seconds
            self._at(due, lambda: self._end(attempt, reply, busy_seconds))
            self._changed.notify_all()

    def _as_from_cloud(self, attempt: _Attempt, reply: Reply) -> tuple[Reply, float]:
        """Return the reply with the simulated usage, and how long its worker is busy."""
        received_bytes = sum(tensor.nbytes for tensor in reply.tensors.values())
        num_bytes = attempt.sent_bytes + received_bytes
        busy_seconds = attempt.faults.slowdown * (
            self._model.transfer_seconds(num_bytes, attempt.workers_in_use)
            + reply.usage.seconds / self._model.speed
        )
        started = time.time() - (time.monotonic() - attempt.begun) + attempt.wait_seconds
        name = attempt.worker.name
        usage = Usage(name, started, busy_seconds, attempt.sent_bytes, received_bytes)
        return replace(reply, number=attempt.task.number, usage=usage), busy_seconds

    def _at(self, due: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (due, next(self._numbers), event))

    # What follows runs on the timer's thread.

    def _keep_time(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and not self._is_due():
                    pause = self._events[0][0] - time.monotonic() if self._events else None
                    self._changed.wait(pause)
                if self._is_closed:
                    return
                _, _, event = heapq.heappop(self._events)
            event()

    def _is_due(self) -> bool:
        return bool(self._events) and self._events[0][0] <= time.monotonic()

    def _end(self, attempt: _Attempt, reply: Reply, busy_seconds: float) -> None:
        """Free the worker, bill it, and deliver."""
        with self._changed:
            self._free(attempt.worker)
            seconds = self._model.billed_seconds(busy_seconds)
            self._bill = Spent(self._bill.requests + 1, self._bill.seconds + seconds)
            if attempt.faults.is_duplicated and not attempt.faults.is_lost:
                due = time.monotonic() + self._model.latency_seconds
                self._at(due, lambda: self._deliver(reply))
            begun = self._begin_all()
        if not attempt.faults.is_lost:
            self._deliver(reply)
        self._compute(begun)

    def _free(self, worker: _Worker) -> None:
        self._busy.remove(worker)
        worker.warm_until = time.monotonic() + self._model.warm_seconds
        if len(self._busy) + len(self._idle) < self._workers:
            self._idle.append(worker)

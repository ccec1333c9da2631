"""A pool on a virtual clock that answers as it is told: late, twice, never, with failures."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from siafu.elastic.compute import compute
from siafu.elastic.dispatch import Dispatcher
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.task import Reply, Task


@dataclass
class Clock:
    """Time that passes when a test says so."""

    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), event))

    def advance(self, seconds: float) -> None:
        """Let time pass until then or until the next events, which happen."""
        next_event = self.events[0][0] if self.events else float("inf")
        self.now = min(self.now + seconds, next_event)
        while self.events and self.events[0][0] <= self.now:
            heapq.heappop(self.events)[2]()


@dataclass(frozen=True)
class Attempt:
    """What becomes of an attempt: an answer after each of these seconds, or none."""

    answers: tuple[float, ...] = (0.1,)
    failure: str = ""
    is_final: bool = False
    raises: bool = False


class OddPool:
    """Asks `fate` about every attempt."""

    def __init__(self, deliver: Deliver, clock: Clock, fate: Callable[[Task], Attempt]) -> None:
        self._deliver, self._clock, self._fate = deliver, clock, fate
        self.workers, self.num_started, self.is_closed = 4, 0, False
        self.forgotten: list[str] = []

    def start(self, task: Task) -> None:
        assert not self.is_closed
        self.num_started += 1
        attempt = self._fate(task)
        if attempt.raises:
            raise ConnectionError("the pool is gone")
        for seconds in attempt.answers:
            self._clock.at(seconds, lambda: self._answer(task, attempt))

    def _answer(self, task: Task, attempt: Attempt) -> None:
        if self.is_closed:
            return
        if attempt.failure:
            self._deliver(Reply(task.number, failure=attempt.failure, is_final=attempt.is_final))
        else:
            tensors = compute(task.code, task.facts, task.tensors())
            self._deliver(Reply(task.number, tensors))

    def resize(self, workers: int) -> None:
        self.workers = workers

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    def close(self) -> None:
        self.is_closed = True


class OddRun:
    """A dispatcher over an odd pool, driven as an owner would."""

    def __init__(self, fate: Callable[[Task], Attempt]) -> None:
        self.clock, self.replies, self.said = Clock(), list[Reply](), list[str]()
        self.locals: list[OddPool] = []
        self.dispatcher = Dispatcher(
            self._make_pool(fate),
            self.replies.append,
            say=self.said.append,
            make_local=self._make_local,
            clock=self.clock,
        )

    def _make_pool(self, fate: Callable[[Task], Attempt]) -> Callable[[Deliver], OddPool]:
        def make(deliver: Deliver) -> OddPool:
            self.pool = OddPool(deliver, self.clock, fate)
            return self.pool

        return make

    def _make_local(self, deliver: Deliver) -> OddPool:
        # Answers without waiting, within `start`: the dispatcher must bear that too.
        pool = OddPool(deliver, self.clock, lambda task: Attempt(answers=()))
        self.locals.append(pool)

        def start(task: Task) -> None:
            pool.num_started += 1
            pool._answer(task, Attempt())

        pool.start = start  # type: ignore[method-assign]
        return pool

    def finish(self, most_ticks: int) -> None:
        """Tick until every task is answered."""
        for _ in range(most_ticks):
            pause = self.dispatcher.tick()
            if not self.dispatcher.outstanding:
                return
            self.clock.advance(min(pause, 0.1) if pause < 1 else pause)
        raise AssertionError(f"{self.dispatcher.outstanding} tasks without an answer")

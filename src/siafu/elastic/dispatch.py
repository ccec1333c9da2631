"""Seeing to it that every task is answered once, whatever a pool loses, repeats or fails.

Results are idempotent, so an attempt that takes too long is simply made again and the first answer
is used (Thorpe et al., 2021). What a pool can't do in a few attempts is done here.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from siafu.elastic.pools.pool import Deliver, LocalPool, Pool
from siafu.elastic.task import Reply, Task
from siafu.errors import TaskError

_OLD_SHARE = 0.95
"""Of the moving average, what stays when another time is noted: the last 20 weigh as much as all
before."""
_LONGEST_CHECK_SECONDS = 60.0


class ReplyTimes:
    """How long tasks of each kind take to be answered: moving averages."""

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}

    def note(self, kind: str, seconds: float) -> None:
        """Take in how long one task took."""
        before = self._averages.get(kind)
        share = 0.0 if before is None else _OLD_SHARE
        self._averages[kind] = share * (before or 0.0) + (1 - share) * seconds

    def average(self, kind: str) -> float | None:
        """Return the expected seconds, or None as long as no task of the kind was answered."""
        return self._averages.get(kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """When an attempt is made again, a task is done here, and a pool is given up."""

    least_seconds: float = 0.5
    """No attempt is made again sooner."""
    ratio: float = 5.0
    """Times the usual time of the task's kind before an attempt is made again; each further one of
    the task waits twice as long as the one before."""
    first_seconds: float = 30.0
    """The same as long as no task of the kind was answered. A pool is also given up after so long
    without an answer, when a task has used up its attempts."""
    most_outstanding: int = 3
    """Attempts of one task that nobody has answered; when the last is too old, it is done here."""
    most_failures: int = 4
    """Failures of one task that are tried again; after another it is done here."""
    most_failures_in_row: int = 20
    """Failures of the pool, with no success between, before it is given up."""


@dataclass(slots=True)
class _Waiting:
    """A task without an answer."""

    task: Task
    starts: list[float] = field(default_factory=list)
    """Of its outstanding attempts, oldest first. Replies don't say which one they answer."""
    num_relaunches: int = 0
    num_failures: int = 0
    is_local: bool = False


@dataclass(slots=True)
class Counters:
    """What went wrong so far."""

    relaunched: int = 0
    """Attempts made again because the last was too old."""
    duplicates: int = 0
    """Results that came when the task had been answered."""
    failures: int = 0
    """Replies that told of a failure."""
    rescued: int = 0
    """Tasks done here since the pool could not, though it was kept."""


class Dispatcher:
    """A pool, and LocalPool behind it for what it can't do.

    `start`, `tick`, `forget`, `resize` and `close` are called by one thread, the owner's. Results
    are delivered by whatever thread the pool delivers on, at once. Attempts are made again by
    `tick` alone: call it at least every 100 ms.
    """

    def __init__(
        self,
        make_pool: Callable[[Deliver], Pool],
        deliver: Deliver,
        *,
        say: Callable[[str], None],
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        make_local: Callable[[Deliver], Pool] = LocalPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deliver, self._say, self._clock = deliver, say, clock
        self._policy, self._make_local = policy, make_local
        self._lock = threading.Lock()
        """Guards what `_take` and the owner's thread both change; never held in a call to them."""
        self._waiting: dict[int, _Waiting] = {}
        self._failed: list[int] = []
        """Tasks to try again at the next tick."""
        self._failures_in_row = 0
        self._asked_since: float | None = None
        """The pool's first attempt after its last success."""
        self._times = ReplyTimes()
        self._is_closed = False
        self.counters, self.degraded = Counters(), False
        self._local: Pool | None = None
        self._pool = make_pool(lambda reply: self._take(reply, is_local=False))

    @property
    def workers(self) -> int:
        """How many tasks the pool may run at once."""
        return self._pool.workers

    @property
    def outstanding(self) -> int:
        """How many tasks have no answer yet."""
        with self._lock:
            return len(self._waiting)

    def start(self, task: Task) -> None:
        """Have the pool run the task; its one answer is delivered sooner or later."""
        with self._lock:
            if task.number in self._waiting:
                raise TaskError(
                    "A task was started twice.", seen=f"{task.number}", fix="number tasks anew"
                )
            waiting = self._waiting[task.number] = _Waiting(task)
        self._launch(waiting)

    def resize(self, workers: int) -> None:
        """Aim at so many workers."""
        self._try(lambda: self._pool.resize(workers))

    def forget(self, key: str) -> None:
        """Have the pool let go of a kept bundle."""
        self._try(lambda: self._pool.forget(key))

    def close(self) -> None:
        """End the pool; nothing is delivered afterwards."""
        with self._lock:
            self._is_closed = True
        try:
            self._pool.close()
        finally:
            if self._local is not None and self._local is not self._pool:
                self._local.close()

    def tick(self) -> float:
        """Make attempts again where it is time; return the seconds until the next may be due."""
        with self._lock:
            failed, self._failed = self._failed, []
            again = [self._waiting[number] for number in failed if number in self._waiting]
            is_failing = self._failures_in_row >= self._policy.most_failures_in_row
        if is_failing and not self.degraded:
            self._give_up(f"{self._failures_in_row} failures in a row")
        for waiting in again:
            self._try_again(waiting)
        now = self._clock()
        with self._lock:
            overdue = [waiting for waiting, due in self._dues() if due <= now]
        for waiting in overdue:
            self._act_on_overdue(waiting)
        return self._seconds_to_next()

    def _seconds_to_next(self) -> float:
        now = self._clock()
        with self._lock:
            if self._failed:
                return 0.0
            pauses = (due - now for _, due in self._dues())
            return max(0.0, min(pauses, default=_LONGEST_CHECK_SECONDS))

    def _dues(self) -> Iterator[tuple[_Waiting, float]]:
        """Yield the tasks the pool is to answer, and when their newest attempt is too old.

        By what is known now, not when it began: a pool that slows down is given more time.
        """
        policy = self._policy
        for waiting in self._waiting.values():
            if waiting.starts and not waiting.is_local:
                usual = self._times.average(waiting.task.kind)
                limit = policy.first_seconds if usual is None else policy.ratio * usual
                limit = max(policy.least_seconds, limit) * 2**waiting.num_relaunches
                yield waiting, waiting.starts[-1] + limit

    def _try_again(self, waiting: _Waiting) -> None:
        """Make another attempt after a failure."""
        if waiting.is_local:
            return
        if waiting.num_failures > self._policy.most_failures:
            self._rescue(waiting)
        else:
            self._launch(waiting)

    def _act_on_overdue(self, waiting: _Waiting) -> None:
        """Do something about a task whose newest attempt is too old."""
        if waiting.is_local:
            return
        if len(waiting.starts) < self._policy.most_outstanding:
            self.counters.relaunched += 1
            waiting.num_relaunches += 1
            self._launch(waiting)
            return
        now = self._clock()
        silent = now - (now if self._asked_since is None else self._asked_since)
        if silent >= self._policy.first_seconds:
            self._give_up(f"no answer for {silent:.0f} s")
        else:
            self._rescue(waiting)

    def _launch(self, waiting: _Waiting) -> None:
        if self.degraded:
            self._run_here(waiting)
            return
        with self._lock:
            waiting.starts.append(now := self._clock())
            self._asked_since = now if self._asked_since is None else self._asked_since
        self._try(lambda: self._pool.start(waiting.task))

    def _rescue(self, waiting: _Waiting) -> None:
        self.counters.rescued += 1
        self._run_here(waiting)

    def _run_here(self, waiting: _Waiting) -> None:
        if self._local is None:
            self._local = self._make_local(lambda reply: self._take(reply, is_local=True))
        with self._lock:
            waiting.is_local = True
            waiting.starts.append(self._clock())
        self._local.start(waiting.task)

    def _try(self, call: Callable[[], None]) -> None:
        """Call the pool, and give it up if it raises."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, training goes on
            self._give_up(f"{error!r}")

    def _give_up(self, reason: str) -> None:
        """Close the pool; what it has not answered, and all that follows, is done here."""
        if self.degraded:
            return
        self.degraded = True
        self._say(f"The pool of workers is given up, tasks run here from now on: {reason}")
        with self._lock:
            moved = [waiting for waiting in self._waiting.values() if not waiting.is_local]
        for waiting in moved:
            self._run_here(waiting)
        given_up = self._pool
        if self._local is None:
            self._local = self._make_local(lambda reply: self._take(reply, is_local=True))
        self._pool = self._local
        try:
            given_up.close()
        except Exception as error:  # noqa: BLE001 - it is not needed any more
            self._say(f"The pool that was given up did not close: {error!r}")

    def _take(self, reply: Reply, *, is_local: bool) -> None:
        """Deliver a reply that is the first; called on any thread."""
        with self._lock:
            answers = not self._is_closed and self._settles(reply, is_local=is_local)
        if answers:
            self._deliver(reply)

    def _settles(self, reply: Reply, *, is_local: bool) -> bool:
        """Note what a reply says, and return whether the task is done with it."""
        waiting, now = self._waiting.get(reply.number), self._clock()
        if reply.failure:
            return self._note_failure(reply, waiting, is_local=is_local)
        if not is_local:
            self._failures_in_row, self._asked_since = 0, None
        if waiting is None:
            self.counters.duplicates += 1
            return False
        if is_local == self.degraded and waiting.starts:
            # Of a kind nobody knows, attempts before the newest were long waits for what got lost.
            is_known = self._times.average(waiting.task.kind) is not None
            self._times.note(waiting.task.kind, now - waiting.starts[0 if is_known else -1])
        del self._waiting[reply.number]
        return True

    def _note_failure(self, reply: Reply, waiting: _Waiting | None, *, is_local: bool) -> bool:
        self.counters.failures += 1
        if waiting is None:
            return False
        if is_local:
            # Nobody is left to try what fails here.
            del self._waiting[reply.number]
            return True
        self._failures_in_row += 1
        # What another attempt would only repeat may yet be done here: a worker may lack memory.
        more = self._policy.most_failures + 1 if reply.is_final else 1
        waiting.num_failures += more
        if not waiting.is_local:
            del waiting.starts[:1]
            self._failed.append(reply.number)
        return False

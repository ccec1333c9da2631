"""Cloud functions without a cloud: a model's delays, memory and mishaps around another pool.

The inner pool does the work, really (a run with `--pool simulated`) or by telling what it would
take (a cluster in virtual time, `pipeline/cluster.py`). The timer says which time it is.
"""

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from siafu.elastic.costs import TaskCosts
from siafu.elastic.pools.cloud import CloudModel, Faults
from siafu.elastic.pools.pool import Deliver, LocalPool, Pool
from siafu.elastic.task import Bundle, Reply, Task, Usage
from siafu.elastic.timer import Card, RealTimer, Timer
from siafu.errors import PoolError

_REMEMBERED_TASKS = 100_000
"""For so many tasks it is known how often they were attempted."""


@dataclass(frozen=True, eq=False, slots=True)
class Links:
    """What the workers of a server share of it: its card, and its cores, which serve them."""

    out: Card
    into: Card
    """Bytes to and from this server."""
    cores: Card
    """Core seconds; those of serving are no longer there for graph tasks."""
    serving_per_byte: float = 0.0
    """Core seconds that a byte to or from a worker costs."""
    serving_per_task: float = 0.0


class WorkerMemory:
    """The bundles that a worker has kept: the least recently used go first."""

    def __init__(self, room: float) -> None:
        self._room = room
        self._bytes: dict[str, int] = {}
        """By key, the least recently used first."""

    def take(self, bundles: tuple[Bundle, ...]) -> int:
        """Return the bytes that must be sent for a task; keep what may be and has room."""
        sent = sum(bundle.num_bytes for bundle in bundles if bundle.key not in self._bytes)
        for bundle in bundles:
            if bundle.lifetime != "once":
                self._bytes.pop(bundle.key, None)
                self._bytes[bundle.key] = bundle.num_bytes
        once = sum(bundle.num_bytes for bundle in bundles if bundle.lifetime == "once")
        held = sum(self._bytes.values()) + once
        while held > self._room and self._bytes:
            held -= self._bytes.pop(next(iter(self._bytes)))
        return sent

    def forget(self, key: str) -> None:
        """Let go of a bundle."""
        self._bytes.pop(key, None)

    def clear(self) -> None:
        """Let go of all."""
        self._bytes.clear()


@dataclass(eq=False, slots=True)
class _Worker:
    """A simulated worker: it has no thread, only a state."""

    name: str
    memory: WorkerMemory
    warm_until: float = -1.0


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


@dataclass(slots=True)
class _State:
    """What a pool's lock guards."""

    queue: deque[Task] = field(default_factory=deque)
    idle: list[_Worker] = field(default_factory=list)
    busy: set[_Worker] = field(default_factory=set)
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    """What the inner pool computes, by the number it goes by there."""
    times_started: dict[int, int] = field(default_factory=dict)
    bill: Spent = Spent()
    is_closed: bool = False


class SimulatedPool:
    """Workers as a `CloudModel` describes them.

    Tasks are computed by an inner pool that loses none (`make_inner`), as soon as their worker
    would take them, and delivered no sooner than the model says. In real time, where this machine
    is too slow to compute in that time, they come later: times then say nothing of a cloud.
    A free worker is picked by chance, since a cloud does not look for the one that has the data.
    """

    def __init__(
        self,
        deliver: Deliver,
        *,
        model: CloudModel,
        workers: int,
        seed: int,
        make_inner: Callable[[Deliver], Pool] = _local,
        timer: Timer | None = None,
        links: Links | None = None,
    ) -> None:
        """`links` are of a server in virtual time; without them workers share nothing."""
        self._deliver, self._model, self._seed, self._workers = deliver, model, seed, workers
        self._timer = RealTimer() if timer is None else timer
        self._owns_timer, self._links = timer is None, links
        self.costs: TaskCosts | None = None
        """Where it is noted what tasks take without a cloud around them."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._state = _State()
        self._names, self._numbers = count(), count()
        self._inner = make_inner(self._computed)

    @property
    def workers(self) -> int:
        """How many tasks may run at once."""
        return self._workers

    @property
    def bill(self) -> Spent:
        """What all attempts that ended so far would cost."""
        with self._lock:
            return self._state.bill

    def start(self, task: Task) -> None:
        """Begin the task, or queue it while all workers are busy."""
        with self._lock:
            if self._state.is_closed:
                raise PoolError("The pool is closed.", seen="a task", fix="open another pool")
            self._state.queue.append(task)
            begun = self._begin_all()
        self._compute(begun)

    def resize(self, workers: int) -> None:
        """Let so many tasks run at once; those that run go on."""
        if workers < 1:
            raise PoolError("A pool needs workers.", seen=f"{workers}", fix="ask for 1 or more")
        with self._lock:
            self._workers, state = workers, self._state
            del state.idle[: max(0, len(state.busy) + len(state.idle) - workers)]
            begun = self._begin_all()
        self._compute(begun)

    def forget(self, key: str) -> None:
        """Free a bundle on all workers."""
        with self._lock:
            for worker in (*self._state.idle, *self._state.busy):
                worker.memory.forget(key)
            # Their tasks have been answered, or nobody would let go of what they name.
            queue = self._state.queue
            for task in [task for task in queue if key in {b.key for b in task.bundles}]:
                queue.remove(task)
        self._inner.forget(key)

    def close(self) -> None:
        """End the timer and the inner pool; tasks that wait or run are dropped."""
        with self._lock:
            self._state.is_closed = True
            self._state.queue.clear()
        if self._owns_timer:
            self._timer.close()
        self._inner.close()

    def _begin_all(self) -> list[tuple[int, _Attempt]]:
        """Give waiting tasks to free workers; the caller has them computed, without the lock."""
        begun, state = [], self._state
        while state.queue and len(state.busy) < self._workers:
            number, attempt = next(self._numbers), self._begin(state.queue.popleft())
            state.attempts[number] = attempt
            begun.append((number, attempt))
        return begun

    def _begin(self, task: Task) -> _Attempt:
        now, model, state = self._timer.now(), self._model, self._state
        worker = self._pick()
        state.busy.add(worker)
        is_cold = now > worker.warm_until
        if is_cold:
            worker.memory.clear()
        sent_bytes = worker.memory.take(task.bundles)
        latency = model.latency(self._random.gauss() if model.latency_sigma else 0.0)
        wait_seconds = latency + (model.cold_start_seconds if is_cold else 0.0)
        faults = model.draw(self._seed, task.number, self._count_attempt(task.number))
        return _Attempt(task, worker, faults, now, wait_seconds, sent_bytes, len(state.busy))

    def _pick(self) -> _Worker:
        idle = self._state.idle
        if not idle:
            room = self._model.tensor_bytes
            return _Worker(f"simulated {next(self._names)}", WorkerMemory(room))
        place = self._random.randrange(len(idle))
        idle[place], idle[-1] = idle[-1], idle[place]
        return idle.pop()

    def _count_attempt(self, number: int) -> int:
        """Return how often the task was begun before."""
        started = self._state.times_started
        before = started.get(number, 0)
        started[number] = before + 1
        if len(started) > _REMEMBERED_TASKS:
            del started[next(iter(started))]
        return before

    def _compute(self, begun: list[tuple[int, _Attempt]]) -> None:
        for number, attempt in begun:
            needs = sum(bundle.num_bytes for bundle in attempt.task.bundles)
            if attempt.faults.fails:
                self._computed(Reply(number, failure="The simulated worker failed."))
            elif needs > self._model.tensor_bytes:
                told = f"{needs} bytes are more than a simulated worker holds"
                self._computed(Reply(number, failure=told, is_final=True))
            else:
                self._inner.start(replace(attempt.task, number=number))

    def _computed(self, reply: Reply) -> None:
        """Have the reply of the inner pool delivered when it would come."""
        with self._lock:
            if self._state.is_closed:
                return
            attempt = self._state.attempts.pop(reply.number)
            reply = self._as_from_cloud(attempt, reply)
        begins = attempt.begun + attempt.wait_seconds
        if self._links is None:
            due = begins + reply.usage.seconds
            self._timer.at(due, lambda: self._end(attempt, reply, reply.usage.seconds))
        else:
            self._timer.at(begins, lambda: self._fetch(attempt, reply))

    def _as_from_cloud(self, attempt: _Attempt, reply: Reply) -> Reply:
        """Return the reply with the simulated usage: how long its worker is busy."""
        received = sum(tensor.nbytes for tensor in reply.tensors.values())
        if self.costs is not None and not reply.failure:
            self.costs.note(attempt.task, reply.usage.seconds, received)
        moving = self._moving(attempt, attempt.sent_bytes + received)
        computing = attempt.faults.slowdown * reply.usage.seconds / self._model.speed
        passed = self._timer.now() - attempt.begun
        started = time.time() - passed + attempt.wait_seconds
        name, sent = attempt.worker.name, attempt.sent_bytes
        usage = Usage(name, started, moving + computing, sent, received)
        return replace(reply, number=attempt.task.number, usage=usage)

    def _moving(self, attempt: _Attempt, num_bytes: int) -> float:
        seconds = self._model.transfer_seconds(num_bytes, attempt.workers_in_use)
        return attempt.faults.slowdown * seconds

    # In virtual time an attempt passes the server's card on its way there and back.

    def _fetch(self, attempt: _Attempt, reply: Reply) -> None:
        """Have the worker fetch its tensors, then compute."""
        assert self._links is not None
        links, now = self._links, self._timer.now()
        there = self._moving(attempt, attempt.sent_bytes)
        back = self._moving(attempt, reply.usage.received_bytes)
        computing = reply.usage.seconds - there - back
        links.cores.pass_through(
            links.serving_per_task + links.serving_per_byte * attempt.sent_bytes
        )
        fetched = max(now + there, links.out.pass_through(attempt.sent_bytes))
        self._timer.at(fetched + computing, lambda: self._send_back(attempt, reply, now, back))

    def _send_back(self, attempt: _Attempt, reply: Reply, began: float, back: float) -> None:
        assert self._links is not None
        links, received = self._links, reply.usage.received_bytes
        links.cores.pass_through(links.serving_per_byte * received)
        done = max(self._timer.now() + back, links.into.pass_through(received))
        busy = done - began
        usage = replace(reply.usage, seconds=busy)
        self._timer.at(done, lambda: self._end(attempt, replace(reply, usage=usage), busy))

    # What follows is called by the timer.

    def _end(self, attempt: _Attempt, reply: Reply, busy_seconds: float) -> None:
        """Free the worker, bill it, and deliver."""
        with self._lock:
            if self._state.is_closed:
                return
            self._free(attempt.worker)
            bill, seconds = self._state.bill, self._model.billed_seconds(busy_seconds)
            self._state.bill = Spent(bill.requests + 1, bill.seconds + seconds)
            begun = self._begin_all()
        if attempt.faults.is_duplicated and not attempt.faults.is_lost:
            due = self._timer.now() + self._model.latency_seconds
            self._timer.at(due, lambda: self._deliver(reply))
        if not attempt.faults.is_lost:
            self._deliver(reply)
        self._compute(begun)

    def _free(self, worker: _Worker) -> None:
        state = self._state
        state.busy.remove(worker)
        worker.warm_until = self._timer.now() + self._model.warm_seconds
        if len(state.busy) + len(state.idle) < self._workers:
            state.idle.append(worker)

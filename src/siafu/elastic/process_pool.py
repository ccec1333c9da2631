"""Processes of this machine as workers; tensors go through shared memory, once where they are kept.

A thread for each worker starts it, hands it tasks and waits for it, so that a worker that hangs or
dies holds up no other.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from siafu.elastic.kept_blocks import KeptBlocks
from siafu.elastic.pool import Deliver
from siafu.elastic.task import Reply, Task
from siafu.elastic.worker_process import WorkerProcess
from siafu.errors import PoolError, TaskError

_START_SECONDS = 120.0
"""A worker imports torch, beside others that do, on a machine that may be busy."""
_LOOK_SECONDS = 0.5
"""How often an idle worker is looked after: whether it still lives."""
_MOST_DEATHS, _DEATHS_SECONDS = 3, 60.0
"""A place whose workers die so often within so long starts no other."""


@dataclass(eq=False, slots=True)
class _Place:
    """Where one worker at a time runs."""

    name: str
    thread: threading.Thread = field(init=False)
    worker: WorkerProcess | None = None
    is_retired: bool = False
    is_given_up: bool = False
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_DEATHS))
    forgets: list[str] = field(default_factory=list)
    """Keys its worker is still to be told to let go of."""

    def note_death(self) -> None:
        """Count a death, and give up where they come too often."""
        self.deaths.append(time.monotonic())
        is_full = len(self.deaths) == _MOST_DEATHS
        self.is_given_up = is_full and self.deaths[-1] - self.deaths[0] < _DEATHS_SECONDS


class ProcessPool:
    """Worker processes on this machine.

    A worker that dies, or takes longer than the deadline for a task and is killed, has its task
    answered with a failure and is started again. Where workers keep dying, none is started any
    more; without a worker every task is answered with a failure.
    """

    def __init__(
        self, deliver: Deliver, *, workers: int, threads: int = 1, deadline_seconds: float
    ) -> None:
        self._deliver, self._threads, self._deadline = deliver, threads, deadline_seconds
        self._changed = threading.Condition()
        """Guards all below; waited on by threads without work."""
        self._queue: deque[Task] = deque()
        self._places: list[_Place] = []
        self._is_closed = False
        self._numbers = count()
        self._kept = KeptBlocks()
        self.resize(workers)

    @property
    def workers(self) -> int:
        """How many workers there are or are being started."""
        with self._changed:
            return len(self._able())

    @property
    def process_ids(self) -> list[int]:
        """The processes of the workers that take tasks; not of those that still start."""
        with self._changed:
            workers = [place.worker for place in self._able()]
            return [worker.process_id for worker in workers if worker and worker.is_ready]

    def _able(self) -> list[_Place]:
        return [place for place in self._places if not (place.is_retired or place.is_given_up)]

    def start(self, task: Task) -> None:
        """Queue the task for the next worker that is free."""
        with self._changed:
            if self._is_closed:
                raise PoolError("The pool is closed.", seen="a task", fix="open another pool")
            self._kept.hold(task.bundles)
            self._queue.append(task)
            self._changed.notify_all()

    def resize(self, workers: int) -> None:
        """Start workers, all at once, or retire some: those finish the task they run."""
        if workers < 1:
            raise PoolError("A pool needs workers.", seen=f"{workers}", fix="ask for 1 or more")
        with self._changed:
            able = self._able()
            for place in able[workers:]:
                place.is_retired = True
            for _ in range(workers - len(able)):
                self._add_place()
            self._changed.notify_all()

    def _add_place(self) -> None:
        place = _Place(f"process {next(self._numbers)}")
        place.thread = threading.Thread(
            target=self._serve, args=(place,), name=f"siafu-{place.name}", daemon=True
        )
        self._places.append(place)
        place.thread.start()

    def forget(self, key: str) -> None:
        """Free a bundle here and on the workers, after the attempts that wait or run."""
        if self._kept.forget(key):
            self._tell_forgotten([key])

    def _tell_forgotten(self, keys: list[str]) -> None:
        with self._changed:
            for place in self._places:
                place.forgets += keys
            self._changed.notify_all()

    def close(self) -> None:
        """Kill the workers and end the threads; tasks that wait or run are dropped."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            places = list(self._places)
            for place in places:
                if place.worker is not None:
                    place.worker.kill()
            self._changed.notify_all()
        until = time.monotonic() + self._deadline
        for place in places:
            place.thread.join(max(0.0, until - time.monotonic()))
        left = [place.name for place in places if place.thread.is_alive()]
        if left:
            raise PoolError(
                f"Workers did not end within {self._deadline} s.",
                seen=", ".join(left),
                fix="see whether the machine swaps or its disks hang",
            )
        self._kept.close()

    # What follows runs on the places' threads.

    def _serve(self, place: _Place) -> None:
        try:
            while not self._is_over(place):
                if place.worker is None and not place.is_given_up:
                    self._start_worker(place)
                elif (task := self._next_task(place)) is not None:
                    self._run(place, task)
        finally:
            self._end_worker(place)
            with self._changed:
                self._places.remove(place)

    def _is_over(self, place: _Place) -> bool:
        return self._is_closed or place.is_retired

    def _start_worker(self, place: _Place) -> None:
        try:
            worker = WorkerProcess(place.name, self._threads)
            with self._changed:
                place.worker = worker
                if self._is_closed:
                    worker.kill()
            worker.wait_ready(_START_SECONDS)
        except (EOFError, OSError):
            self._bury_worker(place)

    def _end_worker(self, place: _Place) -> None:
        with self._changed:
            worker, place.worker = place.worker, None
        if worker is not None:
            worker.end()

    def _bury_worker(self, place: _Place) -> None:
        self._end_worker(place)
        with self._changed:
            place.note_death()
            place.forgets.clear()
            self._changed.notify_all()

    def _next_task(self, place: _Place) -> Task | None:
        """Return a task to run, or None when something else is to be done first."""
        with self._changed:
            if not (self._may_take(place) or place.forgets or self._is_over(place)):
                self._changed.wait(_LOOK_SECONDS)
            forgets, place.forgets = place.forgets, []
        if place.worker is not None and not self._look_after(place.worker, forgets):
            self._bury_worker(place)
            return None
        with self._changed:
            if self._is_over(place) or place.forgets or not self._may_take(place):
                return None
            return self._queue.popleft()

    def _look_after(self, worker: WorkerProcess, forgets: list[str]) -> bool:
        """Tell an idle worker what to forget; False when it is dead."""
        try:
            for key in forgets:
                worker.forget(key)
        except OSError:
            return False
        return worker.is_alive

    def _may_take(self, place: _Place) -> bool:
        """True when there is a task for it; a place without a worker takes what nobody can."""
        return bool(self._queue) and (place.worker is not None or not self._able())

    def _run(self, place: _Place, task: Task) -> None:
        reply = self._attempt(place, task)
        if not self._is_closed:
            self._deliver(reply)
        free = self._kept.release(task.bundles)
        if free:
            self._tell_forgotten(free)

    def _attempt(self, place: _Place, task: Task) -> Reply:
        worker = place.worker
        if worker is None:
            return Reply(task.number, failure="The workers kept dying; none is started any more.")
        try:
            with worker.new_blocks(task, self._kept) as blocks:
                try:
                    return worker.ask(task, blocks, self._deadline)
                except (EOFError, OSError) as error:
                    self._bury_worker(place)
                    what = "hung" if isinstance(error, TimeoutError) else "died"
                    return Reply(task.number, failure=f"Worker {place.name} {what}.")
        except (TaskError, TypeError) as error:
            return Reply(task.number, failure=f"{error}", is_final=True)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            return Reply(task.number, failure=f"{error!r}")

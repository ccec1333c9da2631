"""Processes of this machine as workers; tensors go through shared memory, once where they are kept.

A thread for each worker starts it, hands it tasks and waits for it, so that a worker that hangs or
dies holds up no other.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

from siafu.elastic.messages import Answer, Forget, Order
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.pools.shared_memory import (
    KeptBlocks,
    SharedBlock,
    WorkerPipe,
    close_all,
    map_block,
    write_block,
)
from siafu.elastic.task import Reply, Task, Usage
from siafu.errors import PoolError, TaskError

_END_SECONDS = 60.0


class WorkerProcess:
    """A process that runs `siafu.elastic.pools.worker`. Used by one thread, which outlives it.

    The kernel ends the worker when the very thread that started it ends.
    """

    def __init__(self, name: str) -> None:
        self.name, self.is_ready = name, False
        self._known: set[str] = set()
        """Keys of the kept bundles that the worker has mapped."""
        ours, theirs = socket.socketpair()
        self._pipe = WorkerPipe(ours)
        arguments = [str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "siafu.elastic.pools.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                process_group=0,  # Ctrl-C is the owner's to answer
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    @property
    def process_id(self) -> int:
        """The worker's process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """False when the process has ended."""
        return self._process.poll() is None

    def wait_ready(self, seconds: float) -> None:
        """Wait until the worker takes tasks; raise EOFError or TimeoutError if it won't."""
        self._pipe.receive(seconds)
        self.is_ready = True

    def ask(self, task: Task, blocks: dict[str, SharedBlock], seconds: float) -> Reply:
        """Return the worker's reply; raise EOFError, OSError or TimeoutError if it is lost.

        `blocks` has the bundles that are `new` to the worker.
        """
        new = [bundle for bundle in task.bundles if bundle.key in blocks]
        sent = [
            {"key": bundle.key, "lifetime": bundle.lifetime, "tensors": blocks[bundle.key].layout}
            for bundle in new
        ]
        held = tuple(bundle.key for bundle in task.bundles if bundle.key not in blocks)
        order = Order.local_text(
            code=task.code, facts=task.facts, bundles=sent, held=held, forgotten=()
        )
        self._pipe.send(order, [blocks[bundle.key].descriptor for bundle in new])
        answer, descriptors = self._pipe.receive(seconds)
        try:
            if not isinstance(answer, Answer):
                raise ConnectionError(f"{answer.kind} where an answer was due")
            if answer.is_mapped:
                self._known |= {b.key for b in task.bundles if b.lifetime != "once"}
            sent_bytes = sum(block.num_bytes for block in blocks.values())
            return self._reply(task.number, answer, descriptors, sent_bytes)
        finally:
            close_all(descriptors)

    def _reply(self, number: int, answer: Answer, descriptors: list[int], sent_bytes: int) -> Reply:
        if answer.failure:
            usage = Usage(self.name, answer.started, sent_bytes=sent_bytes)
            return Reply(number, failure=answer.failure, is_final=answer.is_final, usage=usage)
        tensors = map_block(descriptors[0], answer.tensors)
        received_bytes = sum(tensor.nbytes for tensor in tensors.values())
        usage = Usage(self.name, answer.started, answer.seconds, sent_bytes, received_bytes)
        return Reply(number, tensors, usage=usage)

    @contextmanager
    def new_blocks(self, task: Task, kept: KeptBlocks) -> Iterator[dict[str, SharedBlock]]:
        """Give the blocks, by bundle key, that the worker needs for a task and has not yet.

        Those for this task alone are gone afterwards.
        """
        once: dict[str, SharedBlock] = {}
        outliving: dict[str, SharedBlock] = {}
        try:
            for bundle in task.bundles:
                if bundle.lifetime == "once":
                    once[bundle.key] = write_block(bundle.tensors)
                elif bundle.key not in self._known:
                    outliving[bundle.key] = kept.block(bundle)
            yield once | outliving
        finally:
            for block in once.values():
                block.close()

    def forget(self, key: str) -> None:
        """Have the worker let go of a bundle; raise OSError if the worker is gone."""
        if key in self._known:
            self._known.discard(key)
            self._pipe.send(Forget.local_text(key=key))

    def kill(self) -> None:
        """Kill the process; safe from any thread. A worker has nothing to finish or to tidy up."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process, wait for it and close the pipe."""
        self._process.kill()
        self._pipe.close()
        # One that the kernel holds back can't be helped; `close` of the pool tells of it.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)


_START_SECONDS = 120.0
"""A worker imports torch, beside others that do, on a machine that may be busy."""
_LOOK_SECONDS = 0.5
"""How often an idle worker is looked after: whether it still lives."""
_MOST_DEATHS, _DEATHS_SECONDS = 3, 60.0
"""A slot whose workers die so often within so long starts no other."""


@dataclass(eq=False, slots=True)
class _Slot:
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

    def __init__(self, deliver: Deliver, *, workers: int, deadline_seconds: float) -> None:
        self._deliver, self._deadline = deliver, deadline_seconds
        self._changed = threading.Condition()
        """Guards all below; waited on by threads without work."""
        self._queue: deque[Task] = deque()
        self._slots: list[_Slot] = []
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
            workers = [slot.worker for slot in self._able()]
            return [worker.process_id for worker in workers if worker and worker.is_ready]

    def _able(self) -> list[_Slot]:
        return [slot for slot in self._slots if not (slot.is_retired or slot.is_given_up)]

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
            for slot in able[workers:]:
                slot.is_retired = True
            for _ in range(workers - len(able)):
                self._add_slot()
            self._changed.notify_all()

    def _add_slot(self) -> None:
        slot = _Slot(f"process {next(self._numbers)}")
        slot.thread = threading.Thread(
            target=self._serve, args=(slot,), name=f"siafu-{slot.name}", daemon=True
        )
        self._slots.append(slot)
        slot.thread.start()

    def forget(self, key: str) -> None:
        """Free a bundle here and on the workers, after the attempts that wait or run."""
        if self._kept.forget(key):
            self._tell_forgotten([key])

    def _tell_forgotten(self, keys: list[str]) -> None:
        with self._changed:
            for slot in self._slots:
                slot.forgets += keys
            self._changed.notify_all()

    def close(self) -> None:
        """Kill the workers and end the threads; tasks that wait or run are dropped."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            slots = list(self._slots)
            for slot in slots:
                if slot.worker is not None:
                    slot.worker.kill()
            self._changed.notify_all()
        until = time.monotonic() + self._deadline
        for slot in slots:
            slot.thread.join(max(0.0, until - time.monotonic()))
        left = [slot.name for slot in slots if slot.thread.is_alive()]
        if left:
            raise PoolError(
                f"Workers did not end within {self._deadline} s.",
                seen=", ".join(left),
                fix="see whether the machine swaps or its disks hang",
            )
        self._kept.close()

    # What follows runs on the slots' threads.

    def _serve(self, slot: _Slot) -> None:
        try:
            while not self._is_over(slot):
                if slot.worker is None and not slot.is_given_up:
                    self._start_worker(slot)
                elif (task := self._next_task(slot)) is not None:
                    self._run(slot, task)
        finally:
            self._end_worker(slot)
            with self._changed:
                self._slots.remove(slot)

    def _is_over(self, slot: _Slot) -> bool:
        return self._is_closed or slot.is_retired

    def _start_worker(self, slot: _Slot) -> None:
        try:
            worker = WorkerProcess(slot.name)
            with self._changed:
                slot.worker = worker
                if self._is_closed:
                    worker.kill()
            worker.wait_ready(_START_SECONDS)
        except (EOFError, OSError, TaskError):
            self._discard_worker(slot)

    def _end_worker(self, slot: _Slot) -> None:
        with self._changed:
            worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.end()

    def _discard_worker(self, slot: _Slot) -> None:
        self._end_worker(slot)
        with self._changed:
            slot.note_death()
            slot.forgets.clear()
            self._changed.notify_all()

    def _next_task(self, slot: _Slot) -> Task | None:
        """Return a task to run, or None when something else is to be done first."""
        with self._changed:
            if not (self._may_take(slot) or slot.forgets or self._is_over(slot)):
                self._changed.wait(_LOOK_SECONDS)
            forgets, slot.forgets = slot.forgets, []
        if slot.worker is not None and not self._check_worker(slot.worker, forgets):
            self._discard_worker(slot)
            return None
        with self._changed:
            if self._is_over(slot) or slot.forgets or not self._may_take(slot):
                return None
            return self._queue.popleft()

    def _check_worker(self, worker: WorkerProcess, forgets: list[str]) -> bool:
        """Tell an idle worker what to forget; False when it is dead."""
        try:
            for key in forgets:
                worker.forget(key)
        except OSError:
            return False
        return worker.is_alive

    def _may_take(self, slot: _Slot) -> bool:
        """True when there is a task for it; a slot without a worker takes what nobody can."""
        return bool(self._queue) and (slot.worker is not None or not self._able())

    def _run(self, slot: _Slot, task: Task) -> None:
        reply = self._attempt(slot, task)
        if not self._is_closed:
            self._deliver(reply)
        free = self._kept.release(task.bundles)
        if free:
            self._tell_forgotten(free)

    def _attempt(self, slot: _Slot, task: Task) -> Reply:
        worker = slot.worker
        if worker is None:
            return Reply(task.number, failure="The workers kept dying; none is started any more.")
        try:
            with worker.new_blocks(task, self._kept) as blocks:
                try:
                    return worker.ask(task, blocks, self._deadline)
                except (EOFError, OSError) as error:
                    self._discard_worker(slot)
                    what = "hung" if isinstance(error, TimeoutError) else "died"
                    return Reply(task.number, failure=f"Worker {slot.name} {what}.")
        except (TaskError, TypeError) as error:
            return Reply(task.number, failure=f"{error}", is_final=True)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            return Reply(task.number, failure=f"{error!r}")

"""What every pool of stateless workers can do, and the simplest one: threads of this process."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from siafu.elastic.compute import compute
from siafu.elastic.task import Reply, Task, Usage

Deliver = Callable[[Reply], None]
"""Takes a reply; pools call it from any thread. It is quick, and never raises."""


class Pool(Protocol):
    """Workers that run tasks. A pool is made with the `Deliver` it answers to.

    `start` may be called again for a task that takes too long: both attempts may be answered, and
    the caller takes the first. A pool never retries by itself. An attempt that fails in a way the
    pool sees is answered with a failure; one that is lost is never answered.
    """

    @property
    def workers(self) -> int:
        """How many tasks may run at once now; further ones wait in the pool."""
        ...

    def start(self, task: Task) -> None:
        """Have a worker run the task; return at once."""
        ...

    def resize(self, workers: int) -> None:
        """Aim at so many workers."""
        ...

    def forget(self, key: str) -> None:
        """Let go of a kept bundle; no later task names it."""
        ...

    def close(self) -> None:
        """End the workers; nothing is delivered afterwards."""
        ...


class LocalPool:
    """Runs tasks on threads; torch lets go of the GIL while it computes."""

    def __init__(self, deliver: Deliver, *, workers: int = 1) -> None:
        self._deliver, self.workers = deliver, workers
        self._threads = ThreadPoolExecutor(workers, "siafu-tensor")

    def start(self, task: Task) -> None:
        """Have a thread run the task."""
        self._threads.submit(self._run, task)

    def _run(self, task: Task) -> None:
        started, clock = time.time(), time.perf_counter()
        try:
            tensors = compute(task.code, task.facts, task.tensors())
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self._deliver(Reply(task.number, failure=f"{error}", is_final=True))
            return
        usage = Usage("local", started, time.perf_counter() - clock)
        self._deliver(Reply(task.number, tensors, usage=usage))

    def resize(self, workers: int) -> None:
        """Do nothing: threads share this process's cores however many they are."""

    def forget(self, key: str) -> None:
        """Do nothing: no bundle is kept."""

    def close(self) -> None:
        """End the threads; tasks that wait are dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

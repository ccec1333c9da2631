"""Threads of this process as workers: what a pipeline without a pool uses, and one that lost it."""

import time
from concurrent.futures import ThreadPoolExecutor

from siafu.elastic.compute import compute
from siafu.elastic.pool import Deliver
from siafu.elastic.task import Reply, Task, Usage


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

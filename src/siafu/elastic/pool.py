"""What every pool of stateless workers can do."""

from collections.abc import Callable
from typing import Protocol

from siafu.elastic.task import Reply, Task

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

"""A rank's pool in use: watched by a dispatcher, sized by a tuner, counted."""

import time

from siafu.elastic.autotune import Autotuner, Load
from siafu.elastic.dispatch import Dispatcher
from siafu.elastic.pool_use import PoolUse
from siafu.elastic.task import Task

_PACE_SECONDS = 0.01
"""Between two observations of the tuner, which go by a steady pace."""


class Runner:
    """What a pipeline gives its tensor tasks to."""

    def __init__(self, dispatcher: Dispatcher, use: PoolUse, tuner: Autotuner | None) -> None:
        """Without a tuner the pool keeps its size."""
        self.dispatcher, self.use, self.tuner = dispatcher, use, tuner
        self._observed, self._asked_for = 0.0, dispatcher.workers

    def start(self, task: Task) -> None:
        """Have the task run; its reply is delivered once."""
        self.dispatcher.start(task)

    def tick(self) -> float:
        """Look after tasks that take too long; return the seconds until the next look."""
        return self.dispatcher.tick()

    def observe(self, graph_waiting: int) -> None:
        """Let the tuner know how many graph tasks could be done now."""
        now = time.monotonic()
        if self.tuner is None or self.dispatcher.degraded or now - self._observed < _PACE_SECONDS:
            return
        self._observed = now
        queued = max(0, self.dispatcher.outstanding - self.dispatcher.workers)
        wanted = self.tuner.observe(Load(graph_waiting, queued))
        if wanted != self._asked_for:  # not what there is: places may have been given up
            self.dispatcher.resize(wanted)
            self._asked_for = wanted

    def forget(self, key: str) -> None:
        """Have the pool let go of a kept bundle."""
        self.dispatcher.forget(key)

    def close(self) -> None:
        """End the workers."""
        self.dispatcher.close()

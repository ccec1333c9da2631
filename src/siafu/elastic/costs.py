"""What tasks of a run take, kind by kind: noted as they are computed, for a simulated cluster."""

import statistics
import threading
from collections import deque
from dataclasses import dataclass, field

from siafu.elastic.task import Task

_REMEMBERED = 64
"""Times of a kind that are kept: the median of the last ones counts."""


@dataclass(eq=False, slots=True)
class TaskCost:
    """One kind of task."""

    sent_bytes: int = 0
    """Of one epoch alone."""
    weight_bytes: int = 0
    constant_bytes: int = 0
    """Of what workers may keep to the end of the run."""
    received_bytes: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def usual_seconds(self) -> float:
        """The median of those seen last."""
        return statistics.median(self.seconds)


class TaskCosts:
    """By kind; noted on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, TaskCost] = {}

    def note(self, task: Task, seconds: float, received_bytes: int) -> None:
        """Take in what one task took on one core, and the bytes of its result."""
        by_lifetime = {"once": 0, "version": 0, "run": 0}
        for bundle in task.bundles:
            by_lifetime[bundle.lifetime] += bundle.num_bytes
        with self._lock:
            cost = self._kinds.setdefault(task.kind, TaskCost())
            cost.seconds.append(seconds)
            cost.sent_bytes = max(cost.sent_bytes, by_lifetime["once"])
            cost.weight_bytes = max(cost.weight_bytes, by_lifetime["version"])
            cost.constant_bytes = max(cost.constant_bytes, by_lifetime["run"])
            cost.received_bytes = max(cost.received_bytes, received_bytes)

    def of(self, kind: str) -> TaskCost | None:
        """Return what is known of a kind."""
        with self._lock:
            return self._kinds.get(kind)

"""What a pool was asked for, counted reply by reply as it would be billed."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from siafu.elastic.pool import Deliver
from siafu.elastic.task import Reply


def round_up(seconds: float, step: float) -> float:
    """Return the least multiple of `step` that is no shorter."""
    # 0.007 / 0.001 is a little above 7 in floats; a millionth of a step costs nobody a step more.
    return math.ceil(seconds / step - 1e-6) * step


@dataclass(eq=False, slots=True)
class PoolUse:
    """Totals over every attempt that was answered, also those that came too late to be used."""

    step_seconds: float = 0.001
    """What an invocation's time is rounded up to a multiple of."""
    requests: int = 0
    billed_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_gb: float | None = None
    """Of a worker, where the pool knows."""
    paid: Callable[[], tuple[int, float]] | None = None
    """The pool's own count of requests and billed seconds: it knows of attempts that got lost."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def counting(self, deliver: Deliver) -> Deliver:
        """Return a `Deliver` that counts what passes through it."""

        def take(reply: Reply) -> None:
            self.count(reply)
            deliver(reply)

        return take

    def totals(self) -> tuple[int, float]:
        """Return requests and billed seconds."""
        return (self.requests, self.billed_seconds) if self.paid is None else self.paid()

    def count(self, reply: Reply) -> None:
        """Add one attempt."""
        usage = reply.usage
        with self._lock:
            self.requests += 1
            self.billed_seconds += round_up(usage.seconds, self.step_seconds)
            self.sent_bytes += usage.sent_bytes
            self.received_bytes += usage.received_bytes

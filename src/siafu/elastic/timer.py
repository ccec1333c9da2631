"""Clocks that call back: one in real time, one in virtual time.

Whoever waits by `at` instead of sleeping runs on either: on a thread as time goes by, or as fast as
one thread can, with hours passing in seconds and the same events in the same order every time.
"""

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

from siafu.errors import PoolError

Event = Callable[[], None]
_END_SECONDS = 30.0


class Timer(Protocol):
    """A clock, and calls when it has come to a time."""

    def now(self) -> float:
        """Return the seconds since some moment."""
        ...

    def at(self, due: float, event: Event) -> None:
        """Have the event called once it is that late; events of one time in the order given."""
        ...

    def close(self) -> None:
        """Drop what is not yet due."""
        ...


class RealTimer:
    """Real time: events are called on a thread of its own."""

    def __init__(self, name: str = "siafu-timer") -> None:
        self._changed = threading.Condition()
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._keep_time, name=name, daemon=True)
        self._thread.start()

    def now(self) -> float:
        """Return the machine's monotonic clock."""
        return time.monotonic()

    def at(self, due: float, event: Event) -> None:
        """Have the event called on the timer's thread."""
        with self._changed:
            heapq.heappush(self._events, (due, next(self._numbers), event))
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_END_SECONDS)

    def _keep_time(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and not self._is_due():
                    pause = self._events[0][0] - self.now() if self._events else None
                    self._changed.wait(pause)
                if self._is_closed:
                    return
                _, _, event = heapq.heappop(self._events)
            event()

    def _is_due(self) -> bool:
        return bool(self._events) and self._events[0][0] <= self.now()


class VirtualTimer:
    """Virtual time: it is as late as the last event that was called by `run`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self.num_events = 0

    def now(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    def at(self, due: float, event: Event) -> None:
        """Have the event called by `run`; one in the past comes next."""
        heapq.heappush(self._events, (max(due, self._now), next(self._numbers), event))

    def close(self) -> None:
        """Drop all events."""
        self._events.clear()

    def run(self, is_done: Callable[[], bool]) -> None:
        """Call events in the order of their times until something is done."""
        while not is_done():
            if not self._events:
                raise PoolError(
                    "The simulated cluster stands still.",
                    seen=f"nothing is due after {self._now:.6g} s",
                    fix="report it: a task was lost that nobody waits for",
                )
            self._now, _, event = heapq.heappop(self._events)
            self.num_events += 1
            event()


class Card:
    """Something that passes bytes, or does work, one piece after another: a link, a core.

    Pieces queue in the order they come, so that never more passes than its speed allows.
    """

    def __init__(self, timer: Timer, per_second: float) -> None:
        self._timer, self.per_second = timer, per_second
        self._free = 0.0
        self.busy_seconds = 0.0

    def pass_through(self, amount: float) -> float:
        """Queue so much, and return when it is through."""
        seconds = amount / self.per_second
        self.busy_seconds += seconds
        self._free = max(self._free, self._timer.now()) + seconds
        return self._free

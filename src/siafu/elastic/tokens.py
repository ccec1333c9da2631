"""Attempts at tasks by their one-time tokens, and which may still fetch or push."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from siafu.elastic.message import Order
from siafu.elastic.task import Task

MOST_REMEMBERED = 1 << 16
"""Answered tasks and forgotten keys that are remembered; older ones are never asked for."""


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """Why a token is not good (any more): `unknown`, `expired`, `used`, `unfetched` or `done`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(eq=False, slots=True)
class Attempt:
    """One invitation of a worker to a task."""

    task: Task
    expires: float
    """By the monotonic clock."""
    is_fetched: bool = False
    is_finished: bool = False
    """True once its worker has pushed a result or a failure."""
    sent_bytes: int = 0


class Attempts:
    """Those under way. Each token fetches once and pushes once, within its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_token: dict[str, Attempt] = {}
        self._answered: OrderedDict[int, None] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._is_dismissed = False

    def add(self, token: str, attempt: Attempt) -> bool:
        """Take up an attempt; return False for a task that needs none."""
        with self._lock:
            if self._is_done(attempt):
                return False
            self._by_token[token] = attempt
            return True

    def _is_done(self, attempt: Attempt) -> bool:
        return self._is_dismissed or attempt.task.number in self._answered

    def fetch(self, token: str) -> Attempt:
        """Return the attempt whose task is fetched now; raise Refusal for a bad token."""
        with self._lock:
            attempt = self._find(token)
            if attempt.is_fetched:
                raise Refusal("used")
            attempt.is_fetched = True
            return attempt

    def finish(self, token: str, *, is_answer: bool) -> Attempt:
        """Return the attempt that is over now; raise Refusal for a bad token.

        An answer also ends all other attempts at its task.
        """
        with self._lock:
            attempt = self._find(token)
            if not attempt.is_fetched:
                raise Refusal("unfetched")
            attempt.is_finished = True
            if is_answer:
                _remember(self._answered, attempt.task.number)
            return attempt

    def _find(self, token: str) -> Attempt:
        attempt = self._by_token.get(token)
        if attempt is None:
            raise Refusal("unknown")
        if attempt.is_finished:
            raise Refusal("used")
        if self._is_done(attempt):
            raise Refusal("done")
        if time.monotonic() > attempt.expires:
            raise Refusal("expired")
        return attempt

    def remove(self, token: str) -> bool:
        """Drop an attempt; return True if its task still wanted an answer from it."""
        with self._lock:
            attempt = self._by_token.pop(token, None)
            return attempt is not None and not (attempt.is_finished or self._is_done(attempt))

    def forget(self, key: str) -> None:
        """Note a bundle that no later task names."""
        with self._lock:
            _remember(self._forgotten, key)

    def order(self, task: Task, held: tuple[str, ...]) -> Order:
        """Return the task for a worker that holds some bundles."""
        with self._lock:
            forgotten = tuple(key for key in held if key in self._forgotten)
        kept = {bundle.key for bundle in task.bundles if bundle.lifetime != "once"} & set(held)
        missing = tuple(bundle for bundle in task.bundles if bundle.key not in kept)
        unused = tuple(key for key in forgotten if key not in kept)
        return Order(task.code, task.facts, missing, tuple(sorted(kept)), unused)

    def dismiss(self) -> None:
        """Treat all tasks as answered."""
        with self._lock:
            self._is_dismissed = True


def _remember(names: OrderedDict[Any, None], name: Any) -> None:
    names[name] = None
    if len(names) > MOST_REMEMBERED:
        names.popitem(last=False)

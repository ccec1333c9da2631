"""Tasks that do nothing, and replies to wait for: what tests of pools share."""

import queue
import time
from collections.abc import Callable

import torch

from siafu.elastic.task import Bundle, Reply, Task

ANSWERS_WITHIN = 60.0
"""Workers import torch before their first answer; the machine may be busy with other tests."""


def ping(number: int, *bundles: Bundle, code: str = "ping", kind: str = "ping") -> Task:
    return Task(number, code, kind, {}, bundles)


def once(number: int, rows: int = 3) -> Bundle:
    return Bundle(f"x {number}", {"x": torch.full((rows,), float(number))}, "once")


class Replies:
    """Where a pool delivers to."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self.deliver = self._queue.put

    def next(self, seconds: float = ANSWERS_WITHIN) -> Reply:
        return self._queue.get(timeout=seconds)

    def many(self, number: int) -> dict[int, Reply]:
        replies = [self.next() for _ in range(number)]
        return {reply.number: reply for reply in replies}

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = ANSWERS_WITHIN) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.01)

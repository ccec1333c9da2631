"""Work cut into chunks for threads."""

import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from siafu.ops import threads


def _add_one(numbers: Any, lo: int, hi: int) -> None:
    numbers[lo:hi] += 1


def test_nothing_is_held_for_a_helper_that_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else what is alive at the peak of a step would depend on when a thread wakes up.
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    may_end, numbers = threading.Event(), np.zeros(4)
    executor = threads._pool.executor(1)
    busy = executor.submit(may_end.wait)
    try:
        threads.run_chunks(partial(_add_one, numbers), [0, 1, 2, 3, 4])
        done, held = numbers.tolist(), weakref.ref(numbers)
        del numbers
        assert done == [1, 1, 1, 1]
        assert held() is None
    finally:
        may_end.set()
        busy.result()
        executor.shutdown()


def test_work_in_order_goes_on_while_others_ask_for_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Items are submitted one at a time, so the pool they began with must still take them.
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)

    def items() -> Iterator[int]:
        for number in range(40):
            numbers = np.zeros(number + 2)
            threads.run_chunks(partial(_add_one, numbers), range(number + 3))
            assert numbers.all()
            yield number

    assert list(threads.in_order(lambda x: x * x, items(), ahead=2)) == [x * x for x in range(40)]


def test_one_item_ahead_is_made_beside_what_the_caller_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    begun = [threading.Event() for _ in range(4)]

    def work(number: int) -> int:
        begun[number].set()
        return number

    for number in threads.in_order(work, range(4), ahead=1, beside=True):
        if number < 3:
            assert begun[number + 1].wait(60), "the next is made while this one is looked at"

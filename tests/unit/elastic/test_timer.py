"""Events in real and in virtual time."""

import threading

import pytest

from siafu.elastic.timer import Card, RealTimer, VirtualTimer
from siafu.errors import PoolError


def test_virtual_time_jumps_from_event_to_event() -> None:
    timer, seen = VirtualTimer(), []
    timer.at(7200.0, lambda: seen.append(("late", timer.now())))
    timer.at(1.5, lambda: timer.at(timer.now() + 1, lambda: seen.append(("next", timer.now()))))
    timer.at(1.5, lambda: seen.append(("same time, after", timer.now())))
    timer.run(lambda: len(seen) == 3)
    assert seen == [("same time, after", 1.5), ("next", 2.5), ("late", 7200.0)]


def test_nothing_due_is_an_error_and_no_hang() -> None:
    with pytest.raises(PoolError, match="stands still"):
        VirtualTimer().run(lambda: False)


def test_real_time_calls_back_and_ends() -> None:
    before, called = threading.active_count(), threading.Event()
    timer = RealTimer()
    timer.at(timer.now(), called.set)
    timer.at(timer.now() + 3600, lambda: None)
    assert called.wait(10)
    timer.close()
    assert threading.active_count() == before


def test_a_card_passes_no_more_than_it_can() -> None:
    timer = VirtualTimer()
    card = Card(timer, 100.0)
    assert [card.pass_through(50), card.pass_through(100)] == [0.5, 1.5]
    timer.at(4.0, lambda: None)
    timer.run(lambda: timer.now() == 4.0)
    assert card.pass_through(100) == 5.0
    assert card.busy_seconds == 2.5

"""Pool control: attempts made again, first answers, pools given up; no sleeps, a virtual clock."""

import threading
from collections import Counter
from collections.abc import Callable
from itertools import chain, repeat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.elastic.dispatch import Dispatcher, ReplyTimes
from siafu.elastic.pools.pool import LocalPool
from siafu.elastic.task import Task
from siafu.errors import TaskError
from tests.unit.elastic.odd_pool import Attempt, OddRun
from tests.unit.elastic.pings import Replies, once, ping, wait_until

LOST = Attempt(answers=())
FAILED = Attempt(failure="out of luck")
QUICK = Attempt()


def in_turn(*attempts: Attempt) -> Callable[[Task], Attempt]:
    """Give each attempt in turn, then quick ones."""
    remaining = chain(attempts, repeat(QUICK))
    return lambda _: next(remaining)


def warm(run: OddRun) -> None:
    """Let the pool answer tasks, so that the kind's time is known: 0.1 s."""
    for number in range(1000, 1003):
        run.dispatcher.start(ping(number))
        run.finish(10)
    run.replies.clear()


def test_an_attempt_is_made_again_when_it_is_too_old() -> None:
    run = OddRun(in_turn(QUICK, QUICK, QUICK, LOST))
    warm(run)
    run.dispatcher.start(ping(1, once(1)))
    run.clock.advance(0.45)
    assert run.dispatcher.tick() == pytest.approx(0.05)
    assert run.pool.num_started == 4
    run.clock.advance(0.06)
    run.dispatcher.tick()
    assert run.pool.num_started == 5
    run.finish(10)
    assert run.replies[0].tensors["out_x"][0] == 1
    assert run.dispatcher.counters.relaunched == 1


def test_no_attempt_is_made_again_within_half_a_second() -> None:
    instant = Attempt(answers=(0.01,))
    run = OddRun(in_turn(instant, instant, instant, LOST))
    warm(run)
    run.dispatcher.start(ping(1))
    run.clock.advance(0.4)
    assert run.dispatcher.tick() == pytest.approx(0.1)
    assert run.pool.num_started == 4


def test_an_attempt_that_failed_is_not_outstanding() -> None:
    run = OddRun(in_turn(FAILED, FAILED, LOST, LOST))
    run.dispatcher.start(ping(1))
    run.finish(50)
    assert run.pool.num_started == 5
    assert run.dispatcher.counters.rescued == 0


def test_nothing_known_yet_means_patience() -> None:
    run = OddRun(in_turn(LOST))
    run.dispatcher.start(ping(1))
    run.clock.advance(29)
    run.dispatcher.tick()
    assert run.pool.num_started == 1
    run.clock.advance(1.1)
    run.dispatcher.tick()
    assert run.pool.num_started == 2


def test_a_first_answer_that_was_lost_makes_nobody_slow() -> None:
    run = OddRun(in_turn(LOST, QUICK, LOST))
    run.dispatcher.start(ping(1))
    run.finish(10)  # after the first wait of 30 s
    began = run.clock.now
    run.dispatcher.start(ping(2))
    run.finish(20)
    assert run.clock.now - began < 1


def test_what_is_learnt_meanwhile_shortens_the_wait() -> None:
    run = OddRun(in_turn(LOST))
    run.dispatcher.start(ping(1))
    run.dispatcher.start(ping(2))
    run.clock.advance(0.4)
    run.clock.advance(0.4)
    run.dispatcher.tick()
    assert run.pool.num_started == 3, "others take 0.1 s, so the first is too old at 0.5 s"


def test_a_slow_pool_is_not_stormed() -> None:
    """Tasks that suddenly take 3 s, not 0.1: attempts come after 0.5 s and 1 s more."""
    slow = Attempt(answers=(3.0,))
    run = OddRun(in_turn(QUICK, QUICK, QUICK, *[slow] * 30))
    warm(run)
    for number in range(10):
        run.dispatcher.start(ping(number))
    run.finish(100)
    assert run.pool.num_started - 3 <= 30
    assert len(run.replies) == 10
    assert not run.dispatcher.degraded
    run.clock.advance(10)
    assert run.dispatcher._times.average("ping") > 0.5, "the kind is known to be slower now"


def test_later_answers_are_dropped_and_counted() -> None:
    run = OddRun(in_turn(Attempt(answers=(0.1, 0.2, 0.3))))
    run.dispatcher.start(ping(1))
    run.finish(5)
    for _ in range(5):
        run.clock.advance(0.1)
    assert [reply.number for reply in run.replies] == [1]
    assert run.dispatcher.counters.duplicates == 2


def test_a_failure_is_tried_again_at_the_next_tick() -> None:
    run = OddRun(in_turn(FAILED, FAILED))
    run.dispatcher.start(ping(1))
    run.clock.advance(0.1)
    run.dispatcher.tick()
    assert run.pool.num_started == 2
    run.finish(10)
    assert run.replies[0].failure == ""
    assert run.dispatcher.counters.failures == 2


def test_what_another_attempt_would_repeat_is_done_here_at_once() -> None:
    run = OddRun(in_turn(Attempt(failure="no memory", is_final=True)))
    run.dispatcher.start(ping(1))
    run.finish(5)
    assert (run.replies[0].failure, run.pool.num_started) == ("", 1)
    assert run.locals[0].num_started == 1


def test_one_task_that_keeps_failing_is_done_here() -> None:
    run = OddRun(lambda task: FAILED if task.number == 1 else QUICK)
    for number in (1, 2, 3):
        run.dispatcher.start(ping(number))
    run.finish(50)
    assert {reply.number for reply in run.replies} == {1, 2, 3}
    assert not run.dispatcher.degraded
    assert run.dispatcher.counters.rescued == 1
    assert run.locals[0].num_started == 1


def test_a_pool_that_fails_on_and_on_is_given_up() -> None:
    run = OddRun(lambda _: FAILED)
    for number in range(8):
        run.dispatcher.start(ping(number))
    run.finish(50)
    assert run.dispatcher.degraded
    assert run.pool.is_closed
    assert len(run.said) == 1
    assert "20" in run.said[0] or "in a row" in run.said[0]
    assert sorted(reply.number for reply in run.replies) == list(range(8))
    run.dispatcher.start(ping(9))
    assert run.replies[-1].number == 9
    assert run.dispatcher.workers == run.locals[0].workers


def test_a_pool_that_falls_silent_is_given_up_after_a_while() -> None:
    run = OddRun(in_turn(QUICK, QUICK, QUICK, *[LOST] * 1000))
    warm(run)
    silent_since = run.clock.now
    for number in range(1000):
        run.dispatcher.start(ping(number))
        run.finish(100)
        if run.dispatcher.degraded:
            break
    assert run.dispatcher.degraded
    assert 30 <= run.clock.now - silent_since < 40
    assert len(run.replies) == number + 1


def test_a_pool_that_raises_is_given_up_at_once() -> None:
    run = OddRun(in_turn(LOST, Attempt(raises=True)))
    run.dispatcher.start(ping(1))
    run.dispatcher.start(ping(2))
    assert run.dispatcher.degraded
    assert {reply.number for reply in run.replies} == {1, 2}
    assert "the pool is gone" in run.said[0]


def test_a_task_is_not_started_twice() -> None:
    run = OddRun(in_turn(LOST))
    run.dispatcher.start(ping(1))
    with pytest.raises(TaskError, match="twice"):
        run.dispatcher.start(ping(1))


def test_pools_are_told_what_the_owner_says() -> None:
    run = OddRun(in_turn())
    run.dispatcher.resize(7)
    run.dispatcher.forget("weights 3")
    assert (run.dispatcher.workers, run.pool.forgotten) == (7, ["weights 3"])
    run.dispatcher.start(ping(1))
    run.dispatcher.close()
    run.clock.advance(1)
    assert run.replies == []


SECONDS = st.sampled_from([0.0, 0.01, 0.3, 0.6, 3.0, 40.0])
FATES = st.one_of(
    st.builds(lambda a: Attempt(answers=tuple(a)), st.lists(SECONDS, min_size=1, max_size=3)),
    st.just(LOST),
    st.builds(lambda a: Attempt(answers=(a,), failure="bad luck"), SECONDS),
    st.just(QUICK),
)


@settings(max_examples=200, deadline=None)
@given(
    fates=st.lists(FATES, max_size=40),
    rest=st.one_of(FATES, st.just(Attempt(raises=True))),
    num_tasks=st.integers(1, 12),
    gaps=st.lists(st.sampled_from([0.0, 0.05, 1.0]), min_size=12, max_size=12),
)
def test_every_task_is_answered_exactly_once(
    fates: list[Attempt], rest: Attempt, num_tasks: int, gaps: list[float]
) -> None:
    remaining = chain(fates, repeat(rest))
    run = OddRun(lambda _: next(remaining))
    for number in range(num_tasks):
        run.dispatcher.start(ping(number, once(number), kind=f"kind {number % 2}"))
        run.clock.advance(gaps[number])
        run.dispatcher.tick()
    run.finish(2000)
    while run.clock.events:
        run.clock.advance(100)
        run.dispatcher.tick()
    assert Counter(reply.number for reply in run.replies) == Counter(range(num_tasks))
    for reply in run.replies:
        assert torch.equal(reply.tensors["out_x"], torch.full((3,), float(reply.number)))
    most = run.dispatcher._policy.most_outstanding + run.dispatcher._policy.most_failures + 1
    assert run.pool.num_started <= num_tasks * most
    assert len(run.said) <= 1


def test_real_threads_answer_every_task_once() -> None:
    replies = Replies()
    before = threading.active_count()
    dispatcher = Dispatcher(lambda d: LocalPool(d, workers=3), replies.deliver, say=print)
    for number in range(200):
        dispatcher.start(ping(number, once(number)))
    wait_until(lambda: dispatcher.tick() >= 0 and not dispatcher.outstanding, "all answers")
    answers = replies.many(200)
    assert all(answers[number].tensors["out_x"][0] == number for number in range(200))
    assert replies.is_empty
    dispatcher.close()
    assert threading.active_count() == before


def test_times_of_a_kind() -> None:
    times = ReplyTimes()
    assert times.average("forward") is None
    times.note("forward", 1.0)
    assert times.average("forward") == 1.0
    for _ in range(99):
        times.note("forward", 1.0)
    times.note("forward", 3.0)
    assert times.average("forward") == pytest.approx(1.1)

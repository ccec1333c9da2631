"""Cloud functions as a model has them: real results, delays that are kept, draws that repeat."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import yaml

from siafu.elastic.dispatch import Dispatcher, RetryPolicy
from siafu.elastic.pools.cloud import CloudModel
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.pools.simulated import SimulatedPool
from siafu.elastic.task import Bundle, Reply, Task, Usage
from siafu.errors import ConfigError, PoolError
from tests.unit.elastic.pings import Replies, once, ping, wait_until


class Instant:
    """An inner pool that answers within `start` and claims to have taken so long."""

    def __init__(self, deliver: Deliver, seconds: float) -> None:
        self._deliver, self._seconds, self.workers = deliver, seconds, 1

    def start(self, task: Task) -> None:
        self._deliver(Reply(task.number, task.tensors(), usage=Usage(seconds=self._seconds)))

    def resize(self, workers: int) -> None: ...

    def forget(self, key: str) -> None: ...

    def close(self) -> None: ...


@contextmanager
def opened(
    model: CloudModel, *, workers: int = 4, seconds: float = 0.0
) -> Iterator[tuple[SimulatedPool, Replies]]:
    """Open a pool whose tasks take `seconds` on this machine; check that it leaves no thread."""
    before, replies = threading.active_count(), Replies()
    pool = SimulatedPool(
        replies.deliver,
        model=model,
        workers=workers,
        seed=3,
        make_inner=lambda deliver: Instant(deliver, seconds),
    )
    yield pool, replies
    pool.close()
    assert threading.active_count() == before


def test_results_are_real() -> None:
    replies = Replies()
    pool = SimulatedPool(replies.deliver, model=CloudModel(), workers=4, seed=0)
    for number in range(50):
        pool.start(ping(number, once(number)))
    answers = replies.many(50)
    assert all(answers[number].tensors["out_x"][0] == number for number in range(50))
    pool.start(ping(50, code="nonsense"))
    assert replies.next().is_final
    pool.close()
    with pytest.raises(PoolError, match="closed"):
        pool.start(ping(1))


@pytest.mark.parametrize("latency", [0.001, 0.2])
def test_latency_is_kept_and_tasks_wait_side_by_side(latency: float) -> None:
    with opened(CloudModel.ideal(latency_seconds=latency), workers=20) as (pool, replies):
        began = time.monotonic()
        for number in range(20):
            pool.start(ping(number, once(number)))
        first = replies.next()
        assert time.monotonic() - began >= latency
        replies.many(19)
        # One after the other they would take 4 s; the shorter latency a busy machine would hide.
        assert latency < 0.2 or time.monotonic() - began < 3
    assert first.usage.seconds == 0


def test_tasks_beyond_the_workers_queue() -> None:
    with opened(CloudModel.ideal(latency_seconds=0.03), workers=2) as (pool, replies):
        began = time.monotonic()
        for number in range(6):
            pool.start(ping(number))
        names = {answer.usage.worker for answer in replies.many(6).values()}
        assert time.monotonic() - began >= 3 * 0.03
    assert names == {"simulated 0", "simulated 1"}


def test_a_slower_worker_takes_longer_and_is_billed_for_it() -> None:
    model = CloudModel(speed=0.25, memory_gb=0.5)
    with opened(model, seconds=0.0101) as (pool, replies):
        began = time.monotonic()
        pool.start(ping(1))
        reply = replies.next()
        assert time.monotonic() - began >= 0.0404
        assert reply.usage.seconds == pytest.approx(0.0404)
        assert pool.bill.requests == 1
        assert pool.bill.seconds == pytest.approx(0.041)


def test_a_straggler_is_busy_longer() -> None:
    model = CloudModel(straggler=1.0, straggler_factor=4)
    with opened(model, seconds=0.01) as (pool, replies):
        pool.start(ping(1))
        assert replies.next().usage.seconds == pytest.approx(0.04)


def test_cold_workers_start_first_and_warm_ones_keep_bundles() -> None:
    model = CloudModel(cold_start_seconds=0.7)
    weights = Bundle("weights", {"w": torch.ones(100)}, "version")
    with opened(model, workers=1) as (pool, replies):
        taken, sent = [], []
        for number in range(3):
            began = time.monotonic()
            pool.start(ping(number, weights, once(number)))
            sent.append(replies.next().usage.sent_bytes)
            taken.append(time.monotonic() - began)
            if number == 1:
                pool.forget("weights")
    assert sent == [412, 12, 412]
    assert taken[0] >= 0.7
    assert taken[1] < 0.7


def test_an_idle_worker_goes_cold() -> None:
    weights = Bundle("weights", {"w": torch.ones(100)}, "version")
    with opened(CloudModel(warm_seconds=0.0), workers=1) as (pool, replies):
        for number in range(2):
            pool.start(ping(number, weights))
            assert replies.next().usage.sent_bytes == 400


def test_bandwidth_falls_with_the_workers_in_use() -> None:
    model = CloudModel.dorylus()
    seconds = [model.transfer_seconds(1_000_000, workers) for workers in (1, 50.5, 100, 500)]
    assert seconds == pytest.approx([0.01, 0.016, 0.04, 0.04])
    assert CloudModel().transfer_seconds(10**9, 100) == 0
    assert CloudModel(bandwidth_alone=8e6).transfer_seconds(10**6, 7) == 1


def test_bytes_take_time_both_ways() -> None:
    with opened(CloudModel(bandwidth_alone=8e6)) as (pool, replies):
        pool.start(ping(1, once(1, rows=2500)))
        usage = replies.next().usage
    assert (usage.sent_bytes, usage.received_bytes) == (10_000, 10_000)
    assert usage.seconds == pytest.approx(0.02)


def test_draws_repeat_and_have_the_stated_chances() -> None:
    model = CloudModel(failure=0.3, loss=0.1, duplicate=0.2, straggler=0.5, straggler_factor=4)
    draws = [model.draw(7, number, 0) for number in range(4000)]
    assert draws == [model.draw(7, number, 0) for number in range(4000)]
    assert draws != [model.draw(8, number, 0) for number in range(4000)]
    assert draws != [model.draw(7, number, 1) for number in range(4000)]
    shares = [
        sum(getattr(draw, name) for draw in draws) / 4000
        for name in ("fails", "is_lost", "is_duplicated")
    ]
    assert shares == pytest.approx([0.3, 0.1, 0.2], abs=0.03)
    assert sum(draw.slowdown for draw in draws) / 4000 == pytest.approx(2.5, abs=0.1)


def test_faults_happen_as_drawn() -> None:
    model = CloudModel(failure=0.3, loss=0.3, duplicate=0.3)
    draws = [model.draw(3, number, 0) for number in range(60)]
    expected = sorted(
        (number, draw.fails)
        for number, draw in enumerate(draws)
        if not draw.is_lost
        for _ in range(1 + draw.is_duplicated)
    )
    with opened(model) as (pool, replies):
        for number in range(60):
            pool.start(ping(number))
        answers = [replies.next() for _ in expected]
        wait_until(lambda: pool.bill.requests == 60, "lost ones to end too")
        assert replies.is_empty
    assert sorted((answer.number, bool(answer.failure)) for answer in answers) == expected
    assert not any(answer.is_final for answer in answers)


def test_another_attempt_has_another_fate() -> None:
    model = CloudModel(failure=0.5)
    with opened(model, workers=1) as (pool, replies):
        failed = []
        for _ in range(20):
            pool.start(ping(5))
            failed.append(bool(replies.next().failure))
    assert failed == [model.draw(3, 5, attempt).fails for attempt in range(20)]
    assert len(set(failed)) == 2


def test_a_dispatcher_makes_up_for_every_mishap() -> None:
    replies, said = Replies(), list[str]()
    model = CloudModel(failure=0.1, loss=0.1, duplicate=0.1, straggler=0.1, latency_seconds=0.001)
    dispatcher = Dispatcher(
        lambda deliver: SimulatedPool(deliver, model=model, workers=8, seed=1),
        replies.deliver,
        say=said.append,
        policy=RetryPolicy(least_seconds=0.05, first_seconds=10.0),
    )
    for number in range(200):
        dispatcher.start(ping(number, once(number)))
    wait_until(lambda: dispatcher.tick() >= 0 and not dispatcher.outstanding, "all answers")
    dispatcher.close()
    answers = replies.many(200)
    assert replies.is_empty
    assert all(answers[number].tensors["out_x"][0] == number for number in range(200))
    assert dispatcher.counters.relaunched > 0
    assert dispatcher.counters.failures > 0
    assert dispatcher.counters.duplicates > 0
    assert not said


def test_resizing_lets_more_tasks_run() -> None:
    with opened(CloudModel.ideal(latency_seconds=30), workers=1) as (pool, _):
        for number in range(5):
            pool.start(ping(number))
        assert len(pool._state.busy) == 1
        pool.resize(3)
        assert (pool.workers, len(pool._state.busy)) == (3, 3)
        with pytest.raises(PoolError, match="needs workers"):
            pool.resize(0)


def test_a_model_is_read_from_a_file() -> None:
    text = "latency_seconds: 0.1\nbandwidth_alone: 8.0e+8\nwarm_seconds: .inf\nmemory_gb: 1\n"
    model = CloudModel.from_mapping(yaml.safe_load(text))
    assert (model.latency_seconds, model.warm_seconds, model.memory_gb) == (0.1, math.inf, 1)
    for wrong, match in (
        ({"latency": 1}, "no such field"),
        ({"loss": 2}, "loss"),
        ({"speed": 0}, "speed"),
        ({"latency_seconds": -1}, "latency_seconds"),
        ({"straggler_factor": 0.5}, "straggler_factor"),
        ({"speed": "quick"}, "no number"),
        ({"bandwidth_crowded": 1e6}, "bandwidth_alone"),
        ({"loss": math.nan}, "loss"),
    ):
        with pytest.raises(ConfigError, match=match):
            CloudModel.from_mapping(wrong)

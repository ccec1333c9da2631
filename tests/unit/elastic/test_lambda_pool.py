"""AWS's own client against a service on loopback: every end of a call is told, none is repeated."""

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from siafu.elastic.aws_lambda import pool as lambda_pool
from siafu.elastic.aws_lambda.pool import open_client
from siafu.elastic.compute import compute
from siafu.elastic.task import Bundle
from siafu.errors import PoolError
from tests.unit.elastic.lambda_service import Answer, billed, pool_at, run_function, service
from tests.unit.elastic.workers import ANSWERS_WITHIN, ping_task

pytestmark = pytest.mark.usefixtures("aws_credentials")


def test_task_runs_in_the_function_as_it_does_here() -> None:
    task = ping_task(3, bundles=(Bundle("input", {"a": torch.randn(50, 4)}, "run"),))
    with service(run_function) as (url, paths), pool_at(url) as (pool, replies):
        pool.start(task)
        reply = replies.get(timeout=ANSWERS_WITHIN)
    assert (reply.number, reply.failure) == (3, "")
    want = compute(task.code, task.facts, task.tensors())
    assert reply.tensors.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(reply.tensors[name], tensor), name
    assert paths == ["/2015-03-31/functions/siafu/invocations"]
    assert reply.usage.sent_bytes > 50 * 4 * 4


def test_constant_bundles_cross_once() -> None:
    constant = Bundle("input", {"a": torch.randn(1000)}, "run")
    with service(run_function) as (url, _), pool_at(url) as (pool, replies):
        sent = []
        for number in range(3):
            pool.start(ping_task(number, bundles=(constant,)))
            reply = replies.get(timeout=ANSWERS_WITHIN)
            assert torch.equal(reply.tensors["out_a"], constant.tensors["a"])
            sent.append(reply.usage.sent_bytes)
    assert sent[0] > 4000 > max(sent[1:])


def test_bill_is_by_the_log_where_there_is_one() -> None:
    def act(event: dict[str, Any]) -> Answer:
        return billed(run_function(event), milliseconds=250, memory_mb=1769)

    with service(act) as (url, _), pool_at(url) as (pool, replies):
        for number in range(2):
            pool.start(ping_task(number))
            assert not replies.get(timeout=ANSWERS_WITHIN).failure
    assert (pool.requests, pool.billed_seconds) == (2, 0.5)
    assert pool.memory_gb == pytest.approx(1769 / 1024)

    with service(run_function) as (url, _), pool_at(url) as (pool, replies):
        pool.start(ping_task(1))
        assert not replies.get(timeout=ANSWERS_WITHIN).failure
    assert pool.requests == 1
    assert 0 < pool.billed_seconds < ANSWERS_WITHIN
    assert pool.memory_gb == 1.0


THROTTLED = Answer(
    b'{"Reason": "ConcurrentInvocationLimitExceeded", "message": "Rate Exceeded."}',
    429,
    {"x-amzn-ErrorType": "TooManyRequestsException"},
)
UNHANDLED = Answer(
    b'{"errorMessage": "out of memory", "errorType": "Runtime.ExitError"}',
    200,
    {"X-Amz-Function-Error": "Unhandled"},
)
BROKEN = Answer(b'{"message": "try later"}', 500, {"x-amzn-ErrorType": "ServiceException"})
ABSENT = Answer(b'{"Message": "no"}', 404, {"x-amzn-ErrorType": "ResourceNotFoundException"})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (THROTTLED, r"throttled by AWS \(TooManyRequestsException\)"),
        (UNHANDLED, r"failed \(Unhandled\): Runtime.ExitError: out of memory"),
        (BROKEN, "refused the call .500 ServiceException"),
        (ABSENT, "refused the call .404 ResourceNotFoundException"),
        (Answer(b"null"), "not one of siafu's function"),
        (Answer(b"\xff\xfe"), "not one of siafu's function"),
        (Answer(b'{"failure": ""}'), "ended without a result"),
        (Answer(b'{"failure": "out of time"}'), "siafu: out of time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_failed_call_is_told_and_made_once(answer: Answer, told: str) -> None:
    with service(lambda _: answer) as (url, paths), pool_at(url) as (pool, replies):
        pool.start(ping_task(9))
        reply = replies.get(timeout=ANSWERS_WITHIN)
    assert reply.number == 9
    assert not reply.is_final
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(reply.failure)
    assert len(paths) == 1
    assert pool.requests == (answer.status == 200)


def test_service_that_is_not_there_is_told() -> None:
    with service(run_function) as (url, _):
        pass
    with pool_at(url) as (pool, replies):
        pool.start(ping_task(1))
        assert "did not come through" in replies.get(timeout=ANSWERS_WITHIN).failure
    assert pool.requests == 0


def test_call_that_is_never_answered_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lambda_pool, "ANSWER_SLACK", 0.0)
    end = threading.Event()

    def hang(_: dict[str, Any]) -> Answer:
        end.wait(ANSWERS_WITHIN)
        return Answer()

    with service(hang) as (url, paths):
        with pool_at(url, deadline_seconds=0.2) as (pool, replies):
            pool.start(ping_task(1))
            assert "did not answer in time" in replies.get(timeout=ANSWERS_WITHIN).failure
        assert pool.billed_seconds >= 0.2
        end.set()
    assert len(paths) == 1


def test_task_naming_unknown_code_fails_for_good() -> None:
    with service(run_function) as (url, _), pool_at(url) as (pool, replies):
        pool.start(replace(ping_task(1), code="os.system"))
        reply = replies.get(timeout=ANSWERS_WITHIN)
        assert reply.is_final
        assert "unknown code" in reply.failure
        pool.start(ping_task(2))
        assert not replies.get(timeout=ANSWERS_WITHIN).failure


def test_at_most_so_many_calls_run_at_once() -> None:
    lock, go = threading.Lock(), threading.Semaphore(0)
    running, most = 0, 0
    arrived = threading.Semaphore(0)

    def act(event: dict[str, Any]) -> Answer:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        arrived.release()
        assert go.acquire(timeout=ANSWERS_WITHIN)
        answer = run_function(event)
        with lock:
            running -= 1
        return answer

    with service(act) as (url, _), pool_at(url, workers=2) as (pool, replies):
        for number in range(6):
            pool.start(ping_task(number))
        for _ in range(2):
            assert arrived.acquire(timeout=ANSWERS_WITHIN)
        assert most == pool.workers == 2
        pool.resize(3)
        assert arrived.acquire(timeout=ANSWERS_WITHIN)
        go.release(6)
        numbers = [replies.get(timeout=ANSWERS_WITHIN).number for _ in range(6)]
    assert sorted(numbers) == list(range(6))
    assert most == 3


def test_two_attempts_at_a_task_are_answered_once() -> None:
    """The slower one is told that the task is done: no failure comes of it."""
    first_is_done = threading.Event()
    calls: list[dict[str, Any]] = []

    def act(event: dict[str, Any]) -> Answer:
        calls.append(event)
        if len(calls) == 1:
            assert first_is_done.wait(ANSWERS_WITHIN)
        return run_function(event)

    with service(act) as (url, _), pool_at(url, workers=2) as (pool, replies):
        task = ping_task(1)
        pool.start(task)
        pool.start(task)
        assert not replies.get(timeout=ANSWERS_WITHIN).failure
        first_is_done.set()
        pool.start(ping_task(2))
        assert replies.get(timeout=ANSWERS_WITHIN).number == 2
    assert replies.empty()
    assert pool.endpoint.refusals == {"done": 1}


def test_close_delivers_nothing_more_and_leaves_no_thread() -> None:
    before = threading.active_count()
    come, go = threading.Event(), threading.Event()

    def act(event: dict[str, Any]) -> Answer:
        come.set()
        assert go.wait(ANSWERS_WITHIN)
        return run_function(event)

    with service(act) as (url, _):
        with pool_at(url) as (pool, replies):
            pool.start(ping_task(1))
            pool.start(ping_task(2))
            assert come.wait(ANSWERS_WITHIN)
            threading.Timer(0.05, go.set).start()
            pool.close()
            pool.start(ping_task(3))
        assert replies.empty()
    assert threading.active_count() == before


def test_close_does_not_wait_long_for_a_function_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lambda_pool, "ENDS_WITHIN", 0.1)
    come, end = threading.Event(), threading.Event()

    def act(_: dict[str, Any]) -> Answer:
        come.set()
        end.wait(ANSWERS_WITHIN)
        return Answer()

    with service(act) as (url, _):
        with pool_at(url) as (pool, replies):
            pool.start(ping_task(1))
            assert come.wait(ANSWERS_WITHIN)
            (call,) = pool._running
            clock = time.monotonic()
            pool.close()
            assert time.monotonic() - clock < ANSWERS_WITHIN / 2
        end.set()
        call.join(ANSWERS_WITHIN)
        assert not call.is_alive()
        assert replies.empty()


def test_failure_holds_no_secret() -> None:
    def act(event: dict[str, Any]) -> Answer:
        seen.update(event)
        return BROKEN

    seen: dict[str, Any] = {}
    with service(act) as (url, _), pool_at(url) as (pool, replies):
        pool.start(ping_task(1))
        text = replies.get(timeout=ANSWERS_WITHIN).failure
    assert seen["client_secret"] not in text
    assert seen["token"] not in text
    json.dumps(seen)


def test_client_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(PoolError, match="can't be made"):
        open_client(deadline_seconds=1.0)

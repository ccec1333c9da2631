"""AWS's client, an emulator of Lambda, the function and the endpoint together; and their deaths."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import zmq

from siafu.elastic.aws_lambda.pool import open_client
from siafu.elastic.compute import compute
from siafu.elastic.task import Bundle
from tests.lambda_emulator import Emulator
from tests.unit.elastic.lambda_service import pool_at
from tests.unit.elastic.workers import invited, listening, ping_task

COLD_WITHIN = 60.0
"""A cold instance imports torch; the machine may be busy with other tests."""


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mark") / "come"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, mark: Path) -> Iterator[Emulator]:
    functions = {
        "broken": {"name": "broken", "handler": "tests/faults/lambda_broken.handler", "timeout": 1},
        "hanging": {
            "name": "hanging",
            "handler": "tests/faults/lambda_hanging.handler",
            "environment": {"SIAFU_TEST_MARK": str(mark)},
        },
    }
    emulator = Emulator(tmp_path_factory.mktemp("lambda"), functions)
    yield emulator
    emulator.kill()


@pytest.fixture
def emulator(service: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The service, running; a test may kill it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    service.start()
    return service


def call(emulator: Emulator, event: dict[str, Any]) -> dict[str, Any]:
    """Return what the function answers to an event."""
    client = open_client(region="x", endpoint_url=emulator.url, deadline_seconds=COLD_WITHIN)
    try:
        answer = client.invoke(FunctionName="siafu", Payload=json.dumps(event).encode())
        return json.loads(answer["Payload"].read())
    finally:
        client.close()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_tasks_run_in_the_emulator_as_they_do_here(emulator: Emulator) -> None:
    constant = Bundle("input", {"a": torch.randn(500, 8)}, "run")
    sent, names = [], set()
    with pool_at(emulator.url, deadline_seconds=COLD_WITHIN) as (pool, replies):
        for number in range(4):
            task = ping_task(number, size=100, bundles=(constant,))
            pool.start(task)
            reply = replies.get(timeout=COLD_WITHIN)
            assert (reply.number, reply.failure) == (number, ""), emulator.log()
            for name, tensor in compute(task.code, task.facts, task.tensors()).items():
                assert torch.equal(reply.tensors[name], tensor), name
            sent.append(reply.usage.sent_bytes)
            names.add(reply.usage.worker)
    assert pool.requests == 4
    assert pool.billed_seconds > 0
    assert pool.memory_gb == 1.0
    # An instance that was here before is not sent the constant input again.
    assert len(names) < 4
    assert sorted(size > constant.num_bytes for size in sent) == [False] * (4 - len(names)) + [
        True
    ] * len(names)


def test_emulator_listens_on_loopback_alone(emulator: Emulator) -> None:
    listeners = [
        connection.laddr.ip
        for process in emulator.processes()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listeners == ["127.0.0.1"]


def test_function_with_a_wrong_key_gets_nothing(emulator: Emulator) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    with listening() as (endpoint, replies):
        right = invited(endpoint, ping_task(1))
        keys = {"client_public": public, "client_secret": secret}
        wrong = right.model_copy(update=keys | {"seconds": 1.0})
        facts = call(emulator, wrong.to_event())
        assert "did not answer in time" in facts["failure"]
        assert facts["received_bytes"] == 0
        assert endpoint.refusals["key"] > 0
        assert call(emulator, right.to_event())["failure"] == ""
        assert replies.get(timeout=COLD_WITHIN).number == 1


def test_replayed_event_is_refused(emulator: Emulator) -> None:
    with listening() as (endpoint, replies):
        event = invited(endpoint, ping_task(1)).to_event()
        assert call(emulator, event)["failure"] == ""
        assert "used" in call(emulator, event)["failure"]
        assert replies.qsize() == 1
        assert endpoint.refusals == {"used": 1}


def test_task_naming_unknown_code_is_refused_by_the_function(emulator: Emulator) -> None:
    with pool_at(emulator.url, deadline_seconds=COLD_WITHIN) as (pool, replies):
        pool.start(replace(ping_task(1), code="os.system"))
        reply = replies.get(timeout=COLD_WITHIN)
    assert "unknown code" in reply.failure
    assert reply.is_final


def test_function_that_dies_is_a_failed_attempt(emulator: Emulator) -> None:
    with pool_at(emulator.url, function="broken") as (pool, replies):
        pool.start(ping_task(1))
        reply = replies.get(timeout=COLD_WITHIN)
    assert reply.number == 1
    assert "broken: the function failed (Unhandled)" in reply.failure
    assert not reply.is_final


def test_function_that_is_not_there_is_a_failed_attempt(emulator: Emulator) -> None:
    with pool_at(emulator.url, function="absent") as (pool, replies):
        pool.start(ping_task(1))
        assert "404 ResourceNotFoundException" in replies.get(timeout=COLD_WITHIN).failure


def test_service_killed_amid_a_task_is_a_failed_attempt(emulator: Emulator, mark: Path) -> None:
    with pool_at(emulator.url, function="hanging", deadline_seconds=COLD_WITHIN) as (pool, replies):
        pool.start(replace(ping_task(1), code="hang"))
        wait_until(mark.exists, COLD_WITHIN)
        emulator.kill()
        reply = replies.get(timeout=COLD_WITHIN)
        assert (reply.number, reply.is_final) == (1, False)
        assert "did not come through" in reply.failure
        pool.start(ping_task(2))
        assert "did not come through" in replies.get(timeout=COLD_WITHIN).failure

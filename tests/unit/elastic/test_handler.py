"""The function inside Lambda: refuses what is no invitation, gives up in time, keeps bundles."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from siafu.elastic.aws_lambda import handler as module
from siafu.elastic.aws_lambda.handler import BundleCache, handler
from siafu.elastic.compute import CODES
from siafu.elastic.task import Bundle, Task
from tests.unit.elastic.workers import ANSWERS_WITHIN, invited, listening, ping_task


class Context:
    """The part of Lambda's context that the function reads."""

    memory_limit_in_mb = "2048"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_instance", module._Instance())


def test_facts_tell_of_the_call(cold: None) -> None:
    with listening() as (endpoint, replies):
        facts = handler(invited(endpoint, ping_task(1)).to_event(), Context(30))
        again = handler(invited(endpoint, ping_task(2)).to_event(), Context(30))
        reply = replies.get(timeout=ANSWERS_WITHIN)
    assert (facts["is_cold"], again["is_cold"]) == (True, False)
    assert facts["worker"] == again["worker"] == reply.usage.worker
    assert (facts["failure"], facts["memory_mb"]) == ("", 2048)
    assert facts["received_bytes"] > reply.usage.sent_bytes > 0
    assert facts["sent_bytes"] > reply.usage.received_bytes > 0
    assert 0 < reply.usage.seconds <= facts["seconds"]


@pytest.mark.parametrize(
    "change",
    [
        {"address": "ipc:///tmp/x"},
        {"address": "tcp://a b:1"},
        {"address": "tcp://host:123456"},
        {"server_key": "short"},
        {"client_secret": 5},
        {"token": "x" * 31},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": "5"},
        {"extra": 1},
    ],
    ids=str,
)
def test_event_that_is_no_invitation_is_refused(change: dict[str, Any]) -> None:
    with listening() as (endpoint, replies):
        event = invited(endpoint, ping_task(1)).to_event()
        failure = str(handler(event | change, None)["failure"])
        assert "no invitation" in failure
        assert event["client_secret"] not in failure
        assert replies.empty()
        assert not handler(event, None)["failure"]


def test_replayed_invitation_is_refused() -> None:
    with listening() as (endpoint, replies):
        event = invited(endpoint, ping_task(1)).to_event()
        assert not handler(event, None)["failure"]
        assert "used" in str(handler(event, None)["failure"])
        assert replies.get(timeout=ANSWERS_WITHIN).number == 1
        assert replies.empty()


def test_endpoint_that_is_gone_is_given_up_in_time() -> None:
    with listening() as (endpoint, _):
        event = invited(endpoint, ping_task(1)).to_event()
    facts = handler(event, Context(0.4))
    assert "did not answer in time" in str(facts["failure"])
    assert facts["seconds"] < ANSWERS_WITHIN


def test_what_goes_wrong_in_the_computation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(facts: Any, tensors: Any) -> Any:
        raise ValueError("shapes differ \ud800")

    def odd(facts: Any, tensors: Any) -> Any:
        return {"out": torch.zeros(1, dtype=torch.complex64)}

    monkeypatch.setitem(CODES, "broken", broken)
    monkeypatch.setitem(CODES, "odd", odd)
    with listening() as (endpoint, replies):
        for code, told in (("broken", "ValueError: shapes differ ?"), ("odd", "doesn't travel")):
            task = Task(len(code), code, code, {}, ())
            facts = handler(invited(endpoint, task).to_event(), None)
            reply = replies.get(timeout=ANSWERS_WITHIN)
            assert told in reply.failure
            assert reply.is_final
            assert facts["failure"] == reply.failure


def test_equal_keys_of_two_runs_are_two_bundles(cold: None) -> None:
    for value in (1.0, 2.0):
        with listening() as (endpoint, replies):
            weights = Bundle("weights 1", {"w": torch.full((3,), value)}, "version")
            for number in range(2):
                task = ping_task(number, bundles=(weights,))
                assert not handler(invited(endpoint, task).to_event(), None)["failure"]
                reply = replies.get(timeout=ANSWERS_WITHIN)
                assert reply.tensors["out_w"].tolist() == [value] * 3


def test_forgotten_bundles_are_let_go(cold: None) -> None:
    with listening() as (endpoint, _):
        weights = [Bundle(f"w{n}", {"w": torch.zeros(10)}, "version") for n in range(2)]
        handler(invited(endpoint, ping_task(0, bundles=(weights[0],))).to_event(), None)
        cache = module._instance.kept
        assert cache is not None
        assert cache.num_bytes == 40
        endpoint.forget("w0")
        handler(invited(endpoint, ping_task(1, bundles=(weights[1],))).to_event(), None)
        assert cache.num_bytes == 40
        assert cache.keys(invited(endpoint, ping_task(2)).server_key, 10) == ("w1",)


def test_cache_keeps_what_was_used_last() -> None:
    cache = BundleCache(100)
    for key in ("a", "b"):
        cache.put("run", Bundle(key, {key: torch.zeros(10)}, "run"))
    assert cache.get("run", "a") is not None
    cache.put("run", Bundle("c", {"c": torch.zeros(10)}, "version"))
    assert cache.get("run", "b") is None
    assert cache.keys("run", 5) == ("c", "a")
    assert cache.keys("run", 1) == ("c",)
    assert cache.keys("other", 5) == ()
    cache.put("run", Bundle("large", {"x": torch.zeros(26)}, "run"))
    cache.put("run", Bundle("once", {"x": torch.zeros(1)}, "once"))
    assert cache.keys("run", 5) == ("c", "a")
    assert cache.num_bytes == 80
    cache.put("run", Bundle("a", {"a": torch.zeros(5)}, "run"))
    assert cache.num_bytes == 60


def test_named_keys_fit_into_a_message() -> None:
    cache = BundleCache(1 << 20)
    for number in range(300):
        cache.put("run", Bundle("k" * 250 + f"{number}", {"x": torch.zeros(1)}, "run"))
    assert 100 < len(cache.keys("run", 200)) < 150


def test_function_needs_no_package_beyond_its_image() -> None:
    """With the packages that `packaging/lambda/requirements.txt` leaves out, gone."""
    absent = ("boto3", "botocore", "ray", "pymetis", "typer", "torch_geometric", "scipy")
    load = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    load += "import siafu.elastic.aws_lambda.handler"
    subprocess.run([sys.executable, "-c", load], timeout=60, check=True)

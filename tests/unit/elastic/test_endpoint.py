"""The endpoint gives each task to invited workers alone, once; everybody else gets nothing."""

import gc
import socket
import threading
import time
from contextlib import suppress
from queue import Empty

import psutil
import pytest
import torch
import zmq

from siafu.elastic.aws_lambda.endpoint import Endpoint
from siafu.elastic.messages import decode, encode, order_frames
from siafu.elastic.options import LOOPBACK, address_of_rank, is_private, own_host
from siafu.elastic.task import Bundle, Task
from siafu.errors import ConfigError, PoolError
from tests.unit.elastic.workers import (
    ANSWERS_WITHIN,
    STORED,
    fetch,
    invited,
    listening,
    notice,
    ping_task,
    worker,
)

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)
WELCOME = zmq.EVENT_HANDSHAKE_SUCCEEDED


def free_port() -> int:
    """Return a port that is free, and the one after it too, on two addresses of loopback."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
            with suppress(OSError, OverflowError), socket.create_server(("127.0.0.2", port + 1)):
                return int(port)


def test_worker_fetches_and_its_result_is_delivered() -> None:
    with listening() as (endpoint, replies):
        task = ping_task(7)
        with worker(invited(endpoint, task)) as client:
            order = client.fetch()
            assert order.code == "ping"
            assert order.facts == {"part": 1}
            tensors = {"out": torch.randn(3)}
            assert client.push(tensors=tensors) == STORED

        reply = replies.get(timeout=ANSWERS_WITHIN)
        assert (reply.number, reply.failure) == (7, "")
        assert torch.equal(reply.tensors["out"], tensors["out"])
        assert (reply.usage.worker, reply.usage.started, reply.usage.seconds) == ("tester", 1, 0.5)
        assert reply.usage.sent_bytes > 5 * 8
        assert reply.usage.received_bytes > 3 * 4
        assert not endpoint.refusals


def test_failure_is_delivered_and_leaves_the_task_open() -> None:
    with listening() as (endpoint, replies):
        task = ping_task(1)
        first, second = invited(endpoint, task), invited(endpoint, task)
        with worker(first) as client:
            client.fetch()
            assert client.push(failure="no memory", is_final=True) == STORED
        reply = replies.get(timeout=ANSWERS_WITHIN)
        assert (reply.failure, reply.is_final) == ("no memory", True)
        with worker(second) as client:
            assert client.fetch().code == "ping"
        assert not endpoint.withdraw(first.token)
        assert endpoint.withdraw(second.token)


@pytest.mark.parametrize("change", ["client", "server", "none"])
def test_client_without_the_right_keys_gets_nothing(change: str) -> None:
    with listening() as (endpoint, replies):
        invitation = invited(endpoint, ping_task(1))
        public, secret = (key.decode() for key in zmq.curve_keypair())
        keys = {
            "client": {"client_public": public, "client_secret": secret},
            "server": {"server_key": public},
            "none": {"client_secret": None},
        }[change]
        with worker(invitation, **keys) as client:
            client.socket.send_multipart(fetch(invitation.token))
            assert client.wait_for(*FAILED, zmq.EVENT_DISCONNECTED, WELCOME) != WELCOME
            assert not client.socket.poll(0)
        # Nothing of it reached the token, and the right client is served beside it.
        assert endpoint.refusals["key"] >= (change == "client")
        with worker(invitation) as client:
            assert client.fetch().code == "ping"
        assert replies.empty()


def test_keys_are_new_in_each_run() -> None:
    with listening() as (one, _), listening() as (other, _):
        mine, yours = invited(one, ping_task(1)), invited(other, ping_task(1))
        assert mine.server_key != yours.server_key
        assert mine.client_secret != yours.client_secret
        assert mine.token != yours.token
        assert mine.client_secret not in repr(mine)


def test_replayed_messages_are_refused() -> None:
    with listening() as (endpoint, replies):
        with worker(invited(endpoint, ping_task(1))) as client:
            client.fetch()
            assert client.ask(fetch(client.token)) == notice("used")
            client.push(tensors={"out": torch.zeros(1)})
            assert client.push(tensors={"out": torch.ones(1)}) == notice("used")
            assert client.ask(fetch(client.token)) == notice("used")
        assert endpoint.refusals == {"used": 3}
        assert replies.get(timeout=ANSWERS_WITHIN).tensors["out"].item() == 0
        assert replies.empty()


def test_tokens_that_are_unknown_expired_or_out_of_turn_are_refused() -> None:
    with listening() as (endpoint, replies):
        with worker(invited(endpoint, ping_task(1), seconds=1e-9)) as client:
            assert client.ask(fetch("u" * 32)) == notice("unknown")
            assert client.ask(fetch(client.token)) == notice("expired")
        withdrawn = invited(endpoint, ping_task(2))
        assert endpoint.withdraw(withdrawn.token)
        with worker(withdrawn) as client:
            assert client.ask(fetch(client.token)) == notice("unknown")
        with worker(invited(endpoint, ping_task(3))) as client:
            assert client.push(tensors={}) == notice("unfetched")
        assert endpoint.refusals == {"unknown": 2, "expired": 1, "unfetched": 1}
        assert replies.empty()


def test_late_duplicate_is_told_that_the_task_is_done() -> None:
    with listening() as (endpoint, replies):
        task = ping_task(4)
        first, late, later = (invited(endpoint, task) for _ in range(3))
        with worker(late) as slow:
            slow.fetch()
            with worker(first) as quick:
                quick.fetch()
                assert quick.push(tensors={}) == STORED
            assert slow.push(tensors={"out": torch.ones(1)}) == notice("done")
        with worker(later) as client:
            assert client.ask(fetch(client.token)) == notice("done")
        assert endpoint.invite(task, 1.0) is None
        assert not endpoint.withdraw(late.token)
        assert replies.get(timeout=ANSWERS_WITHIN).number == 4
        assert replies.empty()


def test_oversized_messages_are_refused() -> None:
    with listening(most_bytes=100_000) as (endpoint, replies):
        invitation = invited(endpoint, ping_task(1))
        with worker(invitation) as client:
            client.fetch()
            # Two frames that are within the limit, but not together.
            tensors = {"a": torch.zeros(15_000), "b": torch.zeros(15_000)}
            assert client.push(tensors=tensors) == notice("message")
            assert client.ask([b" " * 70_000]) == notice("message")
            # One frame beyond it: it isn't even read to its end.
            client.socket.send(b"\0" * 1_000_000)
            client.wait_for(zmq.EVENT_DISCONNECTED)
        assert endpoint.refusals == {"message": 2}
        assert replies.empty()
        with worker(invitation) as client:
            assert client.push(tensors={"a": torch.zeros(3)}) == STORED


def test_messages_that_make_no_sense_are_refused_and_the_endpoint_goes_on() -> None:
    with listening() as (endpoint, _):
        with worker(invited(endpoint, ping_task(1))) as client:
            odd = [[b"{}"], [b""], [b"\xff" * 10, b"x"], [b""] * 500, encode(STORED)]
            for frames in odd:
                assert client.ask(frames) == notice("message")
            assert client.ask(order_frames("ping", {}, ())) == notice("message")
            assert client.fetch().code == "ping"
        assert endpoint.refusals == {"message": len(odd) + 1}


def test_task_that_does_not_fit_into_a_message_fails_for_good() -> None:
    with listening() as (endpoint, replies):
        rows = Bundle("rows", {"x": torch.zeros(2, dtype=torch.complex64)}, "once")
        with worker(invited(endpoint, Task(5, "ping", "ping", {}, (rows,)))) as client:
            assert client.ask(fetch(client.token)) == notice("task")
        reply = replies.get(timeout=ANSWERS_WITHIN)
        assert reply.is_final
        assert "complex64" in reply.failure


def test_bundles_that_a_worker_holds_are_not_sent_again() -> None:
    constant = Bundle("input", {"a": torch.zeros(1000)}, "run")
    weights = Bundle("weights 1", {"w": torch.zeros(1000)}, "version")
    with listening() as (endpoint, _):
        with worker(invited(endpoint, ping_task(1, bundles=(constant, weights)))) as client:
            order = client.fetch()
            assert [bundle.key for bundle in order.bundles] == ["input", "weights 1", "once 1"]
        with worker(invited(endpoint, ping_task(2, bundles=(constant, weights)))) as client:
            order = client.fetch("weights 1", "input", "another", "once 2")
            assert [bundle.key for bundle in order.bundles] == ["once 2"]
            assert set(order.held) == {"input", "weights 1"}
            assert not order.forgotten
        endpoint.forget("weights 1")
        with worker(invited(endpoint, ping_task(3, bundles=(constant,)))) as client:
            assert client.fetch("weights 1", "input").forgotten == ("weights 1",)


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    def listeners() -> set[tuple[str, int]]:
        mine = psutil.Process().net_connections("tcp")
        return {tuple(one.laddr) for one in mine if one.status == psutil.CONN_LISTEN}

    others = listeners()

    def addresses() -> set[str]:
        return {host for host, _ in listeners() - others}

    with listening() as (endpoint, _):
        assert endpoint.bound.startswith("tcp://127.0.0.1:")
        assert addresses() == {"127.0.0.1"}


@pytest.mark.parametrize("text", ["tcp://*:5000", "tcp://0.0.0.0:5000", "tcp://[::]:5000"])
def test_address_that_stands_for_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="can't connect"):
        address_of_rank(text, 0)
    with pytest.raises(ConfigError, match="No address"):
        address_of_rank(text.replace("tcp", "ipc"), 0)


def test_ranks_listen_at_ports_of_their_own() -> None:
    assert address_of_rank(None, 3) == LOOPBACK
    assert address_of_rank("tcp://10.0.0.5:7000", 3) == "tcp://10.0.0.5:7003"
    for wrong in ("tcp://10.0.0.5", "10.0.0.5:7000", "tcp://10.0.0.5:x", "tcp://10.0.0.5:65533"):
        with pytest.raises(ConfigError, match="No address"):
            address_of_rank(wrong, 3)


def test_ranks_on_two_machines_are_reached_each_at_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Loopback's whole network is one machine's own, so two of its addresses stand for two machines.
    own = iter(["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr("siafu.elastic.options.own_host", lambda: next(own))
    first = free_port()
    told = [address_of_rank(f"tcp://auto:{first}", rank) for rank in range(2)]
    with listening(address=told[0]) as (one, _), listening(address=told[1]) as (other, answers):
        assert invited(one, ping_task(1)).address == f"tcp://127.0.0.1:{first}"
        invitation = invited(other, ping_task(2))
        assert invitation.address == f"tcp://127.0.0.2:{first + 1}"
        with worker(invitation) as client:
            client.fetch()
            assert client.push(tensors={}) == STORED
        assert answers.get(timeout=ANSWERS_WITHIN).number == 2


def test_an_interface_stands_for_its_address_on_each_machine() -> None:
    with listening(address="tcp://lo:*") as (endpoint, _):
        assert invited(endpoint, ping_task(1)).address.startswith("tcp://127.0.0.1:")


def test_own_host_is_an_address_of_this_machine() -> None:
    found = {entry.address for each in psutil.net_if_addrs().values() for entry in each}
    try:
        own = own_host()
    except PoolError:
        pytest.skip("a machine without a network")
    assert own in found


def test_a_machine_without_a_network_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siafu.elastic.options._ELSEWHERE", ("255.255.255.255", 9))
    with pytest.raises(PoolError, match="name the interface"):
        own_host()


@pytest.mark.parametrize("host", ["203.0.113.77", "nosuch0"])
def test_an_address_of_another_machine_is_told_with_what_works(host: str) -> None:
    with pytest.raises(PoolError, match="tcp://auto:PORT"):
        Endpoint(print, address=address_of_rank(f"tcp://{host}:7000", 1))


def test_address_in_use_is_told() -> None:
    before = threading.active_count()
    with listening() as (endpoint, _), pytest.raises(PoolError, match="can't listen"):
        Endpoint(print, address=endpoint.bound)
    assert threading.active_count() == before


def test_close_ends_its_thread_and_sockets_at_once() -> None:
    before = threading.active_count(), psutil.Process().num_fds()
    with listening() as (endpoint, replies), worker(invited(endpoint, ping_task(1))) as client:
        client.fetch()
        clock = time.perf_counter()
        endpoint.close()
        endpoint.close()
        assert time.perf_counter() - clock < ANSWERS_WITHIN
    with pytest.raises(Empty):
        replies.get_nowait()
    assert threading.active_count() == before[0]
    assert psutil.Process().num_fds() <= before[1]


def test_dismissed_workers_are_told_to_end() -> None:
    with listening() as (endpoint, replies):
        invitation = invited(endpoint, ping_task(1))
        with worker(invitation) as client:
            client.fetch()
            endpoint.dismiss()
            assert client.push(tensors={}) == notice("done")
        assert not endpoint.withdraw(invitation.token)
        assert endpoint.invite(ping_task(2), 1.0) is None
        assert replies.empty()


def test_in_clear_the_key_still_decides() -> None:
    with listening(encrypted=False) as (endpoint, replies):
        task = ping_task(3)
        with worker(invited(endpoint, task)) as client:
            client.fetch()
            assert client.push(tensors={"out": torch.ones(2)}) == STORED
        assert replies.get(timeout=ANSWERS_WITHIN).number == 3
        for changes in ({"client_secret": "x" * 40}, {"client_public": "x" * 40}):
            with worker(invited(endpoint, ping_task(4)), **changes) as stranger:
                assert stranger.wait_for(*FAILED, WELCOME) in FAILED
        with worker(invited(endpoint, ping_task(5)), encrypted=True) as other:
            assert other.wait_for(*FAILED, WELCOME) in FAILED
        assert endpoint.refusals["key"] >= 2


def test_an_encrypted_endpoint_takes_no_key_in_clear() -> None:
    with (
        listening() as (endpoint, _),
        worker(invited(endpoint, ping_task(1)), encrypted=False) as client,
    ):
        assert client.wait_for(*FAILED, WELCOME) in FAILED


def test_in_clear_only_in_a_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [is_private(host) for host in ("10.1.2.3", "127.0.0.1", "[fd00::1]", "8.8.8.8")] == [
        True,
        True,
        True,
        False,
    ]
    monkeypatch.setattr("siafu.elastic.aws_lambda.endpoint.is_private", lambda host: False)
    with pytest.raises(PoolError, match="in clear"):
        Endpoint(lambda reply: None, encrypted=False)
    Endpoint(lambda reply: None).close()


@pytest.mark.parametrize("encrypted", [True, False])
def test_large_tensors_arrive_whole_and_may_be_written(encrypted: bool) -> None:
    sent = torch.randn(40_000)
    with listening(encrypted=encrypted) as (endpoint, replies):
        bundle = Bundle("x", {"x": sent}, "once")
        with worker(invited(endpoint, Task(1, "ping", "ping", {}, (bundle,)))) as client:
            client.socket.send_multipart(fetch(client.token))
            frames = [part.buffer for part in client.socket.recv_multipart(copy=False)]
            _, blocks = decode(frames)
            assert torch.equal(blocks[0]["x"], sent)
            assert client.push(tensors={"out": sent}) == STORED
        out = replies.get(timeout=ANSWERS_WITHIN).tensors["out"]
    del frames
    gc.collect()
    assert torch.equal(out, sent)
    assert float(out.add_(1).sum()) == pytest.approx(float((sent + 1).sum()))

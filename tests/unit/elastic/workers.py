"""Clients of an endpoint that say what a test wants them to say, and tasks to give to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import torch
import zmq
from zmq.utils.monitor import parse_monitor_message

from siafu.elastic.aws_lambda.endpoint import Endpoint
from siafu.elastic.messages import (
    Fetch,
    Frame,
    Invitation,
    Notice,
    Order,
    RemoteMessage,
    decode,
    encode,
    result_frames,
)
from siafu.elastic.task import Bundle, Reply, Task, Tensors

ANSWERS_WITHIN = 60.0
"""Far more than any answer takes: only a failing test waits so long."""


def ping_task(number: int, *, size: int = 5, bundles: tuple[Bundle, ...] = ()) -> Task:
    mine = Bundle(f"once {number}", {"x": torch.arange(size) + number}, "once")
    return Task(number, "ping", "ping", {"part": 1}, (*bundles, mine))


def invited(endpoint: Endpoint, task: Task, seconds: float = 30.0) -> Invitation:
    invitation = endpoint.invite(task, seconds)
    assert invitation is not None
    return invitation


def fetch(token: str, *held: str) -> list[Frame]:
    return encode(Fetch.of(token=token, held=held))


def notice(text: str) -> Notice:
    return Notice.of(text=text)


def result(token: str, worker: str, tensors: Tensors | None = None, **changes: Any) -> list[Frame]:
    fields = {"started": 1.0, "seconds": 0.5, "failure": "", "is_final": False, **changes}
    return result_frames(tensors or {}, token=token, worker=worker, **fields)


class Worker:
    """One connection; `ask` waits for an answer, `event` for something that happens to it."""

    def __init__(self, socket: zmq.Socket, invitation: Invitation) -> None:
        self.socket, self.token = socket, invitation.token
        self.monitor = socket.get_monitor_socket()
        self.monitor.linger = 0
        socket.connect(invitation.address)

    def ask(self, frames: list[Any]) -> RemoteMessage:
        self.socket.send_multipart(frames)
        assert self.socket.poll(int(ANSWERS_WITHIN * 1000)), "no answer"
        return decode(self.socket.recv_multipart())[0]

    def fetch(self, *held: str) -> Order:
        order = self.ask(fetch(self.token, *held))
        assert isinstance(order, Order), order
        return order

    def push(self, **changes: Any) -> RemoteMessage:
        return self.ask(result(self.token, "tester", **changes))

    def wait_for(self, *events: int) -> int:
        """Return which of some events of the connection came first."""
        while True:
            assert self.monitor.poll(int(ANSWERS_WITHIN * 1000)), "nothing happened"
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            if event in events:
                return int(event)


@contextmanager
def worker(invitation: Invitation, **changes: Any) -> Iterator[Worker]:
    """Yield a connected client with the right keys, or with others; without any for `None`."""
    changed = {name: key for name, key in changes.items() if key is not None}
    keys = invitation.model_copy(update=changed)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if not keys.encrypted:
            socket.plain_username = keys.client_public.encode()
            socket.plain_password = keys.client_secret.encode()
        elif None not in changes.values():
            socket.curve_serverkey = keys.server_key.encode()
            socket.curve_publickey = keys.client_public.encode()
            socket.curve_secretkey = keys.client_secret.encode()
        client = Worker(socket, keys)
        try:
            yield client
        finally:
            socket.disable_monitor()
            client.monitor.close()


@contextmanager
def listening(**settings: Any) -> Iterator[tuple[Endpoint, "Queue[Reply]"]]:
    """Yield an endpoint and what it delivers."""
    replies: Queue[Reply] = Queue()
    endpoint = Endpoint(replies.put, **settings)
    try:
        yield endpoint, replies
    finally:
        endpoint.close()


STORED = notice("stored")

"""Clients of an endpoint that say what a test wants them to say, and tasks to give to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Queue
from typing import Any

import torch
import zmq
from zmq.utils.monitor import parse_monitor_message

from siafu.elastic.aws_lambda.endpoint import Endpoint
from siafu.elastic.invitation import Invitation
from siafu.elastic.messages import Fetch, Message, Notice, Order, Result, decode, encode
from siafu.elastic.task import Bundle, Reply, Task

ANSWERS_WITHIN = 60.0
"""Far more than any answer takes: only a failing test waits so long."""


def ping_task(number: int, *, size: int = 5, bundles: tuple[Bundle, ...] = ()) -> Task:
    mine = Bundle(f"once {number}", {"x": torch.arange(size) + number}, "once")
    return Task(number, "ping", "ping", {"part": 1}, (*bundles, mine))


def invited(endpoint: Endpoint, task: Task, seconds: float = 30.0) -> Invitation:
    invitation = endpoint.invite(task, seconds)
    assert invitation is not None
    return invitation


class Worker:
    """One connection; `ask` waits for an answer, `event` for something that happens to it."""

    def __init__(self, socket: zmq.Socket, invitation: Invitation) -> None:
        self.socket, self.token = socket, invitation.token
        self.monitor = socket.get_monitor_socket()
        self.monitor.linger = 0
        socket.connect(invitation.address)

    def ask(self, message: Message | list[Any]) -> Message:
        self.socket.send_multipart(message if isinstance(message, list) else encode(message))
        assert self.socket.poll(int(ANSWERS_WITHIN * 1000)), "no answer"
        return decode(self.socket.recv_multipart())

    def fetch(self, *held: str) -> Order:
        order = self.ask(Fetch(self.token, held))
        assert isinstance(order, Order), order
        return order

    def push(self, **result: Any) -> Message:
        return self.ask(Result(self.token, "tester", 1.0, 0.5, **result))

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
    keys = replace(invitation, **{name: key for name, key in changes.items() if key is not None})
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if None not in changes.values():
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


STORED = Notice("stored")

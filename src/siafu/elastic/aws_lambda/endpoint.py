"""The graph server's side of a pool on other machines: a socket where workers fetch and push.

Everything is encrypted and authenticated by CURVE. Each run has a fresh pair of server keys and one
fresh pair of client keys; who lacks the latter gets no answer at all. It listens on loopback unless
it is given another address. In a private network encryption may be left out, if the run says so:
who lacks the client key is still refused, but key and tensors travel in clear.
"""

import hmac
import os
import secrets
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85

from siafu.elastic.messages import (
    MOST_BYTES,
    STORED,
    Fetch,
    Frame,
    Invitation,
    Notice,
    Result,
    decode,
    encode,
    order_frames,
)
from siafu.elastic.options import LOOPBACK, is_private
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.task import Reply, Task, Tensors, Usage
from siafu.errors import PoolError, TaskError

MOST_REMEMBERED = 1 << 16
"""Answered tasks and forgotten keys that are remembered; older ones are never asked for."""


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """Why a token is not good (any more): `unknown`, `expired`, `used`, `unfetched` or `done`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(eq=False, slots=True)
class Attempt:
    """One invitation of a worker to a task."""

    task: Task
    expires: float
    """By the monotonic clock."""
    is_fetched: bool = False
    is_finished: bool = False
    """True once its worker has pushed a result or a failure."""
    sent_bytes: int = 0


class Attempts:
    """Those under way. Each token fetches once and pushes once, within its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_token: dict[str, Attempt] = {}
        self._answered: OrderedDict[int, None] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._is_dismissed = False

    def add(self, token: str, attempt: Attempt) -> bool:
        """Take up an attempt; return False for a task that needs none."""
        with self._lock:
            if self._is_done(attempt):
                return False
            self._by_token[token] = attempt
            return True

    def _is_done(self, attempt: Attempt) -> bool:
        return self._is_dismissed or attempt.task.number in self._answered

    def fetch(self, token: str) -> Attempt:
        """Return the attempt whose task is fetched now; raise Refusal for a bad token."""
        with self._lock:
            attempt = self._find(token)
            if attempt.is_fetched:
                raise Refusal("used")
            attempt.is_fetched = True
            return attempt

    def finish(self, token: str, *, is_answer: bool) -> Attempt:
        """Return the attempt that is over now; raise Refusal for a bad token.

        An answer also ends all other attempts at its task.
        """
        with self._lock:
            attempt = self._find(token)
            if not attempt.is_fetched:
                raise Refusal("unfetched")
            attempt.is_finished = True
            if is_answer:
                _remember(self._answered, attempt.task.number)
            return attempt

    def _find(self, token: str) -> Attempt:
        attempt = self._by_token.get(token)
        if attempt is None:
            raise Refusal("unknown")
        if attempt.is_finished:
            raise Refusal("used")
        if self._is_done(attempt):
            raise Refusal("done")
        if time.monotonic() > attempt.expires:
            raise Refusal("expired")
        return attempt

    def remove(self, token: str) -> bool:
        """Drop an attempt; return True if its task still wanted an answer from it."""
        with self._lock:
            attempt = self._by_token.pop(token, None)
            return attempt is not None and not (attempt.is_finished or self._is_done(attempt))

    def forget(self, key: str) -> None:
        """Note a bundle that no later task names."""
        with self._lock:
            _remember(self._forgotten, key)

    def order(self, task: Task, held: tuple[str, ...]) -> list[Frame]:
        """Return the frames of a task for a worker that holds some bundles."""
        with self._lock:
            forgotten = tuple(key for key in held if key in self._forgotten)
        kept = {bundle.key for bundle in task.bundles if bundle.lifetime != "once"} & set(held)
        missing = tuple(bundle for bundle in task.bundles if bundle.key not in kept)
        unused = tuple(key for key in forgotten if key not in kept)
        return order_frames(task.code, task.facts, missing, tuple(sorted(kept)), unused)

    def dismiss(self) -> None:
        """Treat all tasks as answered."""
        with self._lock:
            self._is_dismissed = True


def _remember(names: OrderedDict[Any, None], name: Any) -> None:
    names[name] = None
    if len(names) > MOST_REMEMBERED:
        names.popitem(last=False)


SLACK_BYTES = 1024
"""What encryption adds to a frame, and more."""
BACKLOG = 1024
"""Workers that may knock at the same moment."""
CLOSES_WITHIN = 10.0
IO_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""ZeroMQ's threads, which move bytes and encrypt them."""
HEARTBEAT_MS = 5_000
DEAD_AFTER_MS = 20_000


class Endpoint:
    """Gives tasks to workers that were invited, and delivers what they push.

    One thread decides; ZeroMQ's own threads move bytes and encrypt them, tensors from where they
    lie. `refusals` counts what was refused, by reason.
    """

    def __init__(
        self,
        deliver: Deliver,
        *,
        address: str = LOOPBACK,
        most_bytes: int = MOST_BYTES,
        encrypted: bool = True,
    ) -> None:
        self._deliver, self._most_bytes, self._encrypted = deliver, most_bytes, encrypted
        self._attempts = Attempts()
        self.refusals: Counter[str] = Counter()
        server_public, self._server_secret = zmq.curve_keypair()
        self._server_key = server_public.decode()
        client_public, client_secret = zmq.curve_keypair()
        self._client = (client_public.decode(), client_secret.decode())
        self._wanted = z85.decode(client_public) if encrypted else client_public + client_secret
        """What a client's credentials are to be."""
        self._context = zmq.Context(io_threads=IO_THREADS)
        try:
            self._open(address)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._serve, name="siafu-endpoint", daemon=True)
        self._thread.start()

    def _open(self, address: str) -> None:
        # Authentication comes first: from the first moment no client is let in unasked.
        self._authenticator = self._context.socket(zmq.REP)
        self._authenticator.bind("inproc://zeromq.zap.01")
        self._stop_receiver = self._context.socket(zmq.PAIR)
        self._stop_receiver.bind("inproc://stop")
        self._stop_sender = self._context.socket(zmq.PAIR)
        self._stop_sender.connect("inproc://stop")
        self._socket = self._context.socket(zmq.ROUTER)
        if self._encrypted:
            self._socket.curve_server = True
            self._socket.curve_secretkey = self._server_secret
        else:
            self._socket.plain_server = True
        self._socket.zap_domain = b"siafu"
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, self._most_bytes + SLACK_BYTES)
        self._socket.setsockopt(zmq.BACKLOG, BACKLOG)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, DEAD_AFTER_MS)
        self._socket.linger = 0
        self._socket.ipv6 = "[" in address
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise PoolError(
                "The pool's endpoint can't listen there.",
                seen=f"{address}: {error}",
                fix="name a free port, and an address or an interface that this machine has; "
                "tcp://auto:PORT takes each machine's own",
            ) from error
        self.bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        host = self.bound.removeprefix("tcp://").rpartition(":")[0]
        if not self._encrypted and not is_private(host):
            raise PoolError(
                "Tensors would travel in clear where others may read them.",
                seen=f"--no-pool-encryption at {self.bound}, which is no private address",
                fix="leave the encryption on, or name an address of a private network",
            )

    def invite(self, task: Task, seconds: float) -> Invitation | None:
        """Return what one attempt at the task needs; None for a task that is answered already."""
        token = secrets.token_urlsafe(24)
        if not self._attempts.add(token, Attempt(task, time.monotonic() + seconds)):
            return None
        return Invitation(
            address=self.bound,
            server_key=self._server_key,
            client_public=self._client[0],
            client_secret=self._client[1],
            token=token,
            seconds=seconds,
            encrypted=self._encrypted,
        )

    def withdraw(self, token: str) -> bool:
        """End an attempt; return True if its task still wants an answer from it."""
        return self._attempts.remove(token)

    def forget(self, key: str) -> None:
        """Have workers let go of a bundle, each when it fetches next."""
        self._attempts.forget(key)

    def dismiss(self) -> None:
        """Want no more answers: workers that come are told to end."""
        self._attempts.dismiss()

    def close(self) -> None:
        """Stop listening; nothing is delivered afterwards."""
        if self._context.closed:
            return
        self.dismiss()
        self._stop_sender.send(b"")
        self._thread.join(CLOSES_WITHIN)
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._authenticator, self._stop_receiver, self._socket):
            poller.register(socket, zmq.POLLIN)
        while True:
            # No deadline here: the stop socket ends it.
            ready = dict(poller.poll())
            if self._authenticator in ready:
                self._admit()
            if self._socket in ready:
                self._answer()
            if self._stop_receiver in ready:
                return

    def _admit(self) -> None:
        """Let one client in, or not: ZeroMQ's authentication protocol (RFC 27)."""
        version, request, _, _, _, mechanism, *credentials = self._authenticator.recv_multipart()
        wanted = b"CURVE" if self._encrypted else b"PLAIN"
        is_right = mechanism == wanted and hmac.compare_digest(b"".join(credentials), self._wanted)
        if not is_right:
            self.refusals["key"] += 1
        code, text = (b"200", b"") if is_right else (b"400", b"refused")
        self._authenticator.send_multipart([version, request, code, text, b"", b""])

    def _answer(self) -> None:
        identity, *parts = self._socket.recv_multipart(copy=False)
        frames = [part.buffer for part in parts]
        try:
            message, blocks = decode(frames, most_bytes=self._most_bytes)
        except TaskError:
            self._refuse(identity.bytes, "message")
            return
        try:
            if isinstance(message, Fetch):
                self._give(identity.bytes, message)
            elif isinstance(message, Result):
                num_bytes = sum(len(frame) for frame in frames)
                self._take(identity.bytes, message, blocks[0], num_bytes)
            else:
                self._refuse(identity.bytes, "message")
        except Refusal as refusal:
            self._refuse(identity.bytes, refusal.reason)

    def _give(self, identity: bytes, message: Fetch) -> None:
        attempt = self._attempts.fetch(message.token)
        try:
            frames = self._attempts.order(attempt.task, message.held)
        except TaskError as error:
            # The task itself doesn't fit into a message: no other attempt would fare better.
            self._attempts.finish(message.token, is_answer=False)
            self._refuse(identity, "task")
            self._deliver(Reply(attempt.task.number, failure=f"{error}", is_final=True))
            return
        attempt.sent_bytes = sum(len(frame) for frame in frames)
        # Bundles never change, so they are sent from where they lie.
        self._socket.send_multipart([identity, *frames], copy=False)

    def _take(self, identity: bytes, result: Result, tensors: Tensors, num_bytes: int) -> None:
        attempt = self._attempts.finish(result.token, is_answer=not result.failure)
        self._say(identity, STORED)
        usage = Usage(result.worker, result.started, result.seconds, attempt.sent_bytes, num_bytes)
        number = attempt.task.number
        if result.failure:
            failed = Reply(number, failure=result.failure, is_final=result.is_final, usage=usage)
            self._deliver(failed)
        else:
            self._deliver(Reply(number, tensors, usage=usage))

    def _refuse(self, identity: bytes, reason: str) -> None:
        self.refusals[reason] += 1
        self._say(identity, reason)

    def _say(self, identity: bytes, text: str) -> None:
        self._socket.send_multipart([identity, *encode(Notice.of(text=text))])

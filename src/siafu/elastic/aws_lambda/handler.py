"""The function that runs in AWS Lambda: fetch a task, compute it, push what came out.

It is stateless but for bundles that a warm instance keeps. Expected failures are told in the
answer instead of raised, so that the instance stays warm.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import zmq

from siafu.elastic.compute import compute
from siafu.elastic.messages import (
    MOST_BYTES,
    MOST_KEYS,
    STORED,
    Fetch,
    Frame,
    Invitation,
    Notice,
    Order,
    RemoteMessage,
    clipped,
    decode,
    encode,
    read_invitation,
    result_frames,
)
from siafu.elastic.task import Bundle, Fact, Tensors
from siafu.errors import PoolError, SiafuError, TaskError

MOST_KEY_BYTES = 32 << 10
"""Of the keys named in one message: half of a header."""


class BundleCache:
    """The bundles used last. Keys are those of one run: equal keys of two runs are two bundles."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self.num_bytes = most_bytes, 0
        self._bundles: OrderedDict[tuple[str, str], Bundle] = OrderedDict()

    def keys(self, run: str, most: int) -> tuple[str, ...]:
        """Return keys of a run's bundles, those used last first, as many as fit into a message."""
        keys: list[str] = []
        room = MOST_KEY_BYTES
        for owner, key in reversed(self._bundles):
            if owner != run:
                continue
            room -= len(key.encode()) + 4
            if room < 0 or len(keys) == most:
                break
            keys.append(key)
        return tuple(keys)

    def get(self, run: str, key: str) -> Tensors | None:
        """Return a bundle's tensors, or None if it is not here."""
        bundle = self._bundles.get((run, key))
        if bundle is None:
            return None
        self._bundles.move_to_end((run, key))
        return bundle.tensors

    def put(self, run: str, bundle: Bundle) -> None:
        """Keep a bundle, unless it is for one task alone; let go of those used longest ago."""
        if bundle.lifetime == "once" or bundle.num_bytes > self._most_bytes:
            return
        self.drop(run, bundle.key)
        self._bundles[run, bundle.key] = bundle
        self.num_bytes += bundle.num_bytes
        while self.num_bytes > self._most_bytes:
            self.drop(*next(iter(self._bundles)))

    def drop(self, run: str, key: str) -> None:
        """Let go of a bundle, if it is here."""
        bundle = self._bundles.pop((run, key), None)
        if bundle is not None:
            self.num_bytes -= bundle.num_bytes


MARGIN_SECONDS = 0.25
"""Left of the function's own time when it gives up, so that it can say so."""
DEFAULT_MEMORY_MB = 1024
KEPT_SHARE = 0.25
"""Of the function's memory, for bundles; the rest is torch, a task and what it makes."""


@dataclass(eq=False, slots=True)
class _Instance:
    """What one instance of the function remembers between calls."""

    name: str = field(default_factory=lambda: secrets.token_hex(4))
    kept: BundleCache | None = None

    def cache(self, memory_mb: int) -> BundleCache:
        if self.kept is None:
            self.kept = BundleCache(int(memory_mb * KEPT_SHARE * (1 << 20)))
        return self.kept


_instance = _Instance()


def handler(event: Any, context: Any) -> dict[str, Fact]:
    """Return facts of one call: who, how long, how many bytes, and why it failed if it did."""
    clock = time.perf_counter()
    memory_mb = int(getattr(context, "memory_limit_in_mb", DEFAULT_MEMORY_MB))
    facts: dict[str, Fact] = {
        "worker": _instance.name,
        "is_cold": _instance.kept is None,
        "memory_mb": memory_mb,
        "failure": "",
    }
    kept = _instance.cache(memory_mb)
    try:
        invitation = read_invitation(event)
        with _connected(invitation, _deadline(invitation, context)) as connection:
            try:
                facts["failure"] = _work(connection, invitation, kept)
            finally:
                facts |= {
                    "received_bytes": connection.received_bytes,
                    "sent_bytes": connection.sent_bytes,
                }
    except SiafuError as error:
        facts["failure"] = f"{error}"
    facts["seconds"] = time.perf_counter() - clock
    return facts


def _deadline(invitation: Invitation, context: Any) -> float:
    """Return when to give up, by the monotonic clock."""
    seconds = invitation.seconds
    if hasattr(context, "get_remaining_time_in_millis"):
        seconds = min(seconds, context.get_remaining_time_in_millis() / 1000)
    return time.monotonic() + seconds - MARGIN_SECONDS


class _Connection:
    """A connection to the endpoint: one question, one answer, within the time there is."""

    def __init__(self, socket: "zmq.Socket[bytes]", address: str, deadline: float) -> None:
        self._socket, self._address, self._deadline = socket, address, deadline
        self.sent_bytes = self.received_bytes = 0

    def ask(self, frames: list[Frame]) -> tuple[RemoteMessage, list[Tensors]]:
        """Return the endpoint's answer with its tensors.

        Raise PoolError if none comes, TaskError for a bad one.
        """
        self._socket.send_multipart(frames, copy=False)
        self.sent_bytes += sum(len(frame) for frame in frames)
        left = max(self._deadline - time.monotonic(), 0)
        if not self._socket.poll(int(left * 1000)):
            raise PoolError(
                "The graph server did not answer in time.",
                seen=f"{self._address}, {sum(map(len, frames))} bytes sent",
                fix="let the function reach that address, and give it longer",
            )
        answer = [part.buffer for part in self._socket.recv_multipart(copy=False)]
        self.received_bytes += sum(len(frame) for frame in answer)
        return decode(answer)


@contextmanager
def _connected(invitation: Invitation, deadline: float) -> Iterator[_Connection]:
    """Yield a connection that is gone afterwards: a frozen instance would find it dead."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if invitation.encrypted:
            socket.curve_serverkey = invitation.server_key.encode()
            socket.curve_publickey = invitation.client_public.encode()
            socket.curve_secretkey = invitation.client_secret.encode()
        else:
            socket.plain_username = invitation.client_public.encode()
            socket.plain_password = invitation.client_secret.encode()
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.ipv6 = "[" in invitation.address
        socket.connect(invitation.address)
        yield _Connection(socket, invitation.address, deadline)


def _work(connection: _Connection, invitation: Invitation, kept: BundleCache) -> str:
    """Do the task and push what came of it; return why it failed, or nothing."""
    started, clock = time.time(), time.perf_counter()
    tensors: Tensors = {}
    failure, run = "", invitation.server_key
    try:
        fetch = Fetch.of(token=invitation.token, held=kept.keys(run, MOST_KEYS))
        tensors = _computed(*connection.ask(encode(fetch)), run, kept)
    except PoolError:
        raise  # nobody waits for a result
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        failure = _text(error)
    facts = {"token": invitation.token, "worker": _instance.name, "started": started}
    facts["seconds"] = time.perf_counter() - clock
    try:
        frames = result_frames(tensors, failure=failure, is_final=bool(failure), **facts)
    except TaskError as error:
        failure = _text(error)
        frames = result_frames({}, failure=failure, is_final=True, **facts)
    answer, _ = connection.ask(frames)
    if not isinstance(answer, Notice) or answer.text != STORED:
        raise _refused(answer)
    return failure


def _computed(order: RemoteMessage, blocks: list[Tensors], run: str, kept: BundleCache) -> Tensors:
    """Return what an order asks for; keep its bundles for later ones."""
    if not isinstance(order, Order):
        raise _refused(order)
    tensors: Tensors = {}
    for key in order.held:
        held = kept.get(run, key)
        if held is None:
            raise TaskError("A bundle is not here.", seen=key, fix="send it along")
        tensors |= held
    for block in blocks:
        tensors |= block
    for key in order.forgotten:
        kept.drop(run, key)
    for bundle, block in zip(order.bundles, blocks, strict=True):
        kept.put(run, Bundle(bundle.key, block, bundle.lifetime))
    return compute(order.code, order.facts, tensors)


def _refused(answer: RemoteMessage) -> PoolError:
    seen = answer.text if isinstance(answer, Notice) else type(answer).__name__
    return PoolError("The graph server refused the worker.", seen=seen, fix="start the task anew")


def _text(error: Exception) -> str:
    return clipped(
        f"{error}" if isinstance(error, SiafuError) else f"{type(error).__name__}: {error}"
    )

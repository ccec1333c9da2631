"""Tasks on the nodes of a Ray cluster, as stateless Ray tasks that Ray itself never retries.

A cluster is joined within a deadline, or a Ray of one's own is started on loopback.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray._private import ray_constants, services
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
)
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from siafu.elastic.compute import compute
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.task import Fact, Reply, Task, Tensors, Usage
from siafu.elastic.tensors import Entry, decode_block, encode_block
from siafu.errors import PoolError, TaskError

_STORE_BYTES = 200 * 2**20
"""Object store of a Ray of one's own; what does not fit goes to its temporary folder."""
_USAGE = "RAY_USAGE_STATS_ENABLED"
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_SET_BY_RAY = (_MODE, _TOKEN, "PYTHONBREAKPOINT")
"""Variables that stay while the process is in Ray: its workers and children need them."""


class RayConnection:
    """This process's place in a Ray cluster; `close` leaves only what this object joined."""

    def __init__(self, address: str | None, *, deadline_seconds: float, num_cpus: int = 1) -> None:
        """Use the Ray that the process is in already, else join `address`; None starts one here."""
        self._scratch, self.is_own = "", not ray.is_initialized()
        self._before = {name: os.environ.get(name) for name in _SET_BY_RAY}
        if not self.is_own:
            return
        try:
            with _quietly():
                if address is None:
                    self._start(num_cpus)
                else:
                    _join(address, deadline_seconds)
        except BaseException:
            self.close()
            raise

    def _start(self, num_cpus: int) -> None:
        # Names of its sockets hold this path and must stay under 108 letters.
        self._scratch = tempfile.mkdtemp(prefix="siafu-", dir="/tmp")
        # A key for this Ray alone; Ray would leave one in the user's home for all to come.
        os.environ[_MODE], os.environ[_TOKEN] = "token", secrets.token_hex(32)
        _read_key()
        ray.init(
            address="local",
            num_cpus=num_cpus,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=self._scratch,
        )
        _check_loopback()

    def close(self) -> None:
        """Leave the cluster if this object joined it; end the Ray that it started."""
        if not self.is_own:
            return
        self.is_own = False
        ray.shutdown()
        for name, value in self._before.items():
            _put_back(name, value)
        _read_key()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _put_back(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _read_key() -> None:
    """Have this process's Ray, which keeps what it read, look at the key's variables again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _check_loopback() -> None:
    found = {node["NodeManagerAddress"] for node in ray.nodes()}
    if found != {"127.0.0.1"}:
        raise PoolError(
            "Ray did not stay on loopback.",
            seen=f"ray {ray.__version__} listens on {', '.join(sorted(found))}",
            fix="start a cluster with `ray start` and name its address",
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Have Ray tell nobody of its use, take no signals, and keep 127.0.0.1 for an address.

    It would otherwise put the address that other machines see in its place, and listen there.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    told, is_outward = os.environ.get(_USAGE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_USAGE], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = is_outward
        _put_back(_USAGE, told)
        if in_main:
            signal.signal(signal.SIGTERM, handler)


def _join(address: str, deadline_seconds: float) -> None:
    try:
        found = services.canonicalize_bootstrap_address_or_die(address)
        host, _, port = found.rpartition(":")
        # Ray itself goes on trying, for a very long time, where nobody answers.
        socket.create_connection((host, int(port)), timeout=deadline_seconds).close()
        ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise PoolError(
            "The Ray cluster can't be joined.",
            seen=f"address {address}: {error}",
            fix="start it (`ray start --head`, `ray start --address HEAD:6379`) and name HEAD:6379",
        ) from error


Packed = tuple[tuple[Entry, ...], list[np.ndarray]]
"""A block: its layout, and an array of bytes per tensor, which Ray ships without a copy."""

_POLL_SECONDS = 0.01
"""A task that starts while others are waited for is looked at so much later, at most."""
_RESULT_SECONDS = 10.0
"""Fetching a result that Ray says is there."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    number: int
    sent_bytes: int
    deadline: float


class RayPool:
    """Runs tasks on a Ray cluster; tensors that stay travel once to each node, by reference."""

    def __init__(
        self,
        deliver: Deliver,
        *,
        workers: int,
        address: str | None,
        deadline_seconds: float,
    ) -> None:
        """Join the cluster at `address` ("auto" or HOST:PORT), or start one here for None.

        A task that is not answered `deadline_seconds` after Ray was given it has failed; each
        asks Ray for a core.
        """
        self._deliver, self.workers, self._deadline_seconds = deliver, workers, deadline_seconds
        cores = len(os.sched_getaffinity(0))
        local_cpus = max(1, min(cores, workers))
        self._connection = RayConnection(
            address, deadline_seconds=deadline_seconds, num_cpus=local_cpus
        )
        self._function = ray.remote(max_retries=0, num_cpus=1, scheduling_strategy="SPREAD")(
            run_packed
        )
        self._kept: dict[str, Any] = {}
        self._waiting: deque[Task] = deque()
        self._running: dict[Any, _Attempt] = {}
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="siafu-ray-pool", daemon=True)
        self._thread.start()

    def start(self, task: Task) -> None:
        """Hand the task to Ray, or keep it while `workers` others run."""
        with self._changed:
            self._waiting.append(task)
        self._submit()

    def resize(self, workers: int) -> None:
        """Let so many tasks run at once; those that run already go on."""
        with self._changed:
            self.workers = workers
        self._submit()

    def forget(self, key: str) -> None:
        """Drop the reference to a kept bundle, whose memory Ray then frees on all nodes.

        Further attempts at tasks that are answered may still wait with it: they are dropped.
        """
        with self._changed:
            self._kept.pop(key, None)
            left = [t for t in self._waiting if key not in {b.key for b in t.bundles}]
            self._waiting = deque(left)

    def close(self) -> None:
        """Cancel what runs, end the thread, and leave the cluster if this pool joined it."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._waiting.clear()
            running = list(self._running)
            self._changed.notify_all()
        for reference in running:
            ray.cancel(reference, force=True)
        self._thread.join(_RESULT_SECONDS + 1)
        self._running.clear()
        self._kept.clear()
        self._connection.close()

    def _submit(self) -> None:
        """Give Ray waiting tasks while there are workers for them."""
        refused = []
        with self._changed:
            while self._waiting and len(self._running) < self.workers and not self._is_closed:
                task = self._waiting.popleft()
                try:
                    reference, sent_bytes = self._hand_over(task)
                except (RayError, TaskError) as error:
                    is_final = isinstance(error, TaskError)
                    refused.append(Reply(task.number, failure=f"{error}", is_final=is_final))
                    continue
                deadline = time.monotonic() + self._deadline_seconds
                self._running[reference] = _Attempt(task.number, sent_bytes, deadline)
            self._changed.notify_all()
        for reply in refused:
            self._deliver(reply)

    def _hand_over(self, task: Task) -> tuple[Any, int]:
        """Return Ray's reference to the result to come, and the bytes that left for it."""
        blocks, sent_bytes = [], 0
        for bundle in task.bundles:
            if bundle.key in self._kept:
                blocks.append(self._kept[bundle.key])
                continue
            packed = pack(bundle.tensors)
            sent_bytes += _num_bytes(packed)
            if bundle.lifetime == "once":
                blocks.append(packed)
            else:
                self._kept[bundle.key] = ray.put(packed)
                blocks.append(self._kept[bundle.key])
        return self._function.remote(task.code, task.facts, *blocks), sent_bytes

    def _watch(self) -> None:
        """Answer every task that ends, dies or takes too long, until the pool is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running or self._is_closed)
                if self._is_closed:
                    return
            self._look()
            self._expire()

    def _look(self) -> None:
        # Apart from the loop: a reference in a variable there would hold its result in Ray's store.
        with self._changed:
            running = list(self._running)
        done, _ = ray.wait(running, num_returns=1, timeout=_POLL_SECONDS)
        self._answer(done)

    def _answer(self, references: Iterable[Any]) -> None:
        for reference in references:
            reply = _reply(reference, self._running[reference])
            with self._changed:
                if self._is_closed:
                    return
                del self._running[reference]
            # Workers first get their next task, then the caller its answer.
            self._submit()
            self._deliver(reply)

    def _expire(self) -> None:
        now = time.monotonic()
        with self._changed:
            late = [r for r, attempt in self._running.items() if attempt.deadline < now]
            attempts = [self._running.pop(reference) for reference in late]
        for reference in late:
            ray.cancel(reference, force=True)
        if late:
            self._submit()
        for attempt in attempts:
            failure = f"no answer from Ray within {self._deadline_seconds:g} s"
            self._deliver(Reply(attempt.number, failure=failure))


def _reply(reference: Any, attempt: _Attempt) -> Reply:
    """Return what became of a task that Ray says has ended."""
    number = attempt.number
    try:
        packed, failure, worker, started, seconds = ray.get(reference, timeout=_RESULT_SECONDS)
    except RayTaskError as error:  # before or after the computation: as on a node without siafu
        return Reply(number, failure=_first_line(error), is_final=True)
    except (RayError, GetTimeoutError) as error:  # its worker or node died, or it was cancelled
        return Reply(number, failure=f"{type(error).__name__}: {_first_line(error)}")
    usage = Usage(worker, started, seconds, attempt.sent_bytes, _num_bytes(packed))
    # Copied, since what Ray gives is read-only and fills its object store while it is held.
    layout, arrays = packed
    tensors = unpack((layout, [array.copy() for array in arrays]))
    return Reply(number, tensors, failure, is_final=bool(failure), usage=usage)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    is_remote = isinstance(error, RayTaskError)  # whose last line is the error itself
    return lines[-1 if is_remote else 0] if lines else type(error).__name__


def run_packed(
    code: str, facts: dict[str, Fact], *blocks: Packed
) -> tuple[Packed, str, str, float, float]:
    """Return (tensors, failure, worker, start, seconds) of one task; what a Ray worker runs."""
    node = ray.get_runtime_context().get_node_id()
    worker = f"{node}/{os.getpid()}"
    started, clock = time.time(), time.perf_counter()
    made, failure = pack({}), ""
    try:
        with warnings.catch_warnings():
            # Tensors on Ray's shared memory can't be marked as read-only; tasks never write there.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            tensors = {name: t for block in blocks for name, t in unpack(block).items()}
        made = pack(compute(code, facts, tensors))
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        failure = str(error) or type(error).__name__
    return made, failure, worker, started, time.perf_counter() - clock


def pack(tensors: Tensors) -> Packed:
    """Return the tensors as a block of arrays, on their own memory where they are on the host."""
    layout, parts = encode_block(tensors)
    return layout, [part.numpy() for part in parts]


def unpack(packed: Packed) -> Tensors:
    """Return the tensors of a block, on the memory of its arrays."""
    layout, arrays = packed
    return decode_block(layout, [torch.from_numpy(array) for array in arrays])


def _num_bytes(packed: Packed) -> int:
    return sum(array.nbytes for array in packed[1])

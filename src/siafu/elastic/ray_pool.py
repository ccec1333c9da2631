"""Tasks on the nodes of a Ray cluster, as stateless Ray tasks that Ray itself never retries."""

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from torch import Tensor

from siafu.elastic.compute import compute
from siafu.elastic.pool import Deliver
from siafu.elastic.ray_connect import RayConnection
from siafu.elastic.task import Fact, Reply, Task, Tensors, Usage
from siafu.errors import TaskError

Packed = dict[str, tuple[np.ndarray, str]]
"""Each tensor's memory, and its type where NumPy has none of that name, else nothing."""

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
        num_cpus: float = 1.0,
    ) -> None:
        """Join the cluster at `address` ("auto" or HOST:PORT), or start one here for None.

        A task that is not answered `deadline_seconds` after Ray was given it has failed; each
        asks Ray for `num_cpus` of a node's cores, which may be a fraction.
        """
        self._deliver, self.workers, self._deadline_seconds = deliver, workers, deadline_seconds
        cores = len(os.sched_getaffinity(0))
        local_cpus = max(1, min(cores, round(workers * num_cpus + 0.5)))
        self._connection = RayConnection(
            address, deadline_seconds=deadline_seconds, num_cpus=local_cpus
        )
        self._function = ray.remote(max_retries=0, num_cpus=num_cpus, scheduling_strategy="SPREAD")(
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
        once: Packed = {}
        kept, sent_bytes = [], 0
        for bundle in task.bundles:
            is_new = bundle.key not in self._kept
            packed = pack(bundle.tensors) if bundle.lifetime == "once" or is_new else {}
            sent_bytes += _num_bytes(packed)
            if bundle.lifetime == "once":
                once |= packed
                continue
            if is_new:
                self._kept[bundle.key] = ray.put(packed)
            kept.append(self._kept[bundle.key])
        return self._function.remote(task.code, task.facts, once, *kept), sent_bytes

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
    tensors = unpack({name: (array.copy(), kind) for name, (array, kind) in packed.items()})
    return Reply(number, tensors, failure, is_final=bool(failure), usage=usage)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    is_remote = isinstance(error, RayTaskError)  # whose last line is the error itself
    return lines[-1 if is_remote else 0] if lines else type(error).__name__


def run_packed(
    code: str, facts: dict[str, Fact], once: Packed, *kept: Packed
) -> tuple[Packed, str, str, float, float]:
    """Return (tensors, failure, worker, start, seconds) of one task; what a Ray worker runs."""
    node = ray.get_runtime_context().get_node_id()
    worker = f"{node}/{os.getpid()}"
    started, clock = time.time(), time.perf_counter()
    made, failure = {}, ""
    try:
        with warnings.catch_warnings():
            # Tensors on Ray's shared memory can't be marked as read-only; tasks never write there.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            tensors = {name: t for part in (once, *kept) for name, t in unpack(part).items()}
        made = pack(compute(code, facts, tensors))
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        failure = str(error) or type(error).__name__
    return made, failure, worker, started, time.perf_counter() - clock


def pack(tensors: Tensors) -> Packed:
    """Return the tensors as arrays, on the host, that share their memory where they can."""
    return {name: _pack_one(name, tensor) for name, tensor in tensors.items()}


def _pack_one(name: str, tensor: Tensor) -> tuple[np.ndarray, str]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TaskError(
            "Only dense tensors travel to a worker.",
            seen=f"{name}: {tensor.layout}, {tensor.dtype}",
            fix="send its indices and values",
        )
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy(), ""
    except TypeError:  # bfloat16 and narrower ones
        same_size = {1: torch.uint8, 2: torch.int16}[plain.element_size()]
        return plain.view(same_size).numpy(), str(plain.dtype).removeprefix("torch.")


def _num_bytes(packed: Packed) -> int:
    return sum(array.nbytes for array, _ in packed.values())


def unpack(packed: Packed) -> Tensors:
    """Return the tensors that `pack` took apart, on the same memory."""
    tensors = {}
    for name, (array, kind) in packed.items():
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.view(getattr(torch, kind)) if kind else tensor
    return tensors

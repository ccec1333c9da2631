"""A worker process of `ProcessPool`: `python -m siafu.elastic.pools.worker SOCKET PARENT`.

Takes tasks from its socket until the other end closes. Kept bundles stay mapped, everything else
goes with the task's answer.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from typing import NoReturn

import torch

from siafu.collector import spare_collector
from siafu.elastic.compute import compute, warm_up_worker
from siafu.elastic.messages import Answer, Forget, Order, Ready, clipped
from siafu.elastic.pools.shared_memory import WorkerPipe, close_all, map_block, write_block
from siafu.elastic.task import Tensors
from siafu.errors import TaskError

_PR_SET_PDEATHSIG = 1


def serve(pipe: WorkerPipe) -> NoReturn:
    """Answer tasks until the owner closes its end, which raises EOFError."""
    kept: dict[str, Tensors] = {}
    warm_up_worker()
    pipe.send(Ready.local_text())
    while True:
        try:
            message, descriptors = pipe.receive(None)
        except TaskError as error:
            fields = {"started": time.time(), "seconds": 0.0, "tensors": (), "is_mapped": False}
            pipe.send(Answer.local_text(failure=clipped(f"{error}"), is_final=True, **fields))
            continue
        if isinstance(message, Forget):
            kept.pop(message.key, None)
        elif isinstance(message, Order):
            _answer(pipe, message, descriptors, kept)


def _answer(
    pipe: WorkerPipe, order: Order, descriptors: list[int], kept: dict[str, Tensors]
) -> None:
    started, clock = time.time(), time.perf_counter()
    is_mapped, block, failure, is_final = False, None, "", False
    try:
        inputs = _inputs(order, descriptors, kept)
        is_mapped = True
        block = write_block(compute(order.code, order.facts, inputs))
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        # Memory or descriptors may have run out for now; anything else lies in the task.
        is_final = not isinstance(error, MemoryError | OSError)
        failure = clipped(f"{error}" or type(error).__name__)
    answer = Answer.local_text(
        started=started,
        seconds=time.perf_counter() - clock,
        failure=failure,
        is_final=is_final,
        tensors=() if block is None else block.layout,
        is_mapped=is_mapped,
    )
    try:
        pipe.send(answer, [] if block is None else [block.descriptor])
    finally:
        if block is not None:
            block.close()


def _inputs(order: Order, descriptors: list[int], kept: dict[str, Tensors]) -> Tensors:
    """Return all tensors of a task: those that came with it, and those of kept bundles."""
    try:
        new = [
            map_block(descriptor, bundle.tensors)
            for descriptor, bundle in zip(descriptors, order.bundles, strict=True)
        ]
    finally:
        close_all(descriptors)
    # All or none: the owner takes them for known when they were all mapped.
    for bundle, tensors in zip(order.bundles, new, strict=True):
        if bundle.lifetime != "once":
            kept[bundle.key] = tensors
    blocks = [*new, *(kept[key] for key in order.held)]
    return {name: tensor for tensors in blocks for name, tensor in tensors.items()}


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this worker when the thread that started it ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main(descriptor: int, parent: int) -> int:
    """Serve one owner and return the exit code."""
    _end_with_parent(parent)
    spare_collector()
    torch.set_num_threads(1)
    pipe = WorkerPipe(socket.socket(fileno=descriptor))
    try:
        serve(pipe)
    except (EOFError, ConnectionError):
        return 0
    finally:
        pipe.close()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))

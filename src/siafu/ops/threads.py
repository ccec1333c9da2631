"""Threads for CPU kernels: one setting for torch and Numba, and a pool for kernels without the GIL.

Kernels are compiled without Numba's own parallel loops: those compile several times slower, and
the layer found on a plain machine aborts when two Python threads enter it at once.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from typing import TypeVar

import torch

from siafu.errors import ConfigError

SMALL_WORK = 1 << 17
"""Elements below which one thread is used: waking another costs about as much (some 50 us)."""

CHUNKS_A_THREAD = 8
"""Chunks are equal in edges but not in time (cache misses differ), so threads take several."""


Item = TypeVar("Item")
Made = TypeVar("Made")


class _Pool:
    """Threads that outlive a call; made at first use and again when more are asked for."""

    def __init__(self) -> None:
        self._size = 0
        self._executor: ThreadPoolExecutor | None = None

    def executor(self, size: int) -> ThreadPoolExecutor:
        if self._executor is None or size > self._size:
            # One that is too small is not shut down: its user may submit more. It ends when let go.
            self._executor = ThreadPoolExecutor(size, thread_name_prefix="siafu-ops")
            self._size = size
        return self._executor

    def forget(self) -> None:
        """Threads do not survive a fork, so a child starts without any."""
        self._executor = None


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def set_threads(threads: int) -> None:
    """Let torch and the Numba kernels use `threads` threads, never both at the same time."""
    if threads < 1:
        raise ConfigError("A rank needs a thread.", seen=f"threads={threads}", fix="use 1 or more")
    torch.set_num_threads(threads)


def num_threads() -> int:
    """Return how many threads a kernel may use: torch's intra-op setting is the only setting."""
    return torch.get_num_threads()


def num_chunks(elements: int) -> int:
    """Return how many chunks to cut work into that touches `elements` array elements."""
    threads = num_threads()
    return 1 if threads == 1 or elements < SMALL_WORK else threads * CHUNKS_A_THREAD


def run_chunks(work: Callable[[int, int], None], bounds: Sequence[int]) -> None:
    """Call work(bounds[c], bounds[c + 1]) for every chunk c; the caller works too."""
    chunks = len(bounds) - 1
    helpers = min(num_threads(), chunks) - 1
    tickets, held = count(), [work]

    def drain() -> None:
        while (c := next(tickets)) < chunks:
            held[0](bounds[c], bounds[c + 1])

    if helpers < 1:
        drain()
        return
    executor = _pool.executor(helpers)
    futures = [executor.submit(drain) for _ in range(helpers)]
    drain()
    for future in futures:
        if not future.cancel():
            future.result()
    # A helper that came too late has `drain` in its queue until it wakes up: not the arrays too.
    held.clear()


def in_order(
    work: Callable[[Item], Made], items: Iterable[Item], *, ahead: int, beside: bool = False
) -> Iterator[Made]:
    """Yield work(item) for each item in order, made by threads up to `ahead` items before.

    Items are taken by the caller, one at a time; what that raises comes after what went before. One
    item ahead is worth a thread where it is made `beside` what the caller does with the last.
    """
    helpers = min(num_threads(), ahead + beside)
    if helpers <= 1:
        yield from map(work, items)
        return
    executor, waiting = _pool.executor(helpers), deque[Future[Made]]()
    source, failed = iter(items), list[Exception]()
    try:
        while not failed:
            try:
                waiting.append(executor.submit(work, next(source)))
            except Exception as error:  # noqa: BLE001 - raised again below
                failed.append(error)
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)
    if not isinstance(failed[0], StopIteration):
        raise failed[0]

"""A deadline for what NCCL does: its waits return at once, and torch's watchdog would end a rank
that waits too long without telling for whom."""

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from siafu.comm.meeting import GiveUp, end_process, in_time, lasting_store
from siafu.errors import CommError, SiafuError

_POLL_SECONDS = 0.2


class Overdue:
    """Looks, from a thread of its own, whether all that was started ends in time.

    What does not is told to `give_up`, which ends this process.
    """

    def __init__(self, deadline_seconds: float, give_up: GiveUp | None = None) -> None:
        self._deadline, self._give_up = deadline_seconds, give_up or end_process
        self._started: list[tuple[float, Any, str]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, work: Any, what: str) -> None:
        """Watch something that was started."""
        with self._lock:
            self._started.append((time.monotonic(), work, what))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            with self._lock:
                started = list(self._started)
            try:
                done = {id(work) for _, work, _ in started if work.is_completed()}
            except RuntimeError as error:
                told = (str(error).splitlines() or [""])[0]
                self._give_up(_gone(started[0][2], told))
                return
            with self._lock:
                self._started = [each for each in self._started if id(each[1]) not in done]
                first = self._started[0] if self._started else None
            if first is not None and time.monotonic() - first[0] > self._deadline:
                self._give_up(late(first[2], time.monotonic() - first[0], self._deadline, "NCCL"))
                return


def late(what: str, seconds: float, deadline_seconds: float, told: str) -> CommError:
    """Return the error of a wait that took too long."""
    return CommError(
        "A wait passed its deadline.",
        seen=f"{what}; {seconds:.0f} s of {deadline_seconds:g} s ({told})",
        fix="look at what that rank last said; raise --deadline if it was only slow",
    )


@contextmanager
def translated(what: str, deadline_seconds: float) -> Iterator[None]:
    """Turn what torch raises inside into an error that tells what was waited for."""
    started = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        seconds = time.monotonic() - started
        first_line = (str(error).splitlines() or [""])[0]
        if seconds >= 0.9 * deadline_seconds or "timed out" in first_line.lower():
            raise late(what, seconds, deadline_seconds, first_line) from error
        raise _gone(what, first_line) from error


def _gone(what: str, told: str) -> CommError:
    return CommError(
        "A rank went away or refused.",
        seen=f"{what} ({told})",
        fix="the rank that failed first tells why; then go on with `siafu train --resume RUN`",
    )


def told_by_first(tell: Callable[[], str], deadline_seconds: float) -> str:
    """Return what rank 0 tells; all ranks of torchrun call this, before they join.

    Where rank 0 can't, all raise what it raised.
    """
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    what, number = f"rank {rank} of {size} asking rank 0", next(_NUMBERS)
    with translated(what, deadline_seconds), in_time(what, deadline_seconds):
        store = lasting_store(rank, size, timedelta(seconds=deadline_seconds))
        _KEPT.append(store)
        if rank == 0:
            try:
                said = {"text": tell()}
            except SiafuError as error:
                said = {"problem": error.problem, "seen": error.seen, "fix": error.fix}
                store.set(f"told/{number}", json.dumps(said))
                raise
            store.set(f"told/{number}", json.dumps(said))
        said = json.loads(store.get(f"told/{number}"))
    if "text" not in said:
        raise CommError(said["problem"], seen=said["seen"], fix=said["fix"])
    return said["text"]


_NUMBERS = itertools.count()
"""Of what is told, alike on all ranks."""
_KEPT: list[Any] = []
"""Stores that others may still read: where torchrun has none, rank 0's process has it."""

"""Being told to end, by SIGTERM as schedulers do it or by Ctrl-C, where epochs may be saved first.

Outside of training both signals end a command at once, by an exception that cleans up on its way.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from siafu.errors import Stopped, Terminated

TERMINATED_CODE = 128 + signal.SIGTERM
"""The exit code of a command, or a rank, that SIGTERM ended."""
GRACE_SECONDS: dict[int, float] = {signal.SIGTERM: 20.0, signal.SIGINT: 5.0}
"""How long the running epoch may take to end; schedulers kill 30 s after SIGTERM."""
ECHO_SECONDS = 5.0
"""Slurm tells every process of a job, and torchrun tells its ranks again: one order, not two."""


class StopOrder:
    """The signal that told this process to end, once there was one."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Return whether this process was told to end."""
        return self.signal is not None

    def interrupt(self) -> KeyboardInterrupt | Terminated:
        """Return the exception that ends the command."""
        return KeyboardInterrupt() if self.signal == signal.SIGINT else Terminated()


@contextmanager
def heeding() -> Iterator[StopOrder]:
    """Yield an order that notes the first SIGTERM or SIGINT, so that the epoch can end.

    When that takes too long, or at a second signal (of SIGTERM one that comes later than an echo of
    the first), the exception comes after all. `Stopped`
    inside, which says that the epoch has ended, becomes the same exception.
    """
    order, timers = StopOrder(), list[threading.Timer]()
    told_at = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal told_at
        if order.signal is not None:
            is_echo = number == signal.SIGTERM and time.monotonic() - told_at < ECHO_SECONDS
            if is_echo:
                return
            raise order.interrupt()
        order.signal, told_at = number, time.monotonic()
        again = threading.Timer(GRACE_SECONDS[number], os.kill, (os.getpid(), number))
        again.daemon = True
        timers.append(again)
        again.start()

    with _handled_by(note, *GRACE_SECONDS):
        try:
            yield order
        except Stopped as stopped:
            error = order.interrupt()
            if isinstance(error, Terminated):
                error.rank_was_told = order()
            raise error from stopped
        finally:
            for timer in timers:
                timer.cancel()


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Let SIGTERM, or a terminal that closes, raise inside, as Ctrl-C does."""
    with _handled_by(_terminate, signal.SIGTERM, signal.SIGHUP):
        yield


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated


@contextmanager
def _handled_by(handler: Any, *numbers: int) -> Iterator[None]:
    """Set the handler of signals, where this is the thread that may, and put theirs back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What a parent had this process ignore, as shells do for jobs in the background, stays so.
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)

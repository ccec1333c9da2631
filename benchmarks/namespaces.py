"""Network namespaces named after their process: made, listed, emptied, deleted, swept when stale.

A name is siafu-PID-BORN-SERIAL-PART; `born` tells a process from a later one of the same number.
"""

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from siafu.errors import ConfigError

TOOL_SECONDS = 20.0
POLL_SECONDS = 0.02
NAME = re.compile(r"^siafu-(\d+)-(\d+)-\d+-\w+$")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_serials = count()


def new_prefix() -> str:
    """Return what the names of a new group of namespaces begin with."""
    return f"siafu-{os.getpid()}-{_born(os.getpid())}-{next(_serials)}"


def sweep() -> list[str]:
    """Delete the namespaces of processes that are no more, and return their names."""
    stale = [
        name
        for name in _namespaces()
        if (match := NAME.match(name)) and _born(int(match[1])) != int(match[2])
    ]
    for name in stale:
        _delete(name)
    return stale


def remove(prefix: str) -> None:
    """Delete every namespace of a group, and end what runs in them."""
    for name in _namespaces():
        if name.startswith(f"{prefix}-"):
            _delete(name)


def end_all(name: str) -> None:
    """End every process of a namespace, those that a dying one just started too, and wait."""
    end = time.monotonic() + TOOL_SECONDS
    while (pids := pids_in(name)) and time.monotonic() < end:
        for pid in pids:
            kill(pid)
        time.sleep(POLL_SECONDS)


def _delete(name: str) -> None:
    end_all(name)
    tool("ip", "netns", "del", name)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in tool("ip", "netns", "list").splitlines() if line.strip()]


def pids_in(name: str) -> list[int]:
    """Return the processes of a namespace; none where it does not exist."""
    if name not in _namespaces():
        return []
    return [int(pid) for pid in tool("ip", "netns", "pids", name).split()]


def kill(pid: int) -> None:
    """End one process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _born(pid: int) -> int:
    """Return when a process started, in clock ticks, so that a number used again is told apart."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[19])


def tool(*arguments: str) -> str:
    """Return what `ip` or `tc` prints."""
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
    )
    if done.returncode != 0:
        raise ConfigError(
            "The kernel refused to set up a host.",
            seen=f"{' '.join(arguments)}: {done.stderr.strip() or done.returncode}",
            fix="look whether this kernel or container allows namespaces, bridges and tbf",
        )
    return done.stdout


def end_with_parent() -> None:
    """Have the kernel end this process when its parent dies, however it dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process the way an exception does, so that it cleans up."""

    def unwind(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    with _handlers(unwind):
        yield


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let a second signal not interrupt the cleaning; it is short."""
    with _handlers(signal.SIG_IGN, signal.SIGINT):
        yield


@contextmanager
def _handlers(handler: Any, *more: signal.Signals) -> Iterator[None]:
    before: dict[signal.Signals, Any] = {}
    try:
        for name in (signal.SIGTERM, signal.SIGHUP, *more):
            before[name] = signal.signal(name, handler)
    except ValueError:  # not the main thread, whose business signals are
        pass
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, old)

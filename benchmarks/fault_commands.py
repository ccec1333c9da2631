"""`siafu` commands as forks of one process that has loaded it: a trial takes 2 s instead of 20.

Run: python -m benchmarks.fault_commands SOCKET (by `Commands`). A command is a process of its own
session, as when it is typed, and so is what its ranks are forked from: only loading is spared.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import siafu.cli.train  # noqa: F401 - which every command here loads
from siafu.cli.main import main as command_line
from siafu.collector import spare_collector
from siafu.launch import local, ranks, warm
from siafu.launch.apart import shared_job
from siafu.launch.rank import main as be_rank
from siafu.ops import load_compiler

_POLL_SECONDS = 0.01


class Commands:
    """Starts commands; ends with them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forks = warm.WarmProcess.__new__(warm.WarmProcess)
        self._forks._socket = ours
        with theirs:
            self._forks._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fault_commands", str(theirs.fileno())],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, here: Path, words: Sequence[str], variables: dict[str, str]) -> "Started":
        """Return `siafu WORDS`, running in a folder that its output is added to."""
        environment = {**os.environ, **variables, "RANK": "0"}
        with self._lock:  # one request, one answer
            return Started(self._forks.fork([str(here), *words], environment))

    def close(self) -> None:
        """End all that still runs."""
        self._forks.close()


class Started:
    """A command that was started: what of `Popen` is needed."""

    def __init__(self, fork: warm.Fork) -> None:
        self.pid, self.poll, self.send_signal = fork.pid, fork.poll, fork.send_signal

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; None where it did not end in time, and was killed."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                self.send_signal(signal.SIGKILL)
                return None
            time.sleep(_POLL_SECONDS)
        return self.poll()


class _Loaded(warm.WarmProcess):
    """What ranks are forked from: a fork of the command, before that has done anything."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self._socket.close()
            os.setsid()
            _exit_with(lambda: be_rank(*warm.serve(theirs), sharing=shared_job))
        theirs.close()
        self._process: Any = self

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        found, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None

    def kill(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Return the exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _exit_with(work: Any) -> None:
    code = 1
    try:
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def _be_command(here: str, *words: str) -> int:
    """Be the command line in a folder."""
    os.chdir(here)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    for name in ("RANK", "SIAFU_PARENT"):
        os.environ.pop(name)
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    loaded = _Loaded()
    for module in (local, ranks):
        setattr(module, "warm_process", lambda variables: loaded)  # noqa: B010 - not its own name
    sys.argv = ["siafu", *words]
    command_line()
    return 0


if __name__ == "__main__":
    load_compiler()
    spare_collector()
    _exit_with(lambda: _be_command(*warm.serve(socket.socket(fileno=int(sys.argv[1])))))

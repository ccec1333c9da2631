"""Ranks as forks of one process that has loaded what they need.

Loading torch and siafu takes a core some 3 s. A *warm* process does it once, beside the cutting of
the graph, and stays for later runs of the process that started it; its forks begin at once and
share its memory. It has one thread and no work of its own, so that forking it is safe, unlike a
process that has already computed. `python -m siafu.launch --warm SOCKET` is a warm process.
"""

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from siafu.errors import RankError

WARM = "--warm"
_LOAD_SECONDS = 120.0
"""A machine may be busy while the warm process loads; then it forks at once."""
_END_SECONDS = 5.0
_PR_SET_NAME = 15
_REQUEST_BYTES = 1 << 20
_CODE_BYTES = 4
_STANDARD = (0, 1, 2)
_OF_ONE_CALL = {"PWD", "OLDPWD", "_", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"}
"""Variables that nothing reads while it loads, and so are those of siafu itself."""


@dataclass(slots=True)
class Fork:
    """A process forked from a warm one: what of `Popen` its owner needs, not being its parent."""

    pid: int
    _handle: int
    """Names this very process, whoever is given its number later."""
    _codes: int
    """Where the warm process writes the exit code; closed without one where it has died."""
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        if self.returncode is None and select.select([self._codes], [], [], 0)[0]:
            told = os.read(self._codes, _CODE_BYTES)
            # Without a warm process its forks are killed.
            lost = -signal.SIGKILL
            self.returncode = int.from_bytes(told, "little", signed=True) if told else lost
            os.close(self._codes)
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal the process where it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def end(self) -> None:
        """Kill the process where it still runs, and wait until it has ended."""
        self.send_signal(signal.SIGKILL)
        if self.returncode is None and select.select([self._codes], [], [], _END_SECONDS)[0]:
            self.poll()


class WarmProcess:
    """A process that loads what ranks need and forks them; ends with the one that started it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "siafu.launch", WARM, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the owner's to answer
            )

    @property
    def is_alive(self) -> bool:
        """False when the process has ended."""
        return self._process.poll() is None

    def fork(self, arguments: list[str], environment: dict[str, str]) -> Fork:
        """Return `python -m siafu.launch ARGUMENTS`, started here with these variables."""
        codes, theirs = os.pipe()
        request = json.dumps([arguments, environment, os.getcwd()]).encode()
        try:
            self._socket.settimeout(_LOAD_SECONDS)
            with _open_standard() as standard:
                socket.send_fds(self._socket, [request], [*standard, theirs])
            answer, handles, _, _ = socket.recv_fds(self._socket, 64, 1)
        except OSError as error:
            os.close(codes)
            raise _no_answer(str(error)) from error
        finally:
            os.close(theirs)
        if not handles:
            os.close(codes)
            raise _no_answer(f"it ended with exit code {self._process.wait()}")
        return Fork(int(answer), handles[0], codes)

    def close(self) -> None:
        """End the process; the kernel ends the forks it still has."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _no_answer(seen: str) -> RankError:
    return RankError(
        "The process that ranks are forked from did not answer.",
        seen=seen,
        fix="run the command again; if it had no time to load, the machine is too busy",
    )


@contextmanager
def _open_standard() -> Iterator[list[int]]:
    """Yield standard input, output and errors, where one is closed an empty device instead."""
    empty = os.open(os.devnull, os.O_RDWR)
    try:
        yield [number if _is_open(number) else empty for number in _STANDARD]
    finally:
        os.close(empty)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


_warm: WarmProcess | None = None
_lock = threading.Lock()


def warm_process(variables: dict[str, str]) -> WarmProcess:
    """Return the warm process of this one, begun where there is none with these variables."""
    global _warm
    environment = {
        name: value
        for name, value in (os.environ | variables).items()
        if name not in _OF_ONE_CALL and not name.startswith("SIAFU_")
    }
    with _lock:
        if _warm is None or not _warm.is_alive or _warm.environment != environment:
            _end_warm()
            _warm = WarmProcess(environment)
        return _warm


@atexit.register
def _end_warm() -> None:
    global _warm
    if _warm is not None:
        _warm.close()
        _warm = None


def _leave_warm() -> None:
    """Know of no warm process, in a fork of the one that has it."""
    global _warm
    _warm = None


os.register_at_fork(after_in_child=_leave_warm)


def serve(requests: socket.socket) -> list[str]:
    """Fork a rank for each request until the owner has ended; return its arguments in a fork."""
    running: dict[int, tuple[int, int]] = {}
    """Handles of forks, with their numbers and where to write their exit codes."""
    ears = select.poll()
    owner = os.pidfd_open(os.getppid())
    for number in (requests.fileno(), owner):
        ears.register(number, select.POLLIN)
    while True:
        heard = [number for number, _ in ears.poll()]
        for handle in running.keys() & set(heard):
            ears.unregister(handle)
            pid, codes = running.pop(handle)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with suppress(BrokenPipeError):
                os.write(codes, code.to_bytes(_CODE_BYTES, "little", signed=True))
            os.close(codes)
            os.close(handle)
        if owner in heard:
            os._exit(0)  # forks that still run are killed by the kernel
        if requests.fileno() in heard:
            request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
            if not request:
                os._exit(0)
            *standard, codes = files
            warm = os.getpid()
            pid = os.fork()
            if not pid:
                for number in (owner, codes, *running, *(code for _, code in running.values())):
                    os.close(number)
                requests.close()
                return _become(request, standard, warm)
            handle = os.pidfd_open(pid)
            running[handle] = pid, codes
            ears.register(handle, select.POLLIN)
            socket.send_fds(requests, [str(pid).encode()], [handle])
            for number in standard:
                os.close(number)


def _become(request: bytes, standard: list[int], warm: int) -> list[str]:
    """Make this fork what was asked for; return its arguments."""
    arguments, environment, folder = json.loads(request)
    os.setsid()
    for ours, theirs in zip(_STANDARD, standard, strict=True):
        os.dup2(theirs, ours)
        os.close(theirs)
    os.environ.clear()
    os.environ.update(environment, SIAFU_PARENT=str(warm))
    os.chdir(folder)
    sys.path[0], sys.argv[1:] = folder, arguments
    # For those who look at processes: what was typed is the warm one's.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"siafu rank {environment['RANK']}".encode())
    return arguments

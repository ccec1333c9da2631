"""One rank on a Ray node, in a process of its own that ends with the actor.

Ray is handed this class by value, so that the actor need not import siafu and torch beside the
rank itself: nothing here imports siafu.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import ray

_MOST_LINES = 1000
"""Of a rank's output that wait to be asked for; older ones are dropped."""
_STOP_SECONDS = 5.0
_PARENT_SECONDS = 1.0


class RayRank:
    """The actor of one rank: looks at its node, starts the rank, reports of it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._changed = threading.Condition()
        self._has_ended = False
        self._errors = tempfile.mkdtemp(prefix="siafu-")
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def look(self, files: dict[str, str | None]) -> dict[str, Any]:
        """Return this place, after a check that files, with given texts, can be seen from it."""
        problem = ""
        for name, text in files.items():
            path = Path(name)
            if not path.exists() or (text is not None and path.read_text() != text):
                problem = f"{name} is not there, or not the same"
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "num_cores": len(os.sched_getaffinity(0)),
            "gpus": [str(number) for number in ray.get_gpu_ids()],
            "problem": problem,
        }

    def listen(self, address: str) -> int:
        """Return a free port of this node, which is kept for the rank to be started."""
        self._socket = socket.create_server((address, 0))
        return int(self._socket.getsockname()[1])

    def start(self, arguments: list[str], variables: dict[str, str], address: str, cwd: str) -> int:
        """Start the rank and return its process id."""
        own = {"SIAFU_PARENT": str(os.getpid()), "SIAFU_ERRORS": self._errors}
        own |= _interface_of(address)
        kept = []
        if self._socket is not None:
            kept = [self._socket.fileno()]
            variables = variables | {"SIAFU_RENDEZVOUS_SOCKET": str(kept[0])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "siafu.launch", *arguments],
            env={**os.environ, **variables, **own},
            cwd=cwd if Path(cwd).is_dir() else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=kept,
        )
        if self._socket is not None:
            self._socket.close()
        threading.Thread(target=self._read, daemon=True).start()
        return self._process.pid

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        process.wait()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def poll(self, seconds: float) -> dict[str, Any]:
        """Return what is new, at the latest after some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._has_ended, seconds)
            output, has_ended = "".join(self._lines), self._has_ended
            self._lines.clear()
        if not has_ended or self._process is None:
            return {"output": output}
        told = [file.read_text() for file in sorted(Path(self._errors).glob("rank*.json"))]
        return {"output": output, "exit_code": self._process.returncode, "failures": told}

    def stop(self) -> None:
        """End the rank, if it runs, and remove what it left on this node."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
        for file in Path(self._errors).iterdir():
            file.unlink()
        Path(self._errors).rmdir()


def _end_with(parent: int) -> None:
    """End this process, and its rank, soon after Ray's on this node; Ray's own check may fail."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def _interface_of(address: str) -> dict[str, str]:
    """Return variables that have ranks talk over the network that Ray uses.

    Gloo would take the address of the machine's name, which is often loopback.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if address in {entry.address for entry in addresses}:
            return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return {}

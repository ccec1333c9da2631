"""An emulator of AWS Lambda on loopback, installed by npm: real functions by the real protocol."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "packaging" / "lambda" / "emulator"
FOLDER = ROOT / ".emulator"
INSTALLS_WITHIN = 300.0
STARTS_WITHIN = 90.0
"""The first start compiles a schema, and other tests may keep the machine busy."""
ENDS_WITHIN = 10.0


def installed() -> Path:
    """Return the emulator's folder, installing it if need be; skip where that can't be done."""
    absent = [name for name in ("node", "npm") if shutil.which(name) is None]
    if absent:
        pytest.skip(f"the emulator of Lambda: {' and '.join(absent)} not installed")
    install = ["sh", str(PACKAGE / "install.sh"), str(FOLDER)]
    subprocess.run(install, check=True, timeout=INSTALLS_WITHIN)
    return FOLDER


class Emulator:
    """One service with siafu's function and those of a test."""

    def __init__(self, place: Path, functions: dict[str, Any]) -> None:
        service = yaml.safe_load((PACKAGE / "serverless.yml").read_text())
        service["functions"] |= functions
        (place / "serverless.yml").write_text(yaml.safe_dump(service))
        self._home = installed()
        (place / "node_modules").symlink_to(self._home / "node_modules")
        self._place, self._process = place, None
        self.url = ""

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.is_alive():
            return
        port = _free_port()
        server = ["node", "node_modules/serverless/bin/serverless.js", "offline", "start"]
        with (self._place / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [*server, "--host", "127.0.0.1", "--lambdaPort", str(port)],
                cwd=self._place,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + STARTS_WITHIN
        while not _listens(port):
            assert self.is_alive(), self.log()
            assert time.monotonic() < deadline, f"no start within {STARTS_WITHIN} s: {self.log()}"
            time.sleep(0.05)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        python_path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PATH": path,
            "VIRTUAL_ENV": sys.prefix,
            "PYTHONPATH": python_path,
            # It keeps a compiled schema at home: here that is the folder it was installed to.
            "HOME": str(self._home),
            "SLS_TELEMETRY_DISABLED": "1",
            "SLS_NOTIFICATIONS_MODE": "off",
            "OMP_NUM_THREADS": "1",
        }

    def is_alive(self) -> bool:
        """Return whether its server runs."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Return the server and its functions' instances."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        return [server, *server.children(recursive=True)]

    def kill(self) -> None:
        """Kill the server and all instances, as a machine that goes down does."""
        if self._process is None:
            return
        alive = self.processes() if self.is_alive() else []
        if self.is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(ENDS_WITHIN)
        _, left = psutil.wait_procs(alive, ENDS_WITHIN)
        assert not left, left
        self._process = None

    def log(self) -> str:
        """Return what it has said."""
        return (self._place / "log.txt").read_text(errors="replace")[-4000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

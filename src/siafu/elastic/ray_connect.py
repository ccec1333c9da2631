"""Joining a Ray cluster within a deadline, or starting a Ray of one's own on loopback."""

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import ray_constants, services
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
)

from siafu.errors import PoolError

_STORE_BYTES = 200 * 2**20
"""Object store of a Ray of one's own; what does not fit goes to its temporary folder."""
_USAGE = "RAY_USAGE_STATS_ENABLED"
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_SET_BY_RAY = (_MODE, _TOKEN, "PYTHONBREAKPOINT")
"""Variables that stay while the process is in Ray: its workers and children need them."""


class RayConnection:
    """This process's place in a Ray cluster; `close` leaves only what this object joined."""

    def __init__(self, address: str | None, *, deadline_seconds: float, num_cpus: int = 1) -> None:
        """Use the Ray that the process is in already, else join `address`; None starts one here."""
        self._scratch, self.is_own = "", not ray.is_initialized()
        self._before = {name: os.environ.get(name) for name in _SET_BY_RAY}
        if not self.is_own:
            return
        try:
            with _quietly():
                if address is None:
                    self._start(num_cpus)
                else:
                    _join(address, deadline_seconds)
        except BaseException:
            self.close()
            raise

    def _start(self, num_cpus: int) -> None:
        # Names of its sockets hold this path and must stay under 108 letters.
        self._scratch = tempfile.mkdtemp(prefix="siafu-", dir="/tmp")
        # A key for this Ray alone; Ray would leave one in the user's home for all to come.
        os.environ[_MODE], os.environ[_TOKEN] = "token", secrets.token_hex(32)
        _read_key()
        ray.init(
            address="local",
            num_cpus=num_cpus,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=self._scratch,
        )
        _check_loopback()

    def close(self) -> None:
        """Leave the cluster if this object joined it; end the Ray that it started."""
        if not self.is_own:
            return
        self.is_own = False
        ray.shutdown()
        for name, value in self._before.items():
            _put_back(name, value)
        _read_key()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _put_back(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _read_key() -> None:
    """Have this process's Ray, which keeps what it read, look at the key's variables again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _check_loopback() -> None:
    found = {node["NodeManagerAddress"] for node in ray.nodes()}
    if found != {"127.0.0.1"}:
        raise PoolError(
            "Ray did not stay on loopback.",
            seen=f"ray {ray.__version__} listens on {', '.join(sorted(found))}",
            fix="start a cluster with `ray start` and name its address",
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Have Ray tell nobody of its use, take no signals, and keep 127.0.0.1 for an address.

    It would otherwise put the address that other machines see in its place, and listen there.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    told, is_outward = os.environ.get(_USAGE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_USAGE], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = is_outward
        _put_back(_USAGE, told)
        if in_main:
            signal.signal(signal.SIGTERM, handler)


def _join(address: str, deadline_seconds: float) -> None:
    try:
        found = services.canonicalize_bootstrap_address_or_die(address)
        host, _, port = found.rpartition(":")
        # Ray itself goes on trying, for a very long time, where nobody answers.
        socket.create_connection((host, int(port)), timeout=deadline_seconds).close()
        ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise PoolError(
            "The Ray cluster can't be joined.",
            seen=f"address {address}: {error}",
            fix="start it (`ray start --head`, `ray start --address HEAD:6379`) and name HEAD:6379",
        ) from error

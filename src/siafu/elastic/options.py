"""Where ranks listen for workers on other machines: one setting, alike on all ranks.

`tcp://10.0.0.5:7000` is an address of the one machine that all ranks are on, `tcp://eth0:7000` that
of an interface on each machine, and `tcp://auto:7000` the one each machine has towards the others.
"""

import ipaddress
import socket

from siafu.errors import ConfigError, PoolError

AUTO = "auto"
MOST_PORT = 65535
_ELSEWHERE = ("198.51.100.1", 9)
"""Of a network kept for documentation: in no machine's own, so routed as other machines are."""


def split_address(text: str, rank: int = 0) -> tuple[str, int]:
    """Return the host that a setting names, and a rank's port: the one it names + its number."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("tcp://")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) + rank <= MOST_PORT
    if not text.startswith("tcp://") or not host or not is_port:
        raise ConfigError(
            "No address of a socket.",
            seen=f"{text}, rank {rank}",
            fix="write tcp://HOST:PORT, with auto, an interface as eth0 or an address as HOST",
        )
    return host, int(port) + rank


def is_loopback(host: str) -> bool:
    """Return whether nobody but this machine can reach a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in ("localhost", "lo")


def own_host() -> str:
    """Return the address that this machine has towards others, by its routes; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError as error:
            raise PoolError(
                "This machine has no address towards others.",
                seen=f"tcp://{AUTO} on {socket.gethostname()}: {error}",
                fix="name the interface that workers reach it by, as tcp://eth0:7000",
            ) from error
        host: str = probe.getsockname()[0]
        return host

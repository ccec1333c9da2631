"""What a pool can be told, and where ranks listen for workers on other machines.

An address is one setting, alike on all ranks: `tcp://10.0.0.5:7000` is of the one machine that all
ranks are on, `tcp://eth0:7000` of an interface on each machine, and `tcp://auto:7000` the one each
machine has towards the others.
"""

import ipaddress
import socket
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from siafu.errors import ConfigError, PoolError

AUTO = "auto"
LOOPBACK = "tcp://127.0.0.1:*"
MOST_PORT = 65535
_EVERYWHERE = ("*", "0.0.0.0", "[::]")
_ELSEWHERE = ("198.51.100.1", 9)
"""Of a network kept for documentation: in no machine's own, so routed as other machines are."""


class PoolOptions(BaseModel):
    """The settings of a run that its pools read."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    pool_workers: str | None = Field(
        None, description="workers of each rank's pool, or auto (the default)"
    )
    cloud: str | None = Field(
        None,
        description="the simulated pool's delays and failures: aws-lambda (default), a latency as "
        "20ms, or a YAML file",
    )
    lambda_function: str | None = Field(
        None, description="name of the function in AWS Lambda (packaging/lambda)"
    )
    lambda_endpoint: str | None = Field(
        None, description="URL of a Lambda service other than AWS's own"
    )
    pool_address: str | None = Field(
        None,
        description="where functions reach ranks: tcp://auto:7000 (each machine's own address), "
        "an interface as tcp://eth0:7000, or an address of the one machine that all ranks are on; "
        "rank r listens at the port + r (default: loopback alone)",
    )
    seed: int = Field(
        0, ge=0, lt=2**63, description="seed of weights, dropout, splits and partition"
    )
    deadline: float = Field(
        300.0, gt=0, le=10**7, description="seconds any wait between ranks may last"
    )
    launcher: Literal["local", "ray"] = Field(
        "local", description="start ranks on this machine, or on the nodes of a Ray cluster"
    )
    ray_address: str = Field(
        "auto", description="the Ray cluster: auto, HOST:PORT, or local for one started here"
    )


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


def address_of_rank(text: str | None, rank: int) -> str:
    """Return where a rank listens: at the port of the setting + its number, else on loopback."""
    if text is None:
        return LOOPBACK
    host, port = split_address(text, rank)
    if host in _EVERYWHERE:
        raise ConfigError(
            "Workers can't connect to an address that stands for all of a machine's.",
            seen=text,
            fix="name one address or interface, or write tcp://auto:PORT",
        )
    return f"tcp://{own_host() if host == AUTO else host}:{port}"


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

"""What a pool can be told, and where ranks listen for workers on other machines.

An address is one setting, alike on all ranks: `tcp://10.0.0.5:7000` is of the one machine that all
ranks are on, `tcp://eth0:7000` of an interface on each machine, and `tcp://auto:7000` the one each
machine has towards the others.
"""

import ipaddress
import socket
from typing import ClassVar, Literal

from siafu.comm.options import MachineOptions
from siafu.errors import ConfigError, PoolError
from siafu.options import STATIC, Scope, setting

AUTO = "auto"
LOOPBACK = "tcp://127.0.0.1:*"
MOST_PORT = 65535
_EVERYWHERE = ("*", "0.0.0.0", "[::]")
_ELSEWHERE = ("198.51.100.1", 9)
"""Of a network kept for documentation: in no machine's own, so routed as other machines are."""
PIPELINE = Scope(
    lambda kind: kind.unit == "interval",
    "where no intervals are in a pipeline",
    "add --strategy dorylus",
)
SIMULATED = Scope(lambda kind: kind.pool == "simulated", "for this pool", "add --pool simulated")
LAMBDA = Scope(lambda kind: kind.pool == "aws-lambda", "for this pool", "add --pool aws-lambda")


class PoolOptions(MachineOptions):
    """Who does a pipeline's tensor work, and what that costs; beside where ranks run."""

    panel: ClassVar[str] = "Pool and bill (--strategy dorylus)"

    pool: Literal["none", "process", "ray", "aws-lambda", "simulated"] | None = setting(
        None, "who does a pipeline's tensor work (default: process)", STATIC, PIPELINE
    )
    pool_workers: str | None = setting(
        None, "workers per rank in the pool, or auto (the default)", STATIC, PIPELINE
    )
    pool_bits: int | None = setting(
        None, "bits per entry on its way to and from the pool: 32, 16, 8, 4", STATIC, PIPELINE
    )
    cloud: str | None = setting(
        None,
        "the simulated pool's delays and failures: aws-lambda (default), dorylus (the paper's), "
        "a latency as 20ms, or a YAML file",
        STATIC,
        PIPELINE,
        SIMULATED,
    )
    lambda_function: str | None = setting(
        None, "name of the function in AWS Lambda (packaging/lambda)", STATIC, PIPELINE, LAMBDA
    )
    lambda_endpoint: str | None = setting(
        None, "URL of a Lambda service other than AWS's own", STATIC, PIPELINE, LAMBDA
    )
    pool_address: str | None = setting(
        None,
        "where functions reach ranks: tcp://auto:7000 (each machine's own address), an interface "
        "as tcp://eth0:7000, or an address of the one machine that all ranks are on; rank r "
        "listens at the port + r (default: loopback alone)",
        STATIC,
        PIPELINE,
        LAMBDA,
    )
    pool_encryption: bool | None = setting(
        None,
        "encrypt what travels between ranks and functions (default); without, the run's key and "
        "all tensors travel in clear, in a private network alone",
        STATIC,
        PIPELINE,
        LAMBDA,
    )
    prices: str | None = setting(None, "a price file on top of siafu's own (TOML)", STATIC)
    instance: str | None = setting(
        None, "the instance type a rank is billed as (default: c5.xlarge)", STATIC
    )
    max_dollars: float | None = setting(
        None,
        "end training, saved, before the next epoch would bring the run's bill above so many "
        "dollars",
        STATIC,
        gt=0,
    )
    max_calls: int | None = setting(
        None,
        "end training, saved, before the next epoch would bring the calls of the pool above so "
        "many",
        STATIC,
        PIPELINE,
        gt=0,
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


def is_private(host: str) -> bool:
    """Return whether an address is one that no packet of the internet reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_private
    except ValueError:
        return is_loopback(host)


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

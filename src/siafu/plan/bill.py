"""What a run costs: machines by the second, invocations by memory and time, requests, transfer.

servers       instances x seconds x dollars per hour / 3600
pool compute  GB x seconds of every invocation x dollars a GB-second
pool requests invocations x dollars a million / 10^6
transfer      GB out and in x dollars a GB
value         1 / (seconds x dollars)
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from siafu.elastic.runner import round_up
from siafu.elastic.task import Usage
from siafu.errors import ConfigError
from siafu.plan.prices import Prices

_MB_PER_GB = 1024
"""Of memory, as functions are billed; bytes that travel are counted in 10^9."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """The machines that ranks run on, all of one kind."""

    instance: str
    ranks: int
    ranks_per_instance: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.ranks_per_instance < 1:
            raise ConfigError(
                "The number of machines can't be told.",
                seen=f"{self.ranks} ranks, {self.ranks_per_instance} on each instance",
                fix="give 1 or more of both",
            )

    @property
    def instances(self) -> int:
        """How many machines; the last one may have fewer ranks and costs the same."""
        return -(-self.ranks // self.ranks_per_instance)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolUsage:
    """What was asked of a pool: nothing, at first."""

    requests: int = 0
    """Every attempt counts, also of a task that another attempt had answered."""
    gb_seconds: float = 0.0
    billed_seconds: float = 0.0
    sent_bytes: int = 0
    """To the workers."""
    received_bytes: int = 0

    def __add__(self, other: "PoolUsage") -> "PoolUsage":
        """Return both together."""
        return PoolUsage(
            requests=self.requests + other.requests,
            gb_seconds=self.gb_seconds + other.gb_seconds,
            billed_seconds=self.billed_seconds + other.billed_seconds,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            received_bytes=self.received_bytes + other.received_bytes,
        )

    def times(self, factor: float) -> "PoolUsage":
        """Return the usage of so many times the work."""
        return PoolUsage(
            requests=round(self.requests * factor),
            gb_seconds=self.gb_seconds * factor,
            billed_seconds=self.billed_seconds * factor,
            sent_bytes=round(self.sent_bytes * factor),
            received_bytes=round(self.received_bytes * factor),
        )


def pool_usage(
    usages: Iterable[Usage], prices: Prices, *, memory_mb: float | None = None
) -> PoolUsage:
    """Return what invocations add up to, each rounded up to what is billed at least.

    `memory_mb` is that of a worker; the prices' own where nobody says.
    """
    memory = prices.lambda_price.memory_mb if memory_mb is None else memory_mb
    total = PoolUsage()
    for usage in usages:
        billed = round_up(usage.seconds, prices.lambda_price.step_seconds)
        total += PoolUsage(
            requests=1,
            gb_seconds=billed * memory / _MB_PER_GB,
            billed_seconds=billed,
            sent_bytes=usage.sent_bytes,
            received_bytes=usage.received_bytes,
        )
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """The dollars of one run, item by item; `make_bill` makes one."""

    seconds: float
    epochs: int
    servers: Servers
    usage: PoolUsage
    prices_date: str
    prices_file: str
    servers_dollars: float
    pool_compute_dollars: float
    pool_requests_dollars: float
    transfer_dollars: float

    @property
    def dollars(self) -> float:
        """All items together."""
        pool = self.pool_compute_dollars + self.pool_requests_dollars
        return self.servers_dollars + pool + self.transfer_dollars

    @property
    def dollars_per_epoch(self) -> float | None:
        """None where no epoch was trained."""
        return self.dollars / self.epochs if self.epochs else None

    @property
    def value(self) -> float | None:
        """1 / (seconds x dollars); None where one of them is nothing.

        Values compare runs of equally many epochs only.
        """
        product = self.seconds * self.dollars
        return 1 / product if product > 0 else None

    def rows(self) -> dict[str, str]:
        """Return the lines to print, by label."""
        servers = f"{self.servers.instances} x {self.servers.instance}, {self.seconds:.4g} s"
        rows = {"dollars": f"{_dollars(self.dollars)}  ({servers}; prices of {self.prices_date})"}
        if self.usage.requests:
            rows["  servers"] = _dollars(self.servers_dollars)
            rows["  pool"] = (
                f"{_dollars(self.pool_compute_dollars)} for {self.usage.gb_seconds:.4g} GB-s, "
                f"{_dollars(self.pool_requests_dollars)} for {self.usage.requests} requests"
            )
            moved = self.usage.sent_bytes + self.usage.received_bytes
            rows["  transfer"] = f"{_dollars(self.transfer_dollars)} for {moved / 1e9:.3g} GB"
        if self.dollars_per_epoch is not None:
            rows["dollars/epoch"] = _dollars(self.dollars_per_epoch)
        if self.value is not None:
            rows["value"] = f"{self.value:.4g} = 1 / (seconds x dollars)"
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        return {
            **asdict(self),
            "instances": self.servers.instances,
            "dollars": self.dollars,
            "dollars_per_epoch": self.dollars_per_epoch,
            "value": self.value,
        }


def make_bill(
    prices: Prices,
    servers: Servers,
    *,
    seconds: float,
    epochs: int,
    usage: PoolUsage | None = None,
) -> Bill:
    """Return what `epochs` epochs in `seconds` of wall time cost on these machines.

    `usage` is of all ranks together.
    """
    assert min(seconds, epochs) >= 0, "a run takes time and has epochs"
    usage = PoolUsage() if usage is None else usage
    per_hour = prices.instance(servers.instance).dollars_per_hour
    billed = round_up(seconds, prices.instance_step_seconds)
    per_request = prices.lambda_price.dollars_per_million_requests / 1e6
    out = usage.sent_bytes / 1e9 * prices.route.dollars_per_gb_out
    back = usage.received_bytes / 1e9 * prices.route.dollars_per_gb_in
    return Bill(
        seconds=seconds,
        epochs=epochs,
        servers=servers,
        usage=usage,
        prices_date=prices.date.isoformat(),
        prices_file=prices.path.name,
        servers_dollars=servers.instances * billed * per_hour / 3600,
        pool_compute_dollars=usage.gb_seconds * prices.lambda_price.dollars_per_gb_second,
        pool_requests_dollars=usage.requests * per_request,
        transfer_dollars=out + back,
    )


def _dollars(amount: float) -> str:
    """Return an amount to three digits at least, never as a power of ten."""
    digits = 2 if amount == 0 else max(2, 2 - math.floor(math.log10(amount)))
    return f"${amount:.{digits}f}"

"""What a cluster in virtual time is told and tells: work, servers, times."""

from dataclasses import dataclass, field

from siafu.elastic.pools.cloud import CloudModel

SERVING_PER_BYTE = 1.34e-9
SERVING_PER_BYTE_IN_CLEAR = 0.41e-9
SERVING_PER_TASK = 1.2e-3
"""Core seconds that a pool on other machines costs its server: `benchmarks.offload`, and a call by
AWS's client."""
USUAL_CARD_BYTES = 1.25e9
"""Of a cloud server: 10 Gbit/s."""


@dataclass(frozen=True, slots=True)
class TensorWork:
    """A tensor task of one interval."""

    kind: str
    core_seconds: float
    """On one core of a server."""
    sent_bytes: int
    """Of this epoch alone."""
    received_bytes: int
    weight_bytes: int = 0
    """Kept by a worker for as long as the version is in use."""
    constants: tuple[tuple[str, int], ...] = ()
    """Names and bytes of what a worker may keep to the end of the run."""


@dataclass(frozen=True, slots=True)
class GraphWork:
    """Rows of one interval to those who read them, and the gather that waits for theirs."""

    direction: int
    layer: int
    core_seconds: float
    sent_bytes: int
    """To other servers."""


Script = tuple[TensorWork | GraphWork, ...]
"""An interval's epoch, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlan:
    """The servers and how they work."""

    servers: int
    intervals: int
    """Per server."""
    cores: float
    """Of a server."""
    card_bytes: float = float("inf")
    """Bytes per second that a server's card passes, each way."""
    cloud: CloudModel | None = None
    """Of the pool; without one tensor tasks are done by the server's cores."""
    workers: int | None = None
    """Per server; None lets the tuner choose."""
    staleness: int = 0
    latest: bool = False
    overlap: bool = True
    weight_bytes: int = 0
    step_seconds: float = 0.0
    """Of the optimiser."""
    message_seconds: float = 0.0
    """Latency between servers."""
    serving_per_byte: float = 0.0
    serving_per_task: float = 0.0
    """Core seconds that a pool costs its server."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRun:
    """What a simulated cluster took."""

    epoch_seconds: float
    """Mean of the epochs after the first ones."""
    first_seconds: float
    """Of the first epoch: cold starts, constants on their way."""
    requests: float
    billed_seconds: float
    sent_bytes: float
    received_bytes: float
    """Per epoch, of all servers, after the first ones."""
    workers: float
    """Per server, at the end."""
    core_share: float
    """Of the servers' core seconds, those that were used."""
    card_share: float
    counters: dict[str, int] = field(default_factory=dict)
    num_events: int = 0

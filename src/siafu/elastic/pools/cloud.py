"""What a cloud function does to a task, as a stated model: delays, memory, faults, billing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from siafu.elastic.runner import round_up
from siafu.errors import ConfigError
from siafu.ops.random.reference import philox

_WORD = 0xFFFFFFFF
_CROWD = 100
"""Workers at which the paper gives the second bandwidth."""
_CHANCES = ("failure", "loss", "duplicate", "straggler")
_AMOUNTS = (
    "latency_seconds",
    "latency_sigma",
    "cold_start_seconds",
    "warm_seconds",
    "memory_gb",
    "runtime_gb",
)


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to one attempt, drawn before it begins."""

    fails: bool
    """Answered with a failure, without a result."""
    is_lost: bool
    """Computed and paid for, never answered."""
    is_duplicated: bool
    """Answered twice."""
    slowdown: float
    """1, or the factor of a straggler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudModel:
    """A cloud function's times and faults; without arguments only computing takes time."""

    latency_seconds: float = 0.0
    """Of a request and its answer together: the median of calls."""
    latency_sigma: float = 0.0
    """How far latencies spread: the standard deviation of their logarithm; 0 for all alike."""
    cold_start_seconds: float = 0.0
    """Before a worker's first task, and after it has been idle too long; not billed."""
    warm_seconds: float = math.inf
    """How long an idle worker stays warm and keeps its bundles."""
    bandwidth_alone: float = math.inf
    """Bits per second to or from a worker that runs alone."""
    bandwidth_crowded: float | None = None
    """The same at 100 workers or more, on a straight line between; without it as alone."""
    speed: float = 1.0
    """A worker's, in terms of this machine's: 0.5 takes twice as long. No result comes before it
    was computed here, so above 1 the other delays must hide the difference."""
    failure: float = 0.0
    """Chance that an attempt is answered with a failure."""
    loss: float = 0.0
    """Chance that the answer is lost."""
    duplicate: float = 0.0
    """Chance that the answer comes twice."""
    straggler: float = 0.0
    """Chance that an attempt takes `straggler_factor` times as long."""
    straggler_factor: float = 10.0
    billing_seconds: float = 0.001
    """Busy time is billed in whole multiples of this."""
    memory_gb: float = 0.0
    """Of a worker; billing multiplies by it. 0 is without a bound, and not billed."""
    runtime_gb: float = 0.0
    """What of it the worker's own code and libraries take; the rest holds tensors."""

    def __post_init__(self) -> None:
        for name in _CHANCES:
            if not 0 <= getattr(self, name) <= 1:
                self._refuse(name, "use a chance from 0 to 1")
        for name in ("bandwidth_alone", "bandwidth_crowded", "speed", "billing_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                self._refuse(name, "use a number above 0")
        for name in _AMOUNTS:
            if not getattr(self, name) >= 0:
                self._refuse(name, "use 0 or more")
        if self.memory_gb and not self.runtime_gb < self.memory_gb:
            self._refuse("runtime_gb", "leave memory for tensors: less than memory_gb")
        if not self.straggler_factor >= 1:
            self._refuse("straggler_factor", "use 1 or more")
        if self.bandwidth_crowded is not None and math.isinf(self.bandwidth_alone):
            self._refuse("bandwidth_alone", "set it beside bandwidth_crowded")

    def _refuse(self, name: str, fix: str) -> None:
        raise ConfigError(
            f"{name} of the cloud model is out of range.", seen=f"{getattr(self, name)}", fix=fix
        )

    @classmethod
    def ideal(cls, *, latency_seconds: float = 0.0) -> Self:
        """Return a model in which only latency and computing take time."""
        return cls(latency_seconds=latency_seconds)

    @classmethod
    def aws_lambda(cls) -> Self:
        """Return a function of 1769 MB, which is one virtual core: the one that is packaged.

        Nothing here was measured in AWS. Memory and core are AWS's own statement, the runtime's
        share is that of torch here, bandwidth is what functions of that size were reported to have;
        latency, its spread, starts and faults are plain assumptions, to be replaced.
        """
        return cls(
            latency_seconds=0.02,
            latency_sigma=0.3,
            cold_start_seconds=4.0,
            warm_seconds=300.0,
            bandwidth_alone=600e6,
            bandwidth_crowded=300e6,
            failure=1e-4,
            loss=1e-4,
            straggler=0.01,
            straggler_factor=5.0,
            memory_gb=1769 / 1024,
            runtime_gb=0.4,
        )

    @classmethod
    def dorylus(cls) -> Self:
        """Return a Lambda of 192 MB as Thorpe et al. (2021) used them, without torch.

        Size, share of a core and bandwidths are the paper's. Latency, starts and faults it does
        not give: those are plain assumptions, to be replaced by what is measured.
        """
        return cls(
            latency_seconds=0.02,
            latency_sigma=0.3,
            cold_start_seconds=0.5,
            warm_seconds=300.0,
            bandwidth_alone=800e6,
            bandwidth_crowded=200e6,
            speed=0.11,
            failure=1e-4,
            loss=1e-4,
            straggler=0.01,
            straggler_factor=5.0,
            memory_gb=0.1875,
            runtime_gb=0.03,
        )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, float]) -> Self:
        """Return a model from the fields of a file; what it does not name is ideal."""
        known = [field.name for field in fields(cls)]
        for name, value in settings.items():
            if name not in known:
                raise ConfigError(
                    "The cloud model has no such field.", seen=name, fix=f"use {', '.join(known)}"
                )
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(
                    f"{name} of the cloud model is no number.",
                    seen=f"{value!r}",
                    fix="use a number",
                )
        return cls(**{name: float(value) for name, value in settings.items()})

    def transfer_seconds(self, num_bytes: int, workers_in_use: int) -> float:
        """Return how long bytes take to or from one of so many busy workers."""
        alone, crowded = self.bandwidth_alone, self.bandwidth_crowded
        if crowded is None or workers_in_use <= 1:
            return 8 * num_bytes / alone
        share = min(1.0, (workers_in_use - 1) / (_CROWD - 1))
        return 8 * num_bytes / ((1 - share) * alone + share * crowded)

    @property
    def tensor_bytes(self) -> float:
        """What a worker can hold of tensors."""
        room = self.memory_gb - self.runtime_gb
        return room * 2**30 if self.memory_gb else math.inf

    def latency(self, normal: float) -> float:
        """Return a call's latency, given a draw from the standard normal distribution."""
        return self.latency_seconds * math.exp(self.latency_sigma * normal)

    def billed_seconds(self, busy_seconds: float) -> float:
        """Return the time that is paid for."""
        return round_up(busy_seconds, self.billing_seconds)

    def draw(self, seed: int, number: int, attempt: int) -> Faults:
        """Return what happens to an attempt at a task: the same for the same three numbers."""
        counter = (number & _WORD, (number >> 32) & _WORD, attempt & _WORD, 0)
        words = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
        hits = {
            name: word / 2**32 < getattr(self, name)
            for name, word in zip(_CHANCES, words, strict=True)
        }
        return Faults(
            fails=hits["failure"],
            is_lost=hits["loss"],
            is_duplicated=hits["duplicate"],
            slowdown=self.straggler_factor if hits["straggler"] else 1.0,
        )

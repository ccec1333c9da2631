"""How an epoch is cut up, how neighbours are reached, and what may be lost: one frozen value."""

from dataclasses import dataclass
from typing import Literal

from siafu.config import did_you_mean
from siafu.errors import ConfigError

Exactness = Literal["exact", "unbiased", "bounded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """Independent choices; the published systems are presets, other points are free."""

    unit: Literal["graph"] = "graph"
    """What one step works on."""
    stages: int = 1
    """Groups of blocks fetched one after another; 1 fetches all at once."""

    def __post_init__(self) -> None:
        if self.stages != 1:
            raise ConfigError(
                "Only one stage is available.",
                seen=f"stages={self.stages}",
                fix="use stages=1, which fetches all halo rows at once",
            )

    @property
    def exactness(self) -> Exactness:
        """Whether a step equals one process, does so on average, or lags by a bound."""
        return "exact"


PRESETS: dict[str, Strategy] = {"halo": Strategy()}


def find_strategy(name: str) -> Strategy:
    """Return the preset of that name."""
    if name not in PRESETS:
        raise ConfigError(
            "Unknown strategy.",
            seen=f"{name}{did_you_mean(name, list(PRESETS))}",
            fix=f"use one of: {', '.join(sorted(PRESETS))}",
        )
    return PRESETS[name]

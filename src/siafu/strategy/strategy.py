"""How an epoch is cut up, how neighbours are reached, and what may be lost: one frozen value."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from siafu.config import did_you_mean
from siafu.errors import ConfigError

Exactness = Literal["exact", "unbiased", "bounded"]

EVERY_PEER = 1 << 30
"""More stages than there are ranks: one for each peer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """Independent choices; the published systems are presets, other points are free."""

    unit: Literal["graph"] = "graph"
    """What one step works on."""
    stages: int | Literal["auto"] = 1
    """Groups of peers whose rows are fetched one after another: 1 fetches all at once, as many as
    there are ranks one peer at a time; `auto` takes the fewest that a memory budget allows."""
    recompute: bool = False
    """Fetch rows again in backward where the gradient needs them, instead of keeping them."""
    input_cache: bool = False
    """Aggregate the constant input of the first layer once."""
    prune: bool = False
    """Leave out what does not influence labelled vertices, layer by layer."""

    def __post_init__(self) -> None:
        if self.stages != "auto" and (not isinstance(self.stages, int) or self.stages < 1):
            raise ConfigError(
                "The number of stages can't be used.",
                seen=f"stages={self.stages}",
                fix="use 1 (all halo rows at once) to the number of ranks, or auto",
            )

    @property
    def exactness(self) -> Exactness:
        """Whether a step equals one process, does so on average, or lags by a bound."""
        return "exact"

    def stages_of(self, ranks: int) -> int:
        """Return the number of stages as it counts: one for each rank at most."""
        assert self.stages != "auto", "the plan settles that"
        return min(self.stages, ranks)

    def choices(self, ranks: int) -> dict[str, int | bool]:
        """Return the choices by name, as a run reports them."""
        return {
            "stages": self.stages_of(ranks),
            "recompute": self.recompute,
            "input_cache": self.input_cache,
            "prune": self.prune,
        }

    def with_choices(self, **choices: Any) -> "Strategy":
        """Return the same strategy with those choices that are not None."""
        return replace(self, **{key: value for key, value in choices.items() if value is not None})


PRESETS: dict[str, Strategy] = {
    "halo": Strategy(),
    "sar": Strategy(stages=EVERY_PEER, recompute=True),
}


def find_strategy(name: str) -> Strategy:
    """Return the preset of that name."""
    if name not in PRESETS:
        raise ConfigError(
            "Unknown strategy.",
            seen=f"{name}{did_you_mean(name, list(PRESETS))}",
            fix=f"use one of: {', '.join(sorted(PRESETS))}",
        )
    return PRESETS[name]

"""How a sequence of snapshots is cut and exchanged: one frozen value."""

from dataclasses import dataclass, field
from typing import Any, Literal

from siafu.comm import Format
from siafu.errors import ConfigError
from siafu.strategy.strategy import Strategy

TimeExchange = Literal["all-to-all", "banded", "wavefront"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeStrategy:
    """Independent choices about time; all but `wire` are exact."""

    block: int = 0
    """Snapshots worked on at once; between blocks only what crosses their border is kept, and
    backward computes a block again. 0 takes all of them: no border, nothing computed twice."""
    exchange: Literal["auto", "all-to-all", "banded", "wavefront"] = "auto"
    """How temporal layers reach other ranks' snapshots: redistribute rows by node and back, fetch
    the snapshots of a band, or hand the state on; `auto` takes the quickest for each layer."""
    chunks: int = 0
    """Groups of nodes that travel one after another, so that one is worked on while others are on
    their way; 1 for none, 0 for a few. Rounded rows go together."""
    rounding: Strategy = field(default_factory=Strategy)
    """Whose `wire`, `wire_bits` and `wire_period` are those of rows on their way along time, and of
    their gradients; states that are handed on travel whole."""

    def __post_init__(self) -> None:
        if self.block < 0 or self.chunks < 0:
            raise ConfigError(
                "A number of snapshots or groups can't be negative.",
                seen=f"block={self.block}, chunks={self.chunks}",
                fix="use 0 (all at once) or more",
            )

    @property
    def mean_bits(self) -> float:
        """Bits of an entry on its way, on average."""
        if self.rounding.assigns_widths:
            return self.rounding.wire_bits
        return Format.of_wire(self.rounding.wire).bits

    def num_chunks(self, num_nodes: int, num_ranks: int) -> int:
        """Return the groups of nodes of a hand-over: the more, the less ranks wait."""
        if self.chunks:
            return min(self.chunks, max(1, num_nodes))
        return max(1, min(4 * num_ranks, num_nodes // _LEAST_CHUNK)) if num_ranks > 1 else 1

    def choices(self) -> dict[str, Any]:
        """Return what a summary tells of the strategy."""
        choices: dict[str, Any] = {"time_block": self.block, "time_exchange": self.exchange}
        choices["wire"] = self.rounding.wire
        if self.rounding.precision != "float32":
            choices["precision"] = self.rounding.precision
        if self.rounding.assigns_widths:
            names = ("wire_bits", "wire_period")
            choices |= {name: getattr(self.rounding, name) for name in names}
        return choices


_LEAST_CHUNK = 256
"""Nodes below which a message costs more than the wait it saves."""

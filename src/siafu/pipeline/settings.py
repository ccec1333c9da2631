"""How a rank's work is cut up and how far intervals may drift apart."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a rank's work is cut up and how far intervals may drift apart."""

    intervals: int = 8
    staleness: int = 0
    latest: bool = False
    """Gathers read what is there, at most one epoch older than `staleness`, instead of waiting."""
    overlap: bool = True
    """False: graph tasks and tensor tasks take turns, for comparison."""
    bits: int = 32
    """Of an entry on its way to and from the pool."""

    @property
    def most_age(self) -> int:
        """Epochs that a row may be old when it is read."""
        return self.staleness + int(self.latest)

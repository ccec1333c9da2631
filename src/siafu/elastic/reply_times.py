"""How long tasks of each kind take to be answered, and how long one may."""

from collections import deque
from dataclasses import dataclass, field
from statistics import quantiles

_OLD_SHARE = 0.95
"""Of the moving average, what stays when another time is noted."""
_RECENT = 256


@dataclass(frozen=True, slots=True)
class KindTimes:
    """Seconds from asking to the answer, for tasks of one kind."""

    count: int
    average: float
    """Moving: the last 20 weigh as much as all before."""
    median: float
    """Of the last 256, as the next."""
    percentile_95: float
    longest: float
    """Of all."""


@dataclass(slots=True)
class _Kind:
    count: int = 0
    average: float = 0.0
    longest: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def note(self, seconds: float) -> None:
        share = _OLD_SHARE if self.count else 0.0
        self.average = share * self.average + (1 - share) * seconds
        self.longest = max(self.longest, seconds)
        self.recent.append(seconds)
        self.count += 1


class ReplyTimes:
    """Moving averages by kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def note(self, kind: str, seconds: float) -> None:
        """Take in how long one task took."""
        self._kinds.setdefault(kind, _Kind()).note(seconds)

    def average(self, kind: str) -> float | None:
        """Return the expected seconds, or None as long as no task of the kind was answered."""
        return self._kinds[kind].average if kind in self._kinds else None

    def by_kind(self) -> dict[str, KindTimes]:
        """Return what is known of each kind."""
        return {name: _describe(kind) for name, kind in self._kinds.items()}


def _describe(kind: _Kind) -> KindTimes:
    recent = list(kind.recent)
    # Two values at least are needed for a cut between them.
    cuts = quantiles(recent * 2 if len(recent) == 1 else recent, n=20, method="inclusive")
    return KindTimes(kind.count, kind.average, cuts[9], cuts[18], kind.longest)

"""How long messages take: seconds = start + bytes x byte_seconds for each ordered pair of ranks.

Shapes: P ranks, L lanes, X exchanges. A lane is one ordered pair in one exchange.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from siafu.errors import PlanError

Array = NDArray[Any]

OUTLIER = 1.5
"""Residuals beyond so many typical ones count less: a busy machine only ever makes links slower."""

REFITS = 20
FASTEST = 1e-12
"""Seconds a byte: less than any link takes, and enough to tell bytes apart in a sum of seconds."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two ranks."""

    start_seconds: float
    """What a message costs before its first byte."""

    byte_seconds: float
    """What each byte adds."""

    def seconds(self, num_bytes: float) -> float:
        """Return how long a message takes."""
        return self.start_seconds + self.byte_seconds * num_bytes


def fit_link(num_bytes: ArrayLike, seconds: ArrayLike) -> Link:
    """Return the link that explains the samples best, neither part below 0.

    Least squares of relative errors, so that short messages count as much as long ones; refitted
    with less weight on samples far off (Huber), since noise is one-sided and large.
    """
    x, y = np.asarray(num_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    is_fine = x.shape == y.shape and x.ndim == 1 and len(np.unique(x)) > 1
    if not is_fine or not (np.isfinite(x) & np.isfinite(y) & (y > 0)).all():
        raise PlanError(
            "A link needs messages of two sizes or more, and the seconds each took.",
            seen=f"sizes {x.shape}, seconds {y.shape}",
            fix="time several sizes, each more than 0 seconds",
        )
    trust = np.ones_like(x)
    for _ in range(REFITS):
        link = _least_squares(x, y, trust / y**2)
        off = np.abs(link.start_seconds + link.byte_seconds * x - y) / y
        typical = max(1.4826 * float(np.median(off)), 1e-12)
        trust = np.minimum(1.0, OUTLIER * typical / np.maximum(off, 1e-300))
    return link


def _least_squares(x: Array, y: Array, weight: Array) -> Link:
    total, mean_x = weight.sum(), (weight * x).sum() / weight.sum()
    mean_y = (weight * y).sum() / total
    slope = (weight * (x - mean_x) * (y - mean_y)).sum() / (weight * (x - mean_x) ** 2).sum()
    start = mean_y - slope * mean_x
    if slope < 0:
        return Link(float(mean_y), 0.0)
    if start < 0:
        return Link(0.0, float((weight * x * y).sum() / (weight * x * x).sum()))
    return Link(float(start), float(slope))


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Every lane's link, and the round in which it is used; a round lasts as long as its slowest.

    Lanes without messages take no time.
    """

    start_seconds_L: Array
    byte_seconds_L: Array
    round_L: Array

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.start_seconds_L, self.byte_seconds_L, self.round_L)}
        is_sound = len(shapes) == 1 and self.start_seconds_L.ndim == 1
        if not is_sound or (self.start_seconds_L < 0).any() or (self.byte_seconds_L < 0).any():
            raise PlanError(
                "Lanes need three rows of one length, and times of 0 or more.",
                seen=f"shapes {sorted(shapes)}",
                fix="give each lane a start, seconds a byte and a round",
            )

    @property
    def num_rounds(self) -> int:
        """Rounds are numbered from 0."""
        return int(self.round_L.max(initial=-1)) + 1

    def seconds(self, bytes_L: Array, used_L: Array) -> float:
        """Return how long all rounds take together."""
        time_L = np.where(used_L, self.start_seconds_L + self.byte_seconds_L * bytes_L, 0.0)
        slowest_R = np.zeros(self.num_rounds)
        np.maximum.at(slowest_R, self.round_L, time_L)
        return float(slowest_R.sum())


def ring_lanes(links_PP: list[list[Link]], num_exchanges: int = 1) -> Lanes:
    """Return the lanes of exchanges in rounds: in round r every rank i sends to (i + r + 1) mod P.

    Lane (x * P + i) * P + j is exchange x, rank i to rank j; i = j exists, and stays empty.
    """
    size = len(links_PP)
    source, target = np.divmod(np.arange(size * size), size)
    rounds = (target - source - 1) % size
    start = np.array([link.start_seconds for row in links_PP for link in row])
    slope = np.array([link.byte_seconds for row in links_PP for link in row])
    exchange = np.repeat(np.arange(num_exchanges), size * size)
    return Lanes(
        np.tile(start, num_exchanges),
        np.tile(slope, num_exchanges),
        np.tile(rounds, num_exchanges) + size * exchange,
    )

"""Which width each row travels at: the least variance that a budget of bytes or seconds buys.

A row sent at b bits adds beta / (2^b - 1)^2 to the variance of what its receivers aggregate, with
beta = (sum of squared aggregation coefficients) x (max - min)^2 x D / 6. The best choice raises the
widths that gain most for each byte, or second, first; see `width_search`. Messages are numbered as
the caller likes, and come back in the same order; layers and directions are lanes like any other.

Rows that share a width are one message: beta is then that of all of them together.

Shapes: K messages (rows to one peer in one exchange), L lanes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.comm.links import FASTEST, Lanes
from siafu.comm.width_search import Search, Steps, chain_of, least_variance
from siafu.errors import PlanError

Array = NDArray[Any]

CHOICES = (2, 4, 8)


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """What is to be sent: row k has the sensitivity beta[k] and width[k] entries."""

    beta_K: Array
    """float64; see `sensitivity`. A row that never changes has 0 and travels at the least width."""

    width_K: Array
    """D of each row."""

    lane_K: Array
    """The lane it travels in; see `links.Lanes`. All 0 where only bytes count."""

    element_size: int = 4
    """Bytes of an entry before it is encoded."""

    rows_K: Array | None = None
    """Rows that share a width; None: one each."""

    def __post_init__(self) -> None:
        is_sound = self.beta_K.ndim == 1 and (
            self.beta_K.shape == self.width_K.shape == self.lane_K.shape == self.counts().shape
        )
        if not is_sound or not (np.isfinite(self.beta_K) & (self.beta_K >= 0)).all():
            raise PlanError(
                "Messages need sensitivities of 0 or more, and a width and a lane for each.",
                seen=f"{self.beta_K.shape}, {self.width_K.shape}, {self.lane_K.shape}; "
                f"least {self.beta_K.min(initial=0)}",
                fix="pass three arrays of one length; leave out rows that are not finite",
            )

    def __len__(self) -> int:
        return len(self.beta_K)

    def counts(self) -> Array:
        """Return the rows of each message."""
        return np.ones(len(self), np.int64) if self.rows_K is None else self.rows_K


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Widths and what they cost."""

    bits_K: Array
    """uint8, in the order of the messages."""

    variance: float
    num_bytes: int
    seconds: float
    """By the link model; 0 where no lanes were given."""


def sensitivity(square_sums_K: Array, ranges_K: Array, width: int) -> Array:
    """Return beta: `square_sums` adds up the squared coefficients that a row is aggregated with.

    `ranges` is the root of the mean of (max - min)^2 over the epochs traced. Sums of squares, not
    squares of sums: draws of different rows and epochs are independent.
    """
    return np.asarray(square_sums_K, np.float64) * np.square(ranges_K, dtype=np.float64) * width / 6


def assign_bytes(
    messages: Messages, budget_bytes: float, choices: Sequence[int] = CHOICES
) -> Assignment:
    """Return the widths of least variance in `budget_bytes`; the least widths if none fit."""
    one_lane = replace(messages, lane_K=np.zeros(len(messages), np.int64))
    a_byte_a_second = Lanes(np.zeros(1), np.ones(1), np.zeros(1, np.int64))
    found = _assign(one_lane, a_byte_a_second, choices, seconds=float(budget_bytes))
    return replace(found, seconds=0.0)


def assign_seconds(
    messages: Messages, lanes: Lanes, budget_seconds: float, choices: Sequence[int] = CHOICES
) -> Assignment:
    """Return the widths of least variance whose rounds take `budget_seconds` together.

    Lanes that wait for a slower one of their round carry more bits at no cost, whatever the budget.
    """
    return _assign(messages, lanes, choices, seconds=budget_seconds)


def assign_tradeoff(
    messages: Messages, lanes: Lanes, variance_weight: float, choices: Sequence[int] = CHOICES
) -> Assignment:
    """Return the widths that minimise w x variance + (1 - w) x seconds.

    Both count from 0 (best anyone can do) to 1 (all rows at the least, or the largest, width).
    """
    if not 0 < variance_weight < 1:
        raise PlanError(
            "The weight of variance is out of range.",
            seen=f"{variance_weight}",
            fix="use more than 0 and less than 1",
        )
    low, high = (
        cost_of(messages, uniform_widths(len(messages), bits), lanes)
        for bits in (min(choices), max(choices))
    )
    worth = (1 - variance_weight) / max(high.seconds - low.seconds, 1e-300)
    rate = worth * max(low.variance - high.variance, 0.0) / variance_weight
    return _assign(messages, lanes, choices, least_rate=rate)


def uniform_widths(count: int, bits: int) -> Array:
    """Return the same width for every message."""
    return np.full(count, bits, np.uint8)


def random_assignment(
    messages: Messages, budget_bytes: float, seed: int, choices: Sequence[int] = CHOICES
) -> Assignment:
    """Return what `assign_bytes` gives when sensitivities are noise; for comparison."""
    noise_K = np.random.default_rng(seed).exponential(size=len(messages))
    blind = assign_bytes(replace(messages, beta_K=noise_K), budget_bytes, choices)
    return cost_of(messages, blind.bits_K)


def mean_bits_budget(messages: Messages, mean_bits: float) -> float:
    """Return the bytes that rows of `mean_bits` an entry have, side data included."""
    return float(((8 + messages.width_K * mean_bits / 8) * messages.counts()).sum())


def cost_of(messages: Messages, bits_K: Array, lanes: Lanes | None = None) -> Assignment:
    """Return an assignment with what it costs."""
    size_K, factor_K = np.zeros(len(messages)), np.zeros(len(messages))
    for width in np.unique(messages.width_K):
        for bits in np.unique(bits_K):
            chosen = (messages.width_K == width) & (bits_K == bits)
            (size,), (factor,) = chain_of(int(width), messages.element_size, [int(bits)])[1:3]
            size_K[chosen], factor_K[chosen] = size, factor
    size_K *= messages.counts()
    seconds = 0.0
    if lanes is not None:
        count = len(lanes.round_L)
        bytes_L = np.bincount(messages.lane_K, size_K, minlength=count)
        seconds = lanes.seconds(bytes_L, np.bincount(messages.lane_K, minlength=count) > 0)
    variance = float((messages.beta_K * factor_K).sum())
    return Assignment(bits_K.astype(np.uint8), variance, int(size_K.sum()), seconds)


def _assign(
    messages: Messages,
    lanes: Lanes,
    choices: Sequence[int],
    *,
    seconds: float | None = None,
    least_rate: float | None = None,
) -> Assignment:
    if len(messages) and not 0 <= messages.lane_K.min() <= messages.lane_K.max() < len(
        lanes.round_L
    ):
        raise PlanError(
            "A message travels in a lane that does not exist.",
            seen=f"{messages.lane_K.min()} to {messages.lane_K.max()}, of {len(lanes.round_L)}",
            fix="number lanes from 0, as in `Lanes`",
        )
    # a link too fast to measure still ranks its rows by what they gain
    usable = replace(lanes, byte_seconds_L=np.maximum(lanes.byte_seconds_L, FASTEST))
    steps = Steps.build(
        messages.beta_K,
        messages.width_K,
        messages.counts(),
        messages.lane_K,
        messages.element_size,
        choices,
    )
    bits_K = least_variance(Search(steps, usable), seconds=seconds, least_rate=least_rate)
    return cost_of(messages, bits_K, lanes)

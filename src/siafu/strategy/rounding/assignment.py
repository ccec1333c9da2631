"""Which format each row travels in: the least variance that a budget of bytes buys.

A row sent at b bits adds beta / (2^b - 1)^2 to the variance of what its receivers aggregate, with
beta = (sum of squared aggregation coefficients) x (max - min)^2 x D / 6. A row's formats form a
chain, each step adding bytes and taking variance away, less for each byte from step to step. So the
best use of some bytes takes the steps of all rows by gain per byte; where that leaves bytes over,
counts of steps near those are tried. Messages are numbered as the caller likes, and come back in
the same order. Rows that share a format are one message: beta is that of all of them together.

Shapes: K messages (rows to one peer in one exchange), J steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.comm import Format
from siafu.errors import PlanError

Array = NDArray[Any]

CHOICES = (Format("rounded", 2), Format("rounded", 4), Format("rounded", 8))
"""What rows are given, the smallest first."""

CHANGE_CHOICES = (Format("kept", 0), Format("rounded", 1), *CHOICES)
"""What changes are given where there are fewer than 2 bits for an entry."""

REACH = 12
"""How far from the threshold rule's counts others are tried."""

FEW_STEPS = 400
"""With more, one row is too little to matter, and what is left is only filled up."""

SMALL = 300
"""Messages up to which other budgets near the given one are tried; in more, a row is too little."""

MOST_ROOMS = 50
MOST_MOVES = 50


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """What is to be sent: row k has the sensitivity beta[k] and width[k] entries."""

    beta_K: Array
    """float64; see `sensitivity`. A row that never changes has 0 and the smallest format."""

    width_K: Array
    """D of each row."""

    rows_K: Array | None = None
    """Rows that share a format; None: one each."""

    def __post_init__(self) -> None:
        is_sound = self.beta_K.ndim == 1 and (
            self.beta_K.shape == self.width_K.shape == self.counts().shape
        )
        if not is_sound or not (np.isfinite(self.beta_K) & (self.beta_K >= 0)).all():
            raise PlanError(
                "Messages need sensitivities of 0 or more, and a width for each.",
                seen=f"{self.beta_K.shape}, {self.width_K.shape}; "
                f"least {self.beta_K.min(initial=0)}",
                fix="pass arrays of one length; leave out rows that are not finite",
            )

    def __len__(self) -> int:
        return len(self.beta_K)

    def counts(self) -> Array:
        """Return the rows of each message."""
        return np.ones(len(self), np.int64) if self.rows_K is None else self.rows_K


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Formats and what they cost."""

    codes_K: Array
    """uint8: `Format.code`, in the order of the messages."""

    variance: float
    num_bytes: int


def sensitivity(square_sums_K: Array, ranges_K: Array, width: int) -> Array:
    """Return beta: `square_sums` adds up the squared coefficients that a row is aggregated with.

    `ranges` is the root of the mean of (max - min)^2 over the epochs traced. Sums of squares, not
    squares of sums: draws of different rows and epochs are independent.
    """
    return np.asarray(square_sums_K, np.float64) * np.square(ranges_K, dtype=np.float64) * width / 6


def assign_bytes(
    messages: Messages, budget_bytes: float, choices: Sequence[Format] = CHOICES
) -> Assignment:
    """Return the formats of least variance in `budget_bytes`; the smallest if none fit."""
    steps = FormatSteps.build(messages, choices)
    room = min(max(budget_bytes - steps.least_bytes, 0.0), float(steps.bytes_J.sum()))
    if len(messages) <= SMALL:
        limit = max(float(budget_bytes), steps.least_bytes) * (1 + 1e-12) - steps.least_bytes
        room = _best_room(steps, room, limit)
    return cost_of(messages, steps.codes(steps.fill(room)))


def uniform(count: int, each: Format) -> Array:
    """Return the same format for every message."""
    return np.full(count, each.code, np.uint8)


def random_assignment(
    messages: Messages, budget_bytes: float, seed: int, choices: Sequence[Format] = CHOICES
) -> Assignment:
    """Return what `assign_bytes` gives when sensitivities are noise; for comparison."""
    noise_K = np.random.default_rng(seed).exponential(size=len(messages))
    blind = assign_bytes(replace(messages, beta_K=noise_K), budget_bytes, choices)
    return cost_of(messages, blind.codes_K)


def mean_bits_budget(messages: Messages, mean_bits: float) -> float:
    """Return the bytes that rows of `mean_bits` an entry have, side data included."""
    return float(((8 + messages.width_K * mean_bits / 8) * messages.counts()).sum())


def cost_of(messages: Messages, codes_K: Array) -> Assignment:
    """Return an assignment with what it costs."""
    size_K, factor_K = np.zeros(len(messages)), np.zeros(len(messages))
    for width in np.unique(messages.width_K):
        for code in np.unique(codes_K):
            chosen, each = (messages.width_K == width) & (codes_K == code), Format.of_code(code)
            size_K[chosen], factor_K[chosen] = each.row_bytes(int(width)), each.variance
    size_K *= messages.counts()
    variance = float((messages.beta_K * factor_K).sum())
    return Assignment(codes_K.astype(np.uint8), variance, int(size_K.sum()))


def chain_of(width: int, choices: Sequence[Format]) -> tuple[list[int], list[int], list[float]]:
    """Return codes, bytes and variance factors of the choices worth making, the smallest first.

    Left out are those with more bytes and no less variance, and those above the line between two
    others, so that the gain of a byte falls along the chain.
    """
    options = sorted((each.row_bytes(width), each.variance, each.code) for each in choices)
    kept: list[tuple[int, float, int]] = []
    for option in options:
        if kept and option[1] >= kept[-1][1]:
            continue
        while len(kept) > 1 and _slope(kept[-2], option) >= _slope(kept[-2], kept[-1]):
            kept.pop()
        if kept and option[0] == kept[-1][0]:
            kept.pop()
        kept.append(option)
    return [code for _, _, code in kept], [size for size, *_ in kept], [v for _, v, _ in kept]


def _slope(low: tuple[int, float, int], high: tuple[int, float, int]) -> float:
    return (low[1] - high[1]) / (high[0] - low[0])


@dataclass(frozen=True, slots=True, eq=False)
class FormatSteps:
    """All steps up all chains, sorted by falling gain per byte."""

    message_J: Array
    kind_J: Array
    """Steps of one kind add the same bytes: it is the rows' width and number, and the level."""
    bytes_J: Array
    gain_J: Array
    chains: list[list[int]]
    """The codes of formats for each width and number of rows."""
    chain_K: Array
    """Which of these a message has."""
    least_bytes: int
    """Of all messages in the smallest formats."""

    @classmethod
    def build(cls, messages: Messages, choices: Sequence[Format]) -> "FormatSteps":
        """Return the steps of these messages."""
        beta_K, rows_K = messages.beta_K, messages.counts()
        many = int(rows_K.max(initial=0)) + 1
        shape_K = messages.width_K * many + rows_K
        shapes = np.unique(shape_K)
        chain_K = np.searchsorted(shapes, shape_K).astype(np.int32)
        chains, least = [], 0
        # Of a step its message, kind and gain; the rest depends on the kind. There are two or more
        # for each message of a run, so their types are as small as they can be.
        parts: list[tuple[Array, ...]] = [
            (np.zeros(0, np.int32), np.zeros(0, np.int32), beta_K[:0])
        ]
        kinds: list[tuple[int, int]] = []
        for number, (width, rows) in enumerate(divmod(int(shape), many) for shape in shapes):
            codes, sizes, factors = chain_of(width, choices)
            chains.append(codes)
            least += rows * sizes[0] * int((chain_K == number).sum())
            members = np.flatnonzero((chain_K == number) & (beta_K > 0)).astype(np.int32)
            for level in range(1, len(sizes)):
                kind_J = np.full(len(members), len(kinds), np.int32)
                taken = factors[level - 1] - factors[level]
                parts.append((members, kind_J, beta_K[members] * taken))
                kinds.append((level, rows * (sizes[level] - sizes[level - 1])))
        message_J, kind_J, gain_J = (np.concatenate(p) for p in zip(*parts, strict=True))
        del parts
        level_of, bytes_of = np.array(kinds or [(0, 0)], np.int64).T
        worth_J = -gain_J / np.maximum(bytes_of, 1)[kind_J]
        order = np.lexsort((level_of.astype(np.int8)[kind_J], worth_J))
        del worth_J
        kind_J = kind_J[order]
        gain_J, message_J = gain_J[order], message_J[order]
        return cls(message_J, kind_J, bytes_of[kind_J], gain_J, chains, chain_K, least)

    def fill(self, room: float) -> Array:
        """Return which steps to take within `room` bytes beyond the least."""
        # A little more, since sums of fractions of bytes are not exact.
        room = room * (1 + 1e-12) + 1e-6
        return best_counts(self.kind_J, self.bytes_J, self.gain_J, room)

    def codes(self, taken_J: Array) -> Array:
        """Return each message's format when these steps are taken."""
        height_K = np.bincount(self.message_J[taken_J], minlength=len(self.chain_K))
        longest = max((len(chain) for chain in self.chains), default=1)
        table = np.zeros((max(len(self.chains), 1), longest), np.uint8)
        for number, chain in enumerate(self.chains):
            table[number, : len(chain)] = chain
        return table[self.chain_K, height_K]


def _best_room(steps: FormatSteps, room: float, limit: float) -> float:
    """Return the bytes of the best filling found for rooms near the given one, within a limit.

    `fill` does not always use its room up, and now and then does better with another.
    """
    sizes = steps.bytes_J
    exact = np.arange(0, sizes.sum() + 1, max(np.gcd.reduce(sizes), 1))
    tried = np.unique(np.concatenate([[0.0, room], exact]))
    middle = int(np.searchsorted(tried, room))
    tried = np.union1d(tried[max(0, middle - MOST_ROOMS) : middle + MOST_ROOMS], 0.0)
    found = [(0.0, 0.0)]
    for each in tried:
        taken_J = steps.fill(each)
        used = float((sizes * taken_J).sum())
        if used <= limit:
            found.append((float((steps.gain_J * taken_J).sum()), -used))
    return -max(found)[1]


def best_counts(kind_J: Array, bytes_J: Array, gain_J: Array, room: float) -> Array:
    """Return which steps, sorted by gain per byte, to take within `room` bytes.

    Steps of one kind differ in gain alone, so the answer is a count for each kind. From the counts
    of the threshold rule, two kinds at a time try others nearby while the kind with the fewest
    bytes takes what is left, as long as that gains.
    """
    taken_J = np.cumsum(bytes_J) <= room
    if taken_J.all():
        return taken_J
    kinds = np.flatnonzero(np.bincount(kind_J))
    places = [np.flatnonzero(kind_J == kind) for kind in kinds]
    places.sort(key=lambda place: -bytes_J[place[0]])
    sizes = np.array([bytes_J[place[0]] for place in places])
    gains = [np.concatenate([[0.0], np.cumsum(gain_J[place])]) for place in places]
    counts = np.array([int(taken_J[place].sum()) for place in places])
    pairs: list[tuple[int, ...]] = [()]
    if len(taken_J) <= FEW_STEPS and len(places) > 1:
        pairs = list(combinations(range(len(places) - 1), 2)) or [(0,)]
    best = -1.0
    for _ in range(MOST_MOVES):
        found = [_try_near(counts, pair, sizes, gains, room) for pair in pairs]
        value, tried = max(found, key=lambda pair: pair[0])
        if value <= best * (1 + 1e-12):
            break
        best, counts = value, tried
    taken_J = np.zeros(len(kind_J), bool)
    for place, count in zip(places, counts, strict=True):
        taken_J[place[:count]] = True
    return taken_J


def _try_near(
    counts: Array, free: tuple[int, ...], sizes: Array, gains: list[Array], room: float
) -> tuple[float, Array]:
    """Return the best value and its counts: kinds `free` stay near theirs, the last fills up."""
    spans = [
        np.arange(max(0, counts[kind] - REACH), min(len(gains[kind]) - 1, counts[kind] + REACH) + 1)
        for kind in free
    ]
    near = np.meshgrid(*spans, indexing="ij")
    tried = np.repeat(counts[:, None], near[0].size if near else 1, axis=1)
    for kind, values in zip(free, near, strict=True):
        tried[kind] = values.ravel()
    left = room - sizes[:-1] @ tried[:-1]
    tried, left = tried[:, left >= 0], left[left >= 0]
    tried[-1] = np.minimum(left // sizes[-1], len(gains[-1]) - 1)
    value = sum(
        (gain[count] for gain, count in zip(gains, tried, strict=True)), np.zeros(len(left))
    )
    at = int(np.argmax(value))
    return float(value[at]), tried[:, at]

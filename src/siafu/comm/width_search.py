"""The search behind `widths`: a threshold rule, then whole rows.

A row's widths form a chain, each step adding bytes and taking variance away, less for each byte
from step to step. So in one lane the best use of some bytes takes the steps by gain a byte. Lanes
of a round share its time: with Z seconds each lane fills what it can carry until Z, so the variance
of a round falls with Z at the sum of its lanes' rates, a falling function; and the best split of
the seconds among rounds takes the stretches of highest rate first. That solves the relaxed problem
exactly by sorting. Rounding to whole rows then tries counts of steps, and lengths of rounds, near
the relaxed ones.

Shapes: K messages, J steps, L lanes, R rounds, V events at which a round's rate changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.comm.links import Lanes
from siafu.ops import row_bytes

Array = NDArray[Any]

REACH = 12
"""How far from the threshold rule's counts others are tried."""

FEW_STEPS = 400
"""In a lane with more, one row is too little to matter, and what is left is only filled up."""

SMALL = 300
"""Messages up to which rounds are balanced again after rounding; in more, a row is too little."""

MOST_LENGTHS = 50
MOST_MOVES = 50
MOST_COMBINED = 4000


def chain_of(
    width: int, element_size: int, choices: Sequence[int]
) -> tuple[list[int], list[int], list[float]]:
    """Return bits, bytes and variance factors of the choices worth making, the smallest first.

    Left out are those with more bytes and no less variance, and those above the line between two
    others, so that the gain of a byte falls along the chain.
    """
    options = sorted(
        (row_bytes(bits, width, element_size), 0.0 if bits == 32 else (2.0**bits - 1) ** -2, bits)
        for bits in choices
    )
    kept: list[tuple[int, float, int]] = []
    for option in options:
        if kept and option[1] >= kept[-1][1]:
            continue
        while len(kept) > 1 and _slope(kept[-2], option) >= _slope(kept[-2], kept[-1]):
            kept.pop()
        if kept and option[0] == kept[-1][0]:
            kept.pop()
        kept.append(option)
    return [bits for _, _, bits in kept], [size for size, *_ in kept], [v for _, v, _ in kept]


def _slope(low: tuple[int, float, int], high: tuple[int, float, int]) -> float:
    return (low[1] - high[1]) / (high[0] - low[0])


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """All steps up all chains, sorted by lane and within it by falling gain a byte."""

    message_J: Array
    level_J: Array
    """1 is the first step of a row."""
    lane_J: Array
    kind_J: Array
    """Steps of one kind add the same bytes: it is the rows' width and number, and the level."""
    bytes_J: Array
    gain_J: Array
    bits_K: list[list[int]]
    """The chain of each width and number of rows."""
    chain_K: Array
    """Which of these a message has."""
    base_L: Array
    """Bytes of each lane at the least widths."""
    used_L: Array

    @classmethod
    def build(
        cls,
        beta_K: Array,
        width_K: Array,
        rows_K: Array,
        lane_K: Array,
        element_size: int,
        choices: Sequence[int],
    ) -> "Steps":
        """Return the steps of messages with these sensitivities, widths, rows and lanes."""
        many = int(rows_K.max(initial=0)) + 1
        shapes, chain_K = np.unique(width_K * many + rows_K, return_inverse=True)
        chains = []
        for width, rows in (divmod(int(shape), many) for shape in shapes):
            bits, sizes, factors = chain_of(width, element_size, choices)
            chains.append((bits, [rows * size for size in sizes], factors))
        parts: list[tuple[Array, ...]] = [(np.zeros(0, np.int64),) * 4 + (np.zeros(0),)]
        kind = 0
        for number, (_, sizes, factors) in enumerate(chains):
            members = np.flatnonzero((chain_K == number) & (beta_K > 0))
            for level in range(1, len(sizes)):
                added, taken = sizes[level] - sizes[level - 1], factors[level - 1] - factors[level]
                full = np.full(len(members), level)
                parts.append((members, full, full * 0 + kind, full * 0 + added))
                parts[-1] += (beta_K[members] * taken,)
                kind += 1
        message, level_, kind_, added_, gain = (np.concatenate(p) for p in zip(*parts, strict=True))
        order = np.lexsort((level_, -gain / np.maximum(added_, 1), lane_K[message]))
        message = message[order]
        num_lanes = int(lane_K.max(initial=-1)) + 1
        least = np.array([sizes[0] for _, sizes, _ in chains] or [0])[chain_K]
        return cls(
            message,
            level_[order],
            lane_K[message],
            kind_[order],
            added_[order],
            gain[order],
            [bits for bits, _, _ in chains],
            chain_K,
            np.bincount(lane_K, least, minlength=num_lanes),
            np.bincount(lane_K, minlength=num_lanes) > 0,
        )

    def bits(self, taken_J: Array) -> Array:
        """Return each message's width when these steps are taken."""
        height_K = np.bincount(self.message_J[taken_J], minlength=len(self.chain_K))
        longest = max((len(chain) for chain in self.bits_K), default=1)
        table = np.zeros((max(len(self.bits_K), 1), longest), np.uint8)
        for number, chain in enumerate(self.bits_K):
            table[number, : len(chain)] = chain
        return table[self.chain_K, height_K]


class Search:
    """One problem: steps, and the time they take in their lanes."""

    def __init__(self, steps: Steps, lanes: Lanes) -> None:
        self.steps, self.num_rounds = steps, lanes.num_rounds
        count = len(steps.base_L)  # lanes beyond the last message's are empty
        self.slope_L, self.round_L = lanes.byte_seconds_L[:count], lanes.round_L[:count]
        time_L = lanes.start_seconds_L[:count] + self.slope_L * steps.base_L
        self.least_L = np.where(steps.used_L, time_L, 0.0)
        self.floor_R = np.zeros(self.num_rounds)
        np.maximum.at(self.floor_R, self.round_L, self.least_L)
        self.edge_L = np.searchsorted(steps.lane_J, np.arange(count + 1))

    def stretches(self) -> tuple[Array, Array, Array]:
        """Return (round, seconds, variance saved a second) of every stretch of a round's time."""
        steps, lane = self.steps, self.steps.lane_J
        if not len(lane):
            return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        total = np.concatenate([[0], np.cumsum(steps.bytes_J)])
        before = total[:-1] - total[self.edge_L[lane]]
        begin = self.least_L[lane] + self.slope_L[lane] * before
        last = np.append(lane[1:] != lane[:-1], True)
        end = begin[last] + (self.slope_L[lane] * steps.bytes_J)[last]
        rate = steps.gain_J / steps.bytes_J / self.slope_L[lane]
        first = np.concatenate([[True], last[:-1]])
        change = np.concatenate([rate - np.where(first, 0, np.append(0, rate[:-1])), -rate[last]])
        where = self.round_L[np.concatenate([lane, lane[last]])]
        time = np.maximum(np.concatenate([begin, end]), self.floor_R[where])
        order = np.lexsort((time, where))
        where, time, current = where[order], time[order], np.cumsum(change[order])
        inside = np.append(where[1:] == where[:-1], False)
        length = np.where(inside, np.append(time[1:], 0) - time, 0)
        keep = length > 0
        return where[keep], length[keep], current[keep]

    def round_seconds(self, seconds: float | None, least_rate: float | None) -> Array:
        """Return how long each round should last in the relaxed problem."""
        where, length, rate = self.stretches()
        if least_rate is not None:
            used = np.where(rate > least_rate, length, 0)
        else:
            assert seconds is not None, "a budget or a rate"
            order = np.argsort(-rate, kind="stable")
            where, length = where[order], length[order]
            spare = seconds - self.floor_R.sum()
            used = np.clip(spare - (np.cumsum(length) - length), 0, length)
        return self.floor_R + np.bincount(where, used, minlength=self.num_rounds)

    def fill(self, lane: int, until: float) -> Array:
        """Return which steps of a lane to take so that it is done at `until`."""
        lo, hi = self.edge_L[lane], self.edge_L[lane + 1]
        room = (until - self.least_L[lane]) / self.slope_L[lane] * (1 + 1e-12) + 1e-6
        chosen: Array = best_counts(
            self.steps.kind_J[lo:hi], self.steps.bytes_J[lo:hi], self.steps.gain_J[lo:hi], room
        )
        return chosen

    def lane_seconds(self, lane: int, taken_J: Array) -> float:
        """Return how long a lane takes."""
        part = slice(self.edge_L[lane], self.edge_L[lane + 1])
        added = (self.steps.bytes_J[part] * taken_J[part]).sum()
        return float(self.least_L[lane] + self.slope_L[lane] * added)


def best_counts(kind_J: Array, bytes_J: Array, gain_J: Array, room: float) -> Array:
    """Return which steps of one lane, sorted by gain a byte, to take within `room` bytes.

    Steps of one kind differ in gain alone, so the answer is a count for each kind. From the counts
    of the threshold rule, two kinds at a time try others nearby while the kind with the fewest
    bytes takes what is left, as long as that gains.
    """
    taken_J = np.cumsum(bytes_J) <= room
    if taken_J.all():
        return taken_J
    kinds, kind_J = np.unique(kind_J, return_inverse=True)
    places = [np.flatnonzero(kind_J == kind) for kind in range(len(kinds))]
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


def least_variance(search: Search, *, seconds: float | None, least_rate: float | None) -> Array:
    """Return each message's bits under a budget, or while seconds save at least so much."""
    target_R = search.round_seconds(seconds, least_rate)
    lanes = np.unique(search.steps.lane_J)
    if seconds is not None and len(search.steps.chain_K) <= SMALL:
        target_R = rebalanced(search, target_R, seconds)
    taken_J = np.zeros(len(search.steps.message_J), bool)
    for lane in lanes:
        part = slice(search.edge_L[lane], search.edge_L[lane + 1])
        taken_J[part] = search.fill(lane, target_R[search.round_L[lane]])
    return search.steps.bits(taken_J)


def rebalanced(search: Search, target_R: Array, seconds: float) -> Array:
    """Return how long rounds should last when lanes carry whole rows.

    A round is better only at certain lengths. Those near the relaxed one are combined round by
    round, keeping of all combinations those that no other beats in both time and gain.
    """
    tables = [_lengths(search, number, target_R[number]) for number in range(search.num_rounds)]
    later = np.append(np.cumsum([time[0] for time, _ in tables[::-1]])[::-1], 0.0)
    limit = max(seconds, float(later[0])) * (1 + 1e-12)
    total, gained, chosen = np.zeros(1), np.zeros(1), np.zeros((1, 0))
    for number, (time, gain) in enumerate(tables):
        sums, worth = (total[:, None] + time).ravel(), (gained[:, None] + gain).ravel()
        order = np.lexsort((-worth, sums))
        order = order[sums[order] + later[number + 1] <= limit]
        before = np.maximum.accumulate(np.append(-1.0, worth[order]))[:-1]
        order = order[worth[order] > before]
        # more than these lie too close to differ
        order = order[np.unique(np.linspace(0, len(order) - 1, MOST_COMBINED).astype(int))]
        old, new = np.divmod(order, len(time))
        total, gained = sums[order], worth[order]
        chosen = np.column_stack([chosen[old], time[new]])
    best: Array = chosen[-1]
    return best


def _lengths(search: Search, number: int, target: float) -> tuple[Array, Array]:
    """Return lengths of a round worth trying, and the variance that each saves."""
    steps, lanes = search.steps, np.unique(search.steps.lane_J)
    lanes = lanes[search.round_L[lanes] == number]
    ends = [np.array([search.floor_R[number], target])]
    for lane in lanes:
        part = slice(search.edge_L[lane], search.edge_L[lane + 1])
        sizes = steps.bytes_J[part]
        added = np.arange(0, sizes.sum() + 1, np.gcd.reduce(sizes))
        ends.append(search.least_L[lane] + search.slope_L[lane] * added)
    tried = np.unique(np.concatenate(ends))
    tried = tried[tried >= search.floor_R[number]]
    middle = int(np.searchsorted(tried, target))
    tried = tried[max(0, middle - MOST_LENGTHS) : middle + MOST_LENGTHS]
    tried = np.union1d(tried, search.floor_R[number])
    found = []
    for until in tried:
        time, gain = float(search.floor_R[number]), 0.0
        for lane in lanes:
            part = slice(search.edge_L[lane], search.edge_L[lane + 1])
            taken = search.fill(lane, until)
            added = (steps.bytes_J[part] * taken).sum()
            time = max(time, search.least_L[lane] + search.slope_L[lane] * added)
            gain += (steps.gain_J[part] * taken).sum()
        found.append((time, gain))
    table = np.array(sorted(found))
    return table[:, 0], table[:, 1]

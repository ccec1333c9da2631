"""What a sample is, one request at a time: the definition, and the way without Numba.

Draw c of a request is the 64-bit word of columns 2c (low half) and 2c + 1 of its row of `random`'s
words; the key is the minibatch's, the id the node's.

Shapes: N rows, E edges, Q requests, B minibatches, S sampled edges.
"""

import math
from collections.abc import Iterator
from itertools import accumulate, islice

import torch
from torch import Tensor

from siafu.ops.contract import Requests
from siafu.ops.random.reference import philox

ALL = -1
"""The fan-out that takes every edge."""

UNIT_BITS = 52
"""Bits of a draw that choose by weight: so many that the largest, times a sum, stays below it."""

LOG_TERMS = tuple(1 / (2 * n + 1) for n in range(10))
"""Of log z = 2 (s + s^3 / 3 + s^5 / 5 ...) with s = (z - 1) / (z + 1); |s| is below 0.172."""

LOG_2, SPLIT = 0.6931471805599453, 0.7071067811865476
"""Of minus_log: log 2, and the root of 1/2, so that |s| is small."""


def sample(
    indptr: Tensor,
    requests: Requests,
    fanout: int,
    weight_E: Tensor | None,
    *,
    replace: bool,
    sums_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `contract.SampleKernels`."""
    columns = (requests.rows_Q, requests.ids_Q, requests.batch_Q)
    picked = []
    for row, number, batch in zip(*(column.tolist() for column in columns), strict=True):
        lo, hi = int(indptr[row]), int(indptr[row + 1])
        draws = _draws((int(requests.keys_B2[batch, 0]), int(requests.keys_B2[batch, 1])), number)
        if weight_E is None:
            offsets = pick_uniform(hi - lo, fanout, draws, replace=replace)
        else:
            offsets = pick_weighted(weight_E[lo:hi].tolist(), fanout, draws, replace=replace)
        picked.append([lo + offset for offset in offsets])
    counts, flat = [len(edges) for edges in picked], [e for edges in picked for e in edges]
    made = (torch.tensor(column, dtype=torch.int64) for column in (counts, flat))
    counts_Q, positions_S = (column.to(indptr.device) for column in made)
    return counts_Q, positions_S


def share(
    indptr: Tensor, ids_E: Tensor, batch_Q: Tensor, keys_B2: Tensor, fanout: int
) -> tuple[Tensor, Tensor]:
    """See `contract.SampleKernels`; of equal draws the edge that comes first wins."""
    offsets, numbers, picked = indptr.tolist(), ids_E.tolist(), []
    for lo, hi, batch in zip(offsets, offsets[1:], batch_Q.tolist(), strict=False):
        key = int(keys_B2[batch, 0]), int(keys_B2[batch, 1])
        edges = list(range(lo, hi))
        if len(edges) > fanout:
            words = {edge: next(_draws(key, numbers[edge])) for edge in edges}
            edges = sorted(sorted(edges, key=words.__getitem__)[:fanout])
        picked.append(edges)
    counts = torch.tensor([len(edges) for edges in picked], dtype=torch.int64)
    return counts, torch.tensor([e for edges in picked for e in edges], dtype=torch.int64)


def pick_uniform(degree: int, fanout: int, draws: Iterator[int], *, replace: bool) -> list[int]:
    """Return offsets into a row of `degree` edges; without replacement by Floyd's algorithm."""
    if replace and fanout != ALL:
        return [bounded(word, degree) for word in islice(draws, fanout if degree else 0)]
    if fanout == ALL or degree <= fanout:
        return list(range(degree))
    taken: list[int] = []
    for top, word in zip(range(degree - fanout, degree), draws, strict=False):
        offset = bounded(word, top + 1)
        taken.append(top if offset in taken else offset)
    return taken


def pick_weighted(
    weights: list[float], fanout: int, draws: Iterator[int], *, replace: bool
) -> list[int]:
    """Return offsets into a row; weights that are not above 0 count as 0 and are never picked.

    Without replacement these are the smallest of -log(u) / weight (Efraimidis and Spirakis, 2006),
    rising: the order in which edges would be picked one after another.
    """
    usable = [offset for offset, weight in enumerate(weights) if weight > 0]
    if replace and fanout != ALL:
        sums = list(accumulate(weight if weight > 0 else 0.0 for weight in weights))
        shares = (unit(word) * sums[-1] for word in islice(draws, fanout if usable else 0))
        return [first_above(sums, share) for share in shares]
    if fanout == ALL or len(usable) <= fanout:
        return usable
    arrivals = [
        minus_log(unit_open(word)) / weight if weight > 0 else math.inf
        for weight, word in zip(weights, draws, strict=False)
    ]
    return sorted(usable, key=lambda offset: (arrivals[offset], offset))[:fanout]


def bounded(word: int, bound: int) -> int:
    """Return a number below `bound`, each at a probability within 2^-64 of 1 / bound."""
    return (word * bound) >> 64


def unit(word: int) -> float:
    """Return the draw in [0, 1)."""
    return (word >> (64 - UNIT_BITS)) * 2.0**-UNIT_BITS


def unit_open(word: int) -> float:
    """Return the draw in (0, 1): the middle of the interval that `unit` begins."""
    return unit(word) + 2.0 ** -(UNIT_BITS + 1)


def minus_log(u: float) -> float:
    """Return -log(u), of the same bits on every machine: only sums, products and one quotient."""
    z, exponent = math.frexp(u)
    if z < SPLIT:
        z, exponent = 2 * z, exponent - 1
    s = (z - 1) / (z + 1)
    square, series = s * s, 0.0
    for term in reversed(LOG_TERMS):
        series = series * square + term
    return -exponent * LOG_2 - 2 * s * series


def first_above(sums: list[float], share: float) -> int:
    """Return the first offset whose running sum is above `share`, the last one at most."""
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sums[middle] > share else (middle + 1, high)
    return low


def _draws(key: tuple[int, int], number: int) -> Iterator[int]:
    low, high = number & 0xFFFFFFFF, (number >> 32 & 0xFFFF) << 16
    block = 0
    while True:
        w0, w1, w2, w3 = philox((low, 0, high, block), key)
        yield w0 | w1 << 32
        yield w2 | w3 << 32
        block += 1

"""Sampling by weight on CPU, compiled by Numba; number for number what `sample.reference` gives.

Every edge of a row is read, so a request costs its degree and not its fan-out.

Shapes: E edges, Q requests, S sampled edges.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siafu.ops.numba_jit import callee, strict_kernel
from siafu.ops.random.numba import draw_row
from siafu.ops.sample.reference import ALL, LOG_2, LOG_TERMS, SPLIT, UNIT_BITS

Array = NDArray[Any]

UNIT_SHIFT = np.uint64(64 - UNIT_BITS)
UNIT, MIDDLE = 2.0**-UNIT_BITS, 2.0 ** -(UNIT_BITS + 1)
RISING_POWERS = LOG_TERMS[::-1]
ONE = np.uint64(1)

# the parts of a float64
EXPONENT_SHIFT, FRACTION = np.uint64(52), np.uint64(2**52 - 1)
EXPONENT_OF_HALF, ONE_TO_TWO = np.uint64(1022), np.uint64(1023 << 52)


class Pad(NamedTuple):
    """Scratch as long as the longest row, and the same memory seen as another type."""

    words: Array
    words_as_float: Array
    exponent: Array
    arrival: Array
    arrival_bits: Array


@callee
def num_usable(weight: Array, first: Any, degree: Any) -> Any:
    """Return how many edges of a row have a weight above 0."""
    usable = 0
    for c in range(np.uint64(degree)):
        usable += weight[np.uint64(first) + c] > 0
    return usable


@callee
def _unit(word: Any) -> Any:
    return np.float64(word >> UNIT_SHIFT) * UNIT


@callee
def _arrive(pad: Pad, weight: Array, first: Any, degree: Any) -> None:
    """Turn a row's words into `sample.reference`'s -log(u) / weight; NaN for edges never picked.

    Each loop reads one array and writes another, and no float is converted, so that all of them
    become vector code.
    """
    # A float in [1, 2) from the draw's bits, then u in (0, 1).
    for c in range(degree):
        pad.words[c] = (pad.words[c] >> UNIT_SHIFT) | ONE_TO_TWO
    for c in range(degree):
        pad.arrival[c] = (pad.words_as_float[c] - 1.0) + MIDDLE
    # u = z 2^exponent with z in [1/2, 1), by taking its bits apart.
    for c in range(degree):
        bits = pad.arrival_bits[c]
        pad.exponent[c] = np.int32(bits >> EXPONENT_SHIFT) - np.int32(EXPONENT_OF_HALF)
        pad.words[c] = (bits & FRACTION) | (EXPONENT_OF_HALF << EXPONENT_SHIFT)
    # log z by its series, with z moved close to 1.
    for c in range(degree):
        z, exponent = pad.words_as_float[c], np.float64(pad.exponent[c])
        is_low = z < SPLIT
        z, exponent = (2 * z if is_low else z), (exponent - 1 if is_low else exponent)
        s = (z - 1) / (z + 1)
        square, series = s * s, 0.0
        for term in RISING_POWERS:
            series = series * square + term
        w = np.float64(weight[first + c])
        arrival = (-exponent * LOG_2 - 2 * s * series) / w
        pad.arrival[c] = arrival if w > 0 else np.nan


@callee
def _first_above(sums: Array, share: Any, degree: Any) -> Any:
    low, high = np.uint64(0), degree - ONE
    while low < high:
        middle = (low + high) // np.uint64(2)
        if sums[middle] > share:
            high = middle
        else:
            low = middle + ONE
    return low


@callee
def _repeat(words: Array, weight: Array, first: Any, degree: Any, sums: Array, out: Array) -> None:
    """Pick len(out) edges by where draws fall among the running sums of weights."""
    total = 0.0
    for c in range(degree):
        w = np.float64(weight[first + c])
        total += w if w > 0 else 0.0
        sums[c] = total
    for k in range(len(out)):
        out[k] = first + _first_above(sums, _unit(words[k]) * total, degree)


@callee
def _earliest(arrivals: Array, first: Any, degree: Any, best: Array, out: Array) -> None:
    """Pick the len(out) smallest arrivals; `best` holds those of the edges in `out`."""
    size, held = np.uint64(len(out)), np.uint64(0)
    for c in range(degree):
        arrival = arrivals[c]
        is_late = held == size and not arrival < best[size - ONE]
        if is_late or np.isnan(arrival):
            continue
        # few arrive early once a few have: size * log(degree / size) insertions are expected
        slot = held if held < size else size - ONE
        while slot > 0 and best[slot - ONE] > arrival:
            best[slot], out[slot] = best[slot - ONE], out[slot - ONE]
            slot -= ONE
        best[slot], out[slot] = arrival, first + c
        held = min(held + ONE, size)


@strict_kernel
def pick_by_weight(
    source: tuple[Array, Array, Array],
    place: tuple[Array, Array, Array],
    weight: Array,
    fanout: int,
    repeats: bool,
    out: Array,
    span: tuple[int, int],
) -> None:
    """Write the edges of requests span[0] to span[1]; arguments as in `sample.numba`."""
    (keys, batch, ids), (first_Q, degree_Q, start_Q) = source, place
    # Room for the longest row of all requests: one set of arrays serves them in turn.
    most = max(0, fanout)
    for q in range(span[0], span[1]):
        most = max(most, degree_Q[q])
    words, sums, best = np.empty(most + 1, np.uint64), np.empty(most), np.empty(most)
    exponent = np.empty(most, np.int32)
    pad = Pad(words, words.view(np.float64), exponent, sums, sums.view(np.uint64))
    for q in range(span[0], span[1]):
        picked = out[start_Q[q] : start_Q[q + 1]]
        first, degree = np.uint64(first_Q[q]), np.uint64(degree_Q[q])
        if len(picked) == 0:
            continue
        # Where all usable edges are wanted, they are taken in order and nothing is drawn.
        repeated = repeats and fanout != ALL
        if not repeated and len(picked) == num_usable(weight, first, degree):
            held = np.uint64(0)
            for c in range(degree):
                if weight[first + c] > 0:
                    picked[held] = first + c
                    held += ONE
            continue
        # Otherwise a draw per pick, or a draw per edge of which the earliest arrivals win.
        b = np.uint64(batch[q])
        columns = fanout if repeated else degree_Q[q]
        draw_row(ids, None, q, (keys[b, 0], keys[b, 1]), words[: 2 * ((columns + 1) // 2)])
        if repeated:
            _repeat(words, weight, first, degree, sums, picked)
        else:
            _arrive(pad, weight, first, degree)
            _earliest(sums, first, degree, best, picked)

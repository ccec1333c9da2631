"""Sampling on CPU, compiled by Numba; number for number what `sample.reference` gives.

Two passes over the requests: how many edges each gets, then which. Offsets are read in the first
alone, asked for some requests ahead, since each is a cache miss.

Places are unsigned, since Numba tests signed ones for wrapping.

Shapes: N rows, E edges, Q requests, B minibatches, S sampled edges.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Requests
from siafu.ops.numba_jit import callee, prefetch, strict_kernel
from siafu.ops.random.numba import HALF, LOW, philox_lanes
from siafu.ops.sample.numba_shared import share
from siafu.ops.sample.numba_weighted import num_usable, pick_by_weight
from siafu.ops.sample.reference import ALL
from siafu.ops.threads import num_chunks, run_chunks

__all__ = ["sample", "share"]

Array = NDArray[Any]
Rows = tuple[Array, Array, Array]
"""For each request: its first edge, its degree, and where its sample begins."""

Source = tuple[Array, Array, Array]
"""Of the draws: key words of each minibatch, and for each request its minibatch and its id."""

AHEAD = 16
"""Requests between the one whose offsets are asked for and the one counted."""

SEARCHED = 64
"""The largest fan-out whose taken edges are searched one by one."""

SPREAD = np.uint64(0x9E3779B97F4A7C15)
ONE, TWO, SIXTEEN, LAST_SIX = np.uint64(1), np.uint64(2), np.uint64(16), np.uint64(63)

LANES = 16
"""Requests drawn at a time: a request alone has too few draws to fill a vector."""


class Lanes(NamedTuple):
    """Requests about to be drawn: counter and key of the cipher, first edge, degree, and place."""

    low: Array
    high: Array
    key0: Array
    key1: Array
    first: Array
    degree: Array
    at: Array


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
    num_requests = len(requests.rows_Q)
    first, degree, counts = (np.empty(num_requests, np.int64) for _ in range(3))
    weight = None if weight_E is None else weight_E.contiguous().numpy()
    offsets, rows, repeats = indptr.numpy()[:, None], requests.rows_Q.numpy(), bool(replace)
    run_chunks(
        lambda lo, hi: _count(
            offsets, rows, weight, (fanout, repeats), first, degree, counts, (lo, hi)
        ),
        _even_bounds(num_requests),
    )
    start = np.zeros(num_requests + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    positions = np.empty(start[-1], np.int64)
    place: Rows = (first, degree, start)
    keys = requests.keys_B2.numpy().astype(np.uint32)
    source: Source = (keys, requests.batch_Q.numpy(), requests.ids_Q.numpy())

    def pick(lo: int, hi: int) -> None:
        if weight is None:
            _pick(source, place, fanout, repeats, positions, (lo, hi))
        else:
            pick_by_weight(source, place, weight, fanout, repeats, positions, (lo, hi))

    run_chunks(pick, _bounds(start))
    return torch.from_numpy(counts), torch.from_numpy(positions)


def _even_bounds(num_requests: int) -> list[int]:
    return np.linspace(0, num_requests, num_chunks(8 * num_requests) + 1).astype(int).tolist()


def _bounds(start: Array) -> list[int]:
    """Return chunks of requests with about as many sampled edges each."""
    # an edge costs a draw, so a second thread pays off sooner than for sums
    shares = np.linspace(0, start[-1], num_chunks(8 * start[-1]) + 1)
    bounds = np.searchsorted(start, shares)
    bounds[0], bounds[-1] = 0, len(start) - 1
    return bounds.tolist()


@strict_kernel
def _count(  # noqa: PLR0913 - kernel arguments are flat
    indptr: Array,
    rows: Array,
    weight: Array | None,
    wanted: tuple[int, bool],
    first: Array,
    degree: Array,
    counts: Array,
    span: tuple[int, int],
) -> None:
    fanout, repeats = wanted
    for q in range(span[0], span[1]):
        if q + AHEAD < span[1]:
            prefetch(indptr, rows[q + AHEAD], 0)
        row = np.uint64(rows[q])
        lo, hi = indptr[row, 0], indptr[row + ONE, 0]
        usable = hi - lo
        if weight is not None:
            usable = num_usable(weight, lo, hi - lo)
        first[q], degree[q] = lo, hi - lo
        if fanout == ALL:
            counts[q] = usable
        elif repeats:
            counts[q] = fanout if usable > 0 else 0
        else:
            counts[q] = min(fanout, usable)


@callee
def _bounded(word: Any, bound: Any) -> Any:
    """Return the upper 64 bits of the product, which is below `bound`."""
    low, high = word & LOW, word >> HALF
    bound_low, bound_high = bound & LOW, bound >> HALF
    across, along = low * bound_high, high * bound_low
    carry = ((low * bound_low) >> HALF) + (across & LOW) + (along & LOW)
    return high * bound_high + (across >> HALF) + (along >> HALF) + (carry >> HALF)


@callee
def _draw(lanes: Lanes, held: Any, edges: Array, count: Any, repeats: bool) -> None:
    """Write draw c of the request in lane g to edges[c, g]: the edge it chooses if none was taken.

    Lanes lie innermost, so that the cipher and the products become vector code.
    """
    low, high, key0, key1, first, degree, _ = lanes
    zero = np.uint64(0)
    # A call of the cipher gives two draws of 64 bits.
    for block in range((count + ONE) // TWO):
        even, odd = TWO * block, TWO * block + ONE
        for g in range(held):
            word0, word1 = philox_lanes(low[g], zero, high[g], block, (key0[g], key1[g]))
            edges[even, g], edges[odd, g] = word0, word1
    for c in range(count):
        # Floyd: one edge more may be chosen each time, the last of all in the end
        short = zero if repeats else count - c - ONE
        for g in range(held):
            edges[c, g] = first[g] + _bounded(edges[c, g], degree[g] - short)


@callee
def _floyd(edges: Array, lanes: Lanes, g: Any, count: Any, out: Array) -> None:
    """Write the edges of one lane; one that was taken gives way to the newest of the eligible."""
    seen, at, newest = np.uint64(0), lanes.at[g], lanes.first[g] + lanes.degree[g] - count
    for c in range(count):
        edge = edges[c, g]
        # most edges differ from the taken ones in their last six bits already
        if (seen >> (edge & LAST_SIX)) & ONE:
            for earlier in range(c):
                if np.uint64(out[at + earlier]) == edge:
                    edge = newest + c
                    break
        seen |= ONE << (edge & LAST_SIX)
        out[at + c] = edge


@callee
def _place_of(table: Array, edge: Any) -> Any:
    """Return where `edge` is in the set, or would go."""
    mask = np.uint64(len(table) - 1)
    slot = ((edge * SPREAD) >> HALF) & mask
    while table[slot] != -1 and np.uint64(table[slot]) != edge:
        slot = (slot + ONE) & mask
    return slot


@callee
def _floyd_hashed(edges: Array, lanes: Lanes, g: Any, count: Any, out: Array, taken: Array) -> None:
    """Do as `_floyd` does; the taken edges are in a hash set at most half full."""
    at, newest = lanes.at[g], lanes.first[g] + lanes.degree[g] - count
    taken[:] = -1
    for c in range(count):
        edge = edges[c, g]
        slot = _place_of(taken, edge)
        if taken[slot] != -1:
            edge = newest + c
            slot = _place_of(taken, edge)
        taken[slot] = edge
        out[at + c] = edge


@callee
def _flush(
    lanes: Lanes, held: Any, edges: Array, count: Any, repeats: bool, taken: Array, out: Array
) -> None:
    """Draw for the requests in the lanes."""
    _draw(lanes, held, edges, count, repeats)
    for g in range(held):
        if repeats:
            for c in range(count):
                out[lanes.at[g] + c] = edges[c, g]
        elif count <= SEARCHED:
            _floyd(edges, lanes, g, count, out)
        else:
            _floyd_hashed(edges, lanes, g, count, out, taken)


@callee
def _slots(fanout: Any) -> Any:
    slots = 1
    while fanout > SEARCHED and slots < 2 * fanout:
        slots *= 2
    return slots


@callee
def _empty_lanes() -> Lanes:
    return Lanes(
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint64),
        np.empty(LANES, np.uint64),
    )


@strict_kernel
def _pick(
    source: Source, place: Rows, fanout: int, repeats: bool, out: Array, span: tuple[int, int]
) -> None:
    (keys, batch, ids), (first_Q, degree_Q, start_Q) = source, place
    count, held = np.uint64(max(fanout, 0)), np.uint64(0)
    lanes = _empty_lanes()
    edges = np.empty((count + ONE, LANES), np.uint64)
    taken = np.empty(_slots(fanout), np.int64)
    for q in range(span[0], span[1]):
        first, degree, at = np.uint64(first_Q[q]), np.uint64(degree_Q[q]), np.uint64(start_Q[q])
        # A row that is taken whole needs no draw; others wait until the lanes are full, so that
        # one call of the cipher serves several requests.
        if fanout == ALL or (degree <= count and not repeats):
            for c in range(degree):
                out[at + c] = first + c
        elif degree > 0:
            number, b = np.uint64(ids[q]), np.uint64(batch[q])
            lanes.low[held], lanes.high[held] = number & LOW, (number >> HALF) << SIXTEEN & LOW
            lanes.key0[held], lanes.key1[held] = keys[b, 0], keys[b, 1]
            lanes.first[held], lanes.degree[held], lanes.at[held] = first, degree, at
            held += ONE
            if held == LANES:
                _flush(lanes, held, edges, count, repeats, taken, out)
                held = np.uint64(0)
    _flush(lanes, held, edges, count, repeats, taken, out)

"""Sampling on CPU, compiled by Numba; number for number what `sample_reference` gives.

Two passes over the requests: how many edges each gets, then which. Offsets are read in the first
alone, asked for some requests ahead, since each is a cache miss.

Places are unsigned, since Numba tests signed ones for wrapping.

Shapes: N rows, E edges, Q requests, B minibatches, S sampled edges.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Requests
from siafu.ops.numba_jit import callee, prefetch, strict_kernel
from siafu.ops.random_numba import HALF, LOW, draw_row
from siafu.ops.sample_reference import ALL
from siafu.ops.sample_weighted_numba import num_usable, pick_by_weight
from siafu.ops.threads import num_chunks, run_chunks

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
ONE = np.uint64(1)


def sample(
    indptr: Tensor, requests: Requests, fanout: int, weight_E: Tensor | None, *, replace: bool
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
def _floyd(words: Array, first: Any, degree: Any, out: Array, at: Any, count: Any) -> None:
    seen = np.uint64(0)
    for c in range(count):
        top = degree - count + c
        edge = first + _bounded(words[c], top + ONE)
        # most edges differ from the taken ones in their last six bits already
        if (seen >> (edge & np.uint64(63))) & ONE:
            for earlier in range(c):
                if np.uint64(out[at + earlier]) == edge:
                    edge = first + top
                    break
        seen |= ONE << (edge & np.uint64(63))
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
def _floyd_hashed(
    words: Array, first: Any, degree: Any, out: Array, at: Any, taken: Array, count: Any
) -> None:
    """Draw as `_floyd` does; the taken edges are in a hash set at most half full."""
    taken[:] = -1
    for c in range(count):
        top = degree - count + c
        edge = first + _bounded(words[c], top + ONE)
        slot = _place_of(taken, edge)
        if taken[slot] != -1:
            edge = first + top
            slot = _place_of(taken, edge)
        taken[slot] = edge
        out[at + c] = edge


@strict_kernel
def _pick(
    source: Source,
    place: Rows,
    fanout: int,
    repeats: bool,
    out: Array,
    span: tuple[int, int],
) -> None:
    (keys, batch, ids), (first_Q, degree_Q, start_Q) = source, place
    words = np.empty(2 * ((max(fanout, 0) + 1) // 2), np.uint64)
    taken = np.empty(1, np.int64)
    if fanout > SEARCHED:
        taken = np.empty(2 ** (1 + int(np.ceil(np.log2(fanout)))), np.int64)
    count = np.uint64(max(fanout, 0))
    for q in range(span[0], span[1]):
        at, size = np.uint64(start_Q[q]), np.uint64(start_Q[q + 1] - start_Q[q])
        first, degree = np.uint64(first_Q[q]), np.uint64(degree_Q[q])
        if size == 0:
            continue
        if fanout == ALL or (degree <= count and not repeats):
            for c in range(degree):
                out[at + c] = first + c
            continue
        b = np.uint64(batch[q])
        draw_row(ids, None, q, (keys[b, 0], keys[b, 1]), words)
        if repeats:
            for c in range(count):
                out[at + c] = first + _bounded(words[c], degree)
        elif fanout <= SEARCHED:
            _floyd(words, first, degree, out, at, count)
        else:
            _floyd_hashed(words, first, degree, out, at, taken, count)

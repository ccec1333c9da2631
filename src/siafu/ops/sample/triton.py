"""Sampling for CUDA, written in Triton; number for number what `sample.reference` gives.

Counts and offsets are plain torch, picks are kernels: some requests a program, or one where all its
edges are read (by weight, without replacement).

Shapes: N rows, E edges, Q requests, B minibatches, S sampled edges, R requests a program, C draws
of a request (a power of two), K edges at a time.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import Requests
from siafu.ops.sample.reference import ALL, LOG_2, LOG_TERMS, SPLIT, UNIT_BITS
from siafu.ops.sample.running import running_sums
from siafu.ops.sample.sorting import share

__all__ = ["sample", "share"]

jit: Callable[[Any], Any] = triton.jit

DRAWS_A_PROGRAM = 1024
EDGES_AT_ONCE = 256

UNIT_SHIFT, UNIT = tl.constexpr(64 - UNIT_BITS), tl.constexpr(2.0**-UNIT_BITS)
MIDDLE = tl.constexpr(2.0 ** -(UNIT_BITS + 1))
LOG_OF_2, ROOT = tl.constexpr(LOG_2), tl.constexpr(SPLIT)
T0, T1, T2, T3, T4, T5, T6, T7, T8, T9 = (tl.constexpr(term) for term in LOG_TERMS)
FRACTION, HALF = tl.constexpr(2**52 - 1), tl.constexpr(1022 << 52)
ONE_TO_TWO = tl.constexpr(1023 << 52)


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
    first_Q = indptr.index_select(0, requests.rows_Q)
    degree_Q = indptr.index_select(0, requests.rows_Q + 1) - first_Q
    repeats = replace and fanout != ALL
    if weight_E is not None and sums_E is None:
        sums_E = running_sums(indptr.cpu(), weight_E.cpu()).to(indptr.device)
    counts_Q = _counts(first_Q, degree_Q, fanout, weight_E, sums_E, repeats=repeats)
    start_Q = torch.zeros(len(counts_Q) + 1, dtype=torch.int64, device=indptr.device)
    torch.cumsum(counts_Q, 0, out=start_Q[1:])
    positions_S = torch.empty(int(start_Q[-1]), dtype=torch.int64, device=indptr.device)
    if not len(positions_S):
        return counts_Q, positions_S
    if weight_E is None and fanout == ALL:
        shift_S = (first_Q - start_Q[:-1]).repeat_interleave(counts_Q, output_size=len(positions_S))
        torch.arange(len(positions_S), device=indptr.device, out=positions_S)
        return counts_Q, positions_S.add_(shift_S)
    place = (first_Q, degree_Q, start_Q, requests.ids_Q, requests.batch_Q, _keys(requests))
    with torch.cuda.device_of(indptr):
        if weight_E is None or repeats:
            _pick_some(place, sums_E, fanout, repeats, positions_S)
        else:
            _earliest[(len(first_Q),)](
                *place, weight_E, positions_S, K=EDGES_AT_ONCE, enable_fp_fusion=False
            )
    return counts_Q, positions_S


def _counts(
    first_Q: Tensor,
    degree_Q: Tensor,
    fanout: int,
    weight_E: Tensor | None,
    sums_E: Tensor | None,
    *,
    repeats: bool,
) -> Tensor:
    """Return how many edges each request gets."""
    if weight_E is None:
        usable_Q = degree_Q
    elif repeats:
        assert sums_E is not None
        # an edge of a weight above 0 makes the sum of its row so
        last_Q = (first_Q + degree_Q - 1).clamp(min=0)
        has_Q = (degree_Q > 0) & ((sums_E[last_Q] > 0) if len(sums_E) else False)
        usable_Q = has_Q.long()
    else:
        usable_Q = torch.empty_like(degree_Q)
        if len(degree_Q):
            with torch.cuda.device_of(first_Q):
                _count_usable[(len(degree_Q),)](
                    first_Q, degree_Q, weight_E, usable_Q, K=EDGES_AT_ONCE
                )
    if repeats:
        return (usable_Q > 0).long() * fanout
    return usable_Q if fanout == ALL else usable_Q.clamp(max=fanout)


def _keys(requests: Requests) -> Tensor:
    """Return both words of each minibatch as one int64."""
    low_B, high_B = requests.keys_B2.unbind(1)
    return low_B | high_B << 32


def _pick_some(
    place: tuple[Tensor, ...], sums_E: Tensor | None, fanout: int, repeats: bool, out_S: Tensor
) -> None:
    num_requests = len(place[0])
    draws = max(2, triton.next_power_of_2(fanout))
    rows = max(1, DRAWS_A_PROGRAM // draws)
    steps = 0 if sums_E is None else len(sums_E).bit_length()
    grid = (triton.cdiv(num_requests, rows),)
    _pick[grid](
        *place, sums_E, out_S, num_requests, steps, fanout=fanout, repeats=repeats, R=rows, C=draws
    )


@jit
def _draws(number: tl.tensor, key: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Return the 64-bit draws of blocks of the cipher, two of each side by side, as uint64."""
    zero = tl.zeros_like(block).to(tl.uint32) + tl.zeros_like(number).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        key + zero.to(tl.int64),
        (number & 0xFFFFFFFF).to(tl.uint32) + zero,
        zero,
        (((number >> 32) & 0xFFFF) << 16).to(tl.uint32) + zero,
        block.to(tl.uint32) + zero,
    )
    even = w0.to(tl.uint64) | (w1.to(tl.uint64) << 32)
    odd = w2.to(tl.uint64) | (w3.to(tl.uint64) << 32)
    return tl.interleave(even, odd)


@jit
def _pick(
    first: tl.tensor,
    degree: tl.tensor,
    start: tl.tensor,
    ids: tl.tensor,
    batch: tl.tensor,
    keys: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    num_requests: tl.tensor,
    steps: tl.tensor,
    fanout: tl.constexpr,
    repeats: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
) -> None:
    q_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live_R = q_R < num_requests
    first_R1 = tl.load(first + q_R, mask=live_R, other=0)[:, None]
    degree_R1 = tl.load(degree + q_R, mask=live_R, other=0)[:, None]
    at_R = tl.load(start + q_R, mask=live_R, other=0)
    count_R = tl.load(start + q_R + 1, mask=live_R, other=0) - at_R
    key_R = tl.load(keys + tl.load(batch + q_R, mask=live_R, other=0), mask=live_R, other=0)
    number_R = tl.load(ids + q_R, mask=live_R, other=0)
    c_1C = tl.arange(0, C)[None, :]
    word_RC = _draws(number_R[:, None], key_R[:, None], tl.arange(0, C // 2)[None, :])
    if sums is not None:
        chosen_RC = _by_sums(word_RC, sums, first_R1, degree_R1, steps)
    elif repeats:
        chosen_RC = tl.umulhi(word_RC, degree_R1.to(tl.uint64) + tl.zeros_like(word_RC))
        chosen_RC = chosen_RC.to(tl.int64)
    else:
        chosen_RC = _floyd(word_RC, degree_R1, c_1C, fanout)
    mask_RC = c_1C < count_R[:, None]
    tl.store(out + at_R[:, None] + c_1C, first_R1 + chosen_RC, mask=mask_RC)


@jit
def _floyd(
    word_RC: tl.tensor, degree_R1: tl.tensor, c_1C: tl.tensor, fanout: tl.constexpr
) -> tl.tensor:
    """Return offsets that differ; one that was taken gives way to the newest of the eligible.

    Rows of no more edges than wanted are taken whole, in order.
    """
    oldest_R1 = degree_R1 - fanout
    bound_RC = (oldest_R1 + c_1C + 1).to(tl.uint64)
    offset_RC = tl.umulhi(word_RC, bound_RC).to(tl.int64)
    taken_RC = tl.zeros_like(offset_RC) + c_1C
    is_short_RC = (oldest_R1 <= 0) & (taken_RC >= 0)
    for c in range(fanout):
        offset_R = tl.sum(tl.where(c_1C == c, offset_RC, 0), axis=1)
        met_RC = (taken_RC == offset_R[:, None]) & (c_1C < c)
        is_taken_R = tl.max(met_RC.to(tl.int32), axis=1) > 0
        edge_R1 = tl.where(is_taken_R[:, None], oldest_R1 + c, offset_R[:, None])
        taken_RC = tl.where((c_1C == c) & (is_short_RC == 0), edge_R1, taken_RC)
    return taken_RC


@jit
def _by_sums(
    word_RC: tl.tensor,
    sums: tl.tensor,
    first_R1: tl.tensor,
    degree_R1: tl.tensor,
    steps: tl.tensor,
) -> tl.tensor:
    """Return the first offsets whose running sums are above a draw's share of the whole."""
    has_R1 = degree_R1 > 0
    total_R1 = tl.load(sums + first_R1 + degree_R1 - 1, mask=has_R1, other=0.0)
    share_RC = ((word_RC >> UNIT_SHIFT).to(tl.int64).to(tl.float64) * UNIT) * total_R1
    low_RC = tl.zeros_like(word_RC).to(tl.int64)
    high_RC = low_RC + degree_R1 - 1
    for _ in range(steps):
        middle_RC = (low_RC + high_RC) // 2
        open_RC = low_RC < high_RC
        sum_RC = tl.load(sums + first_R1 + middle_RC, mask=open_RC, other=0.0)
        above_RC = sum_RC > share_RC
        high_RC = tl.where(open_RC & above_RC, middle_RC, high_RC)
        low_RC = tl.where(open_RC & (above_RC == 0), middle_RC + 1, low_RC)
    return low_RC


@jit
def _count_usable(
    first: tl.tensor, degree: tl.tensor, weight: tl.tensor, usable: tl.tensor, K: tl.constexpr
) -> None:
    q = tl.program_id(0).to(tl.int64)
    begin, length = tl.load(first + q), tl.load(degree + q)
    step_K = tl.arange(0, K)
    total = tl.zeros([], dtype=tl.int64)
    for low in range(0, length, K):
        w_K = tl.load(weight + begin + low + step_K, mask=low + step_K < length, other=0.0)
        total += tl.sum((w_K > 0).to(tl.int64), axis=0)
    tl.store(usable + q, total)


@jit
def _arrivals(word_K: tl.tensor, weight_K: tl.tensor) -> tl.tensor:
    """Return -log(u) / weight as `sample.reference` has it; infinity for edges never picked."""
    bits_K = (word_K >> UNIT_SHIFT).to(tl.int64) | ONE_TO_TWO
    u_K = (bits_K.to(tl.float64, bitcast=True) - 1.0) + MIDDLE
    bits_K = u_K.to(tl.int64, bitcast=True)
    exponent_K = ((bits_K >> 52) - 1022).to(tl.float64)
    z_K = ((bits_K & FRACTION) | HALF).to(tl.float64, bitcast=True)
    is_low_K = z_K < ROOT
    z_K = tl.where(is_low_K, 2 * z_K, z_K)
    exponent_K = tl.where(is_low_K, exponent_K - 1, exponent_K)
    s_K = (z_K - 1) / (z_K + 1)
    square_K = s_K * s_K
    # Horner's rule, the highest power first, each product rounded before it is added to.
    sum_K = T9 * square_K + T8
    sum_K = sum_K * square_K + T7
    sum_K = sum_K * square_K + T6
    sum_K = sum_K * square_K + T5
    sum_K = sum_K * square_K + T4
    sum_K = sum_K * square_K + T3
    sum_K = sum_K * square_K + T2
    sum_K = sum_K * square_K + T1
    sum_K = sum_K * square_K + T0
    wide_K = tl.where(weight_K > 0, weight_K.to(tl.float64), 1.0)
    return (-exponent_K * LOG_OF_2 - 2 * s_K * sum_K) / wide_K


@jit
def _earliest(
    first: tl.tensor,
    degree: tl.tensor,
    start: tl.tensor,
    ids: tl.tensor,
    batch: tl.tensor,
    keys: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    K: tl.constexpr,
) -> None:
    """Pick the edges that arrive first, one after another; where all are wanted, in order."""
    q = tl.program_id(0).to(tl.int64)
    begin, length = tl.load(first + q), tl.load(degree + q)
    at = tl.load(start + q)
    wanted = tl.load(start + q + 1) - at
    step_K = tl.arange(0, K)
    usable = tl.zeros([], dtype=tl.int64)
    for low in range(0, length, K):
        w_K = tl.load(weight + begin + low + step_K, mask=low + step_K < length, other=0.0)
        is_usable_K = (w_K > 0).to(tl.int64)
        place_K = usable + tl.cumsum(is_usable_K, axis=0) - 1
        mask_K = (is_usable_K > 0) & (place_K < wanted)
        tl.store(out + at + place_K, begin + low + step_K, mask=mask_K)
        usable += tl.sum(is_usable_K, axis=0)
    if usable > wanted:
        number, key = tl.load(ids + q), tl.load(keys + tl.load(batch + q))
        last, last_place = tl.full([], float("-inf"), tl.float64), tl.full([], -1, tl.int64)
        for k in range(wanted):
            best, best_place = tl.full([], float("inf"), tl.float64), length
            for low in range(0, length, K):
                c_K = low + step_K
                w_K = tl.load(weight + begin + c_K, mask=c_K < length, other=0.0)
                block = (low // 2 + tl.arange(0, K // 2)).to(tl.int64)
                word_K = _draws(number + tl.zeros_like(block), key, block)
                arrival_K = _arrivals(word_K, w_K)
                is_later_K = (arrival_K > last) | ((arrival_K == last) & (c_K > last_place))
                open_K = is_later_K & (w_K > 0)
                arrival_K = tl.where(open_K, arrival_K, float("inf"))
                here = tl.min(arrival_K, axis=0)
                place_K = tl.where(open_K & (arrival_K == here), c_K.to(tl.int64), length)
                place = tl.min(place_K, axis=0)
                is_better = (here < best) | ((here == best) & (place < best_place))
                best = tl.where(is_better, here, best)
                best_place = tl.where(is_better, place, best_place)
            tl.store(out + at + k, begin + best_place)
            last, last_place = best, best_place

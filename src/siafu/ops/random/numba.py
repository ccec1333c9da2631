"""Philox4x32-10 for CPU, compiled by Numba; bit for bit what `random.reference` gives.

Shapes: N drawn rows, W drawn columns.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Draw
from siafu.ops.numba_jit import callee, strict_kernel
from siafu.ops.random import reference
from siafu.ops.threads import num_chunks, run_chunks

DTYPES = frozenset({torch.float32, torch.float64})

Array = NDArray[Any]

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
STEP0, STEP1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def uniform_into(draw: Draw, out_NW: Tensor) -> None:
    """See `contract.RandomKernels`."""
    out, (first, second, key) = out_NW.numpy(), draw_arrays(draw)
    run_chunks(lambda lo, hi: _uniform_rows(key, first, second, out, lo, hi), _bounds(out_NW))


def dropout_into(
    draw: Draw,
    x_NW: Tensor,
    out_NW: Tensor,
    *,
    threshold: int,
    scale: float,
    relu: bool = False,
) -> None:
    """See `contract.RandomKernels`."""
    x, out, (first, second, key) = x_NW.detach().numpy(), out_NW.numpy(), draw_arrays(draw)
    # nothing lies below minus infinity
    keep = (np.uint64(threshold), x.dtype.type(scale), x.dtype.type(0 if relu else -np.inf))
    run_chunks(
        lambda lo, hi: _dropout_rows(key, first, second, x, out, keep, (lo, hi)), _bounds(out_NW)
    )


def relu_grad_into(dropped_NW: Tensor, grad_NW: Tensor, out_NW: Tensor, *, scale: float) -> None:
    """See `contract.RandomKernels`."""
    dropped, grad, out = (t.detach().numpy().reshape(-1) for t in (dropped_NW, grad_NW, out_NW))
    factor = grad.dtype.type(scale)
    bounds = np.linspace(0, len(out), num_chunks(len(out)) + 1).astype(int).tolist()
    run_chunks(lambda lo, hi: _relu_grad(dropped, grad, out, factor, lo, hi), bounds)


def draw_arrays(draw: Draw) -> tuple[Array, Array | None, tuple[Any, Any]]:
    """Return ids and key as kernels take them."""
    second = None if draw.second_N is None else draw.second_N.numpy()
    low, high = reference.key_of(draw)
    return draw.first_N.numpy(), second, (np.uint32(low), np.uint32(high))


def _bounds(out_NW: Tensor) -> list[int]:
    # drawing costs several times what adding does, so it is worth a second thread sooner
    chunks = num_chunks(8 * out_NW.numel())
    return np.linspace(0, len(out_NW), chunks + 1).astype(int).tolist()


@callee
def _round(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    # Numba widens every uint32 operation to 64 bits, hence a cast after each
    p0, p1 = M0 * np.uint64(c0), M1 * np.uint64(c2)
    return (
        np.uint32(np.uint32(p1 >> HALF) ^ c1 ^ k0),
        np.uint32(p1),
        np.uint32(np.uint32(p0 >> HALF) ^ c3 ^ k1),
        np.uint32(p0),
        np.uint32(k0 + STEP0),
        np.uint32(k1 + STEP1),
    )


@callee
def philox4(c0: Any, c1: Any, c2: Any, c3: Any, key: tuple[Any, Any]) -> Any:
    """Return four uint32 words for a counter of four and a key of two; for use inside kernels."""
    k0, k1 = key
    # ten rounds written out: inside a loop they would keep the caller's loop from vector code
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round(c0, c1, c2, c3, k0, k1)
    return c0, c1, c2, c3


@callee
def _counter(first: Array, second: Array | None, n: int) -> Any:
    """Return the three counter words that row n fixes; the fourth is the block of columns."""
    low, high = np.uint32(first[n]), np.uint32((first[n] >> 32) & 0xFFFF)
    other_low, other_high = np.uint32(0), np.uint32(0)
    if second is not None:
        other_low, other_high = np.uint32(second[n]), np.uint32((second[n] >> 32) & 0xFFFF)
    return low, other_low, np.uint32((high << np.uint32(16)) | other_high)


@callee
def _round_lanes(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    p0, p1 = M0 * (c0 & LOW), M1 * (c2 & LOW)
    return (
        (p1 >> HALF) ^ c1 ^ k0,
        p1,
        (p0 >> HALF) ^ c3 ^ k1,
        p0,
        (k0 + np.uint64(STEP0)) & LOW,
        (k1 + np.uint64(STEP1)) & LOW,
    )


@callee
def philox_lanes(c0: Any, c1: Any, c2: Any, c3: Any, key: tuple[Any, Any]) -> Any:
    """Return `philox4`'s words in pairs, word 0 and 2 in the low halves; counters are uint64.

    The upper half of a word is left dirty on the way: a vector product of 64-bit lanes reads lower
    halves only, so a loop over this needs no shuffles and runs at three times the speed.
    """
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3, k0, k1 = _round_lanes(c0, c1, c2, c3, k0, k1)
    return (c0 & LOW) | (c1 << HALF), (c2 & LOW) | (c3 << HALF)


@callee
def draw_row(
    first: Array, second: Array | None, n: int, key: tuple[Any, Any], pairs: Array
) -> None:
    """Write row n's words, two to an uint64: seen as uint32 they lie in the order of columns."""
    c0, c1, c2 = _counter(first, second, n)
    low, other, high = np.uint64(c0), np.uint64(c1), np.uint64(c2)
    for block in range(len(pairs) // 2):
        pair0, pair1 = philox_lanes(low, other, high, np.uint64(block), key)
        at = np.uint64(block) * np.uint64(2)
        pairs[at], pairs[at + np.uint64(1)] = pair0, pair1


@callee
def _unit(word: Any, out: Array) -> Any:
    """Return `word` in [0, 1): 32 bits in float64, the top 24 in float32."""
    if out.itemsize == 8:
        return word * 2.0**-32
    return np.float32(word >> np.uint32(8)) * np.float32(2.0**-24)


@strict_kernel
def _uniform_rows(
    key: tuple[Any, Any], first: Array, second: Array | None, out: Array, row_lo: int, row_hi: int
) -> None:
    width = out.shape[1]
    pairs = np.empty(2 * ((width + 3) // 4), np.uint64)
    words = pairs.view(np.uint32)
    for n in range(row_lo, row_hi):
        draw_row(first, second, n, key, pairs)
        for f in range(width):
            out[n, f] = _unit(words[f], out)


@callee
def _keep_or_drop(word: Any, value: Any, keep: tuple[Any, Any, Any]) -> Any:
    threshold, scale, floor = keep
    # always multiplied, so that no branch keeps the loop from vector code
    kept = (floor if value < floor else value) * scale
    return kept if np.uint64(word) >= threshold else scale * 0


@strict_kernel
def _dropout_rows(
    key: tuple[Any, Any],
    first: Array,
    second: Array | None,
    x: Array,
    out: Array,
    keep: tuple[Any, Any, Any],
    rows: tuple[int, int],
) -> None:
    width = x.shape[1]
    pairs = np.empty(2 * ((width + 3) // 4), np.uint64)
    words = pairs.view(np.uint32)
    for n in range(rows[0], rows[1]):
        draw_row(first, second, n, key, pairs)
        for f in range(width):
            out[n, f] = _keep_or_drop(words[f], x[n, f], keep)


@strict_kernel
def _relu_grad(dropped: Array, grad: Array, out: Array, scale: Any, lo: int, hi: int) -> None:
    for at in range(lo, hi):
        passed = grad[at] * scale
        out[at] = scale * 0 if dropped[at] <= 0 else passed

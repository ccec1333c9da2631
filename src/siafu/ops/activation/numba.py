"""Bias, ReLU and dropout for CPU, compiled by Numba.

Shapes: N rows, W columns, B words of a mask. Column sums are made of blocks of rows that do not
depend on the number of threads, added in their order.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Draw, Edges
from siafu.ops.csr.numba import cut_width, narrow, sum_rows
from siafu.ops.numba_jit import callee, strict_kernel
from siafu.ops.random.numba import draw_arrays, draw_row
from siafu.ops.random.reference import WORD
from siafu.ops.threads import num_chunks, run_chunks

DTYPES = frozenset({torch.float32, torch.float64})

Array = NDArray[Any]

BLOCK = 256
"""Rows whose column sums are added up by themselves; they stay in level-2 cache until masked."""

GATHER, TOP = np.uint64(0x0102040810204080), np.uint64(56)
"""A product with the first has, in its top byte, the lowest bits of eight bytes."""


def activate_into(
    draw: Draw,
    z_NW: Tensor,
    bias_W: Tensor,
    out_NW: Tensor,
    mask_NB: Tensor,
    *,
    threshold: int,
    scale: float,
) -> None:
    """See `contract.ActivationKernels`."""
    if threshold > WORD:  # a rate that rounds to 1
        out_NW.zero_()
        mask_NB.zero_()
        return
    z, bias, out = z_NW.detach().numpy(), bias_W.detach().numpy(), out_NW.detach().numpy()
    mask, (first, second, key) = mask_NB.numpy().view(np.uint8), draw_arrays(draw)
    keep = np.uint32(threshold), z.dtype.type(scale)
    bounds = np.linspace(0, len(z), num_chunks(z.size) + 1).astype(int).tolist()
    if out_NW.data_ptr() == z_NW.data_ptr():

        def work(lo: int, hi: int) -> None:
            _activate_in_place(key, first, second, bias, out, mask, keep, (lo, hi))

    else:

        def work(lo: int, hi: int) -> None:
            out[lo:hi] = z[lo:hi]
            _activate_in_place(key, first, second, bias, out, mask, keep, (lo, hi))

    run_chunks(work, bounds)


def grad_into(mask_NB: Tensor, grad_NW: Tensor, bias_W: Tensor, *, scale: float) -> None:
    """See `contract.ActivationKernels`."""
    mask, grad = mask_NB.numpy().view(np.uint32), grad_NW.numpy()
    factor, parts = grad.dtype.type(scale), _block_sums(grad)
    run_chunks(
        lambda lo, hi: _mask_blocks(mask, grad, parts, factor, lo, hi), _block_bounds(grad, parts)
    )
    bias_W.copy_(torch.from_numpy(parts.sum(axis=0)))


def sum_grad_into(
    edges: Edges,
    x_CW: Tensor,
    own_MW: Tensor | None,
    mask_NB: Tensor,
    grad_NW: Tensor,
    bias_W: Tensor,
    *,
    scale: float,
) -> None:
    """See `contract.ActivationKernels`."""
    indptr, index = edges.indptr.numpy(), edges.index.numpy()
    weight, row_scale, col_scale = (None if t is None else t.detach().numpy() for t in edges[2:])
    mask, grad = mask_NB.numpy().view(np.uint32), grad_NW.numpy()
    own = grad[:0] if own_MW is None else own_MW.detach().numpy()
    factor, sums = grad.dtype.type(scale), _block_sums(grad)
    parts, tiles = cut_width(x_CW.size(1))
    x, out = narrow(x_CW, parts), narrow(grad_NW, parts)

    def work(lo: int, hi: int) -> None:
        span = (lo, hi, parts)
        matrix = indptr, index, weight, row_scale, col_scale
        # A constant in the kernel would have `sum_rows` compiled for it, and a process that did so
        # would add in another order than one that loads the kernel from disk.
        _sum_blocks(*matrix, x, out, own, mask, grad, sums, factor, span, False, tiles)

    run_chunks(work, _block_bounds(grad, sums))
    bias_W.copy_(torch.from_numpy(sums.sum(axis=0)))


def _block_sums(grad: Array) -> Array:
    return np.zeros((-(-len(grad) // BLOCK), grad.shape[1]), grad.dtype)


def _block_bounds(grad: Array, sums: Array) -> list[int]:
    bounds: list[int] = np.linspace(0, len(sums), num_chunks(grad.size) + 1).astype(int).tolist()
    return bounds


@strict_kernel
def _activate_in_place(  # noqa: PLR0913 - as in `sum_rows`
    key: tuple[Any, Any],
    first: Array,
    second: Array | None,
    bias: Array,
    rows: Array,
    mask: Array,
    keep: tuple[Any, Any],
    span: tuple[int, int],
) -> None:
    threshold, scale = keep
    width = rows.shape[1]
    pairs = np.empty(2 * ((width + 3) // 4), np.uint64)
    words = pairs.view(np.uint32)
    flags = np.zeros(8 * mask.shape[1], np.uint8)
    eights = flags.view(np.uint64)
    for n in range(span[0], span[1]):
        draw_row(first, second, n, key, pairs)
        for f in range(width):
            moved = rows[n, f] + bias[f]
            # always multiplied, so that no branch keeps the loop from vector code; NaN passes
            passes = (words[f] >= threshold) & (not (moved <= 0))
            flags[f] = passes
            kept = moved * scale
            rows[n, f] = kept if passes else scale * 0
        for b in range(len(eights)):
            mask[n, b] = (eights[b] * GATHER) >> TOP


@callee
def _mask_span(word: Any, grad: Array, sums: Array, count: int, by: Any) -> None:
    for j in range(count):
        passed = grad[j] * by
        masked = passed if (word >> np.uint32(j)) & np.uint32(1) else by * 0
        grad[j] = masked
        sums[j] += masked


@callee
def _mask_row(mask: Array, grad: Array, sums: Array, by: Any) -> None:
    """Multiply a row where its bits are set, else write 0, and add it to the sums of its block."""
    whole = len(grad) // 32
    # a count that the compiler knows: twice the speed
    for b in range(whole):
        _mask_span(mask[b], grad[32 * b : 32 * b + 32], sums[32 * b : 32 * b + 32], 32, by)
    if len(grad) > 32 * whole:
        rest = len(grad) - 32 * whole
        _mask_span(mask[whole], grad[32 * whole :], sums[32 * whole :], rest, by)


@strict_kernel
def _mask_blocks(mask: Array, grad: Array, sums: Array, by: Any, lo: int, hi: int) -> None:
    for at in range(lo, hi):
        for n in range(at * BLOCK, min((at + 1) * BLOCK, len(grad))):
            _mask_row(mask[n], grad[n], sums[at], by)


@strict_kernel
def _sum_blocks(  # noqa: PLR0913 - flat, so that Numba drops the branches of absent factors
    indptr: Array,
    index: Array,
    weight: Array | None,
    row_scale: Array | None,
    col_scale: Array | None,
    x: Array,
    out: Array,
    own: Array,
    mask: Array,
    grad: Array,
    sums: Array,
    by: Any,
    span: tuple[int, int, int],
    adds: bool,
    tiles: tuple[int, ...] | None,
) -> None:
    for at in range(span[0], span[1]):
        low, high = at * BLOCK, min((at + 1) * BLOCK, len(grad))
        for part in range(span[2]):
            place = (low, high, span[2], part)
            sum_rows(indptr, index, weight, row_scale, col_scale, x, out, adds, place, tiles)
        for n in range(low, min(high, len(own))):
            for f in range(grad.shape[1]):
                grad[n, f] += own[n, f]
        for n in range(low, high):
            _mask_row(mask[n], grad[n], sums[at], by)

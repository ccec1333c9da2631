"""Philox4x32-10 for CUDA, written in Triton; bit for bit what `random.reference` gives.

Shapes: N drawn rows, W drawn columns, R rows a program, B cipher blocks of 4 columns.
"""

# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import Draw
from siafu.ops.random import reference

DTYPES = reference.DTYPES

jit: Callable[[Any], Any] = triton.jit
keyed: Callable[[Any], Any] = triton.jit(do_not_specialize=["key"])

UNIT_24, UNIT_32 = tl.constexpr(2.0**-24), tl.constexpr(2.0**-32)

BLOCKS_A_PROGRAM = 1024
GRAD_ENTRIES = 1024


def uniform_into(draw: Draw, out_NW: Tensor) -> None:
    """See `contract.RandomKernels`."""
    _launch(_uniform, (draw.first_N, draw.second_N, out_NW), draw)


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
    tensors = (draw.first_N, draw.second_N, x_NW, out_NW)
    _launch(_dropout, tensors, draw, threshold=threshold, scale=scale, relu=relu)


def relu_grad_into(dropped_NW: Tensor, grad_NW: Tensor, out_NW: Tensor, *, scale: float) -> None:
    """See `contract.RandomKernels`."""
    count = out_NW.numel()
    if count:
        with torch.cuda.device_of(out_NW):
            _relu_grad[(triton.cdiv(count, GRAD_ENTRIES),)](
                dropped_NW, grad_NW, out_NW, count, scale=scale, B=GRAD_ENTRIES
            )


def _launch(kernel: Any, tensors: tuple[Tensor | None, ...], draw: Draw, **options: float) -> None:
    out_NW = tensors[-1]
    assert out_NW is not None, "the output comes last"
    if out_NW.numel() == 0:
        return
    num_rows, width = out_NW.shape
    blocks = min(BLOCKS_A_PROGRAM, triton.next_power_of_2(triton.cdiv(width, 4)))
    rows = BLOCKS_A_PROGRAM // blocks
    grid = (triton.cdiv(num_rows, rows), triton.cdiv(width, 4 * blocks))
    # Triton would compile anew for a uint64
    key = reference.signed_key(draw.key) if draw.held is None else draw.held
    shape = {"held": draw.held is not None, "width": width, "R": rows, "B": blocks}
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(out_NW):
        kernel[grid](*tensors, num_rows, key, **shape, **options)


@keyed
def _uniform(
    first: tl.tensor,
    second: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    key: tl.tensor,
    held: tl.constexpr,
    width: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
) -> None:
    word_RW = _words(first, second, num_rows, key, held, R, B)
    at_RW, inside_RW = _places(num_rows, width, R, B)
    if out.dtype.element_ty == tl.float64:
        unit_RW = word_RW.to(tl.float64) * UNIT_32
    else:
        unit_RW = (word_RW >> 8).to(tl.float32) * UNIT_24
    tl.store(out + at_RW, unit_RW, mask=inside_RW)


@keyed
def _dropout(
    first: tl.tensor,
    second: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    key: tl.tensor,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    relu: tl.constexpr,
    held: tl.constexpr,
    width: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
) -> None:
    word_RW = _words(first, second, num_rows, key, held, R, B)
    at_RW, inside_RW = _places(num_rows, width, R, B)
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    x_RW = tl.load(x + at_RW, mask=inside_RW, other=0.0).to(wide)
    if relu:
        x_RW = tl.where(x_RW < 0, 0.0, x_RW)
    kept_RW = x_RW * scale
    # compared in 64 bits, since a threshold near 1 rounds up to 2^32
    tl.store(out + at_RW, tl.where(word_RW.to(tl.int64) >= threshold, kept_RW, 0.0), mask=inside_RW)


@jit
def _relu_grad(
    dropped: tl.tensor,
    grad: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    scale: tl.constexpr,
    B: tl.constexpr,
) -> None:
    at_B = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside_B = at_B < count
    dropped_B = tl.load(dropped + at_B, mask=inside_B, other=0.0)
    wide: tl.constexpr = tl.float64 if grad.dtype.element_ty == tl.float64 else tl.float32
    passed_B = tl.load(grad + at_B, mask=inside_B, other=0.0).to(wide) * scale
    tl.store(out + at_B, tl.where(dropped_B <= 0, 0.0, passed_B), mask=inside_B)


@jit
def _words(
    first: tl.tensor,
    second: tl.tensor,
    num_rows: tl.tensor,
    key: tl.tensor,
    held: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """Return this program's words, [R, 4 B], columns in order."""
    cipher_key = tl.load(key) if held else key
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inside_R = row_R < num_rows
    first_R = tl.load(first + row_R, mask=inside_R, other=0)
    second_R = tl.zeros([R], dtype=tl.int64)
    if second is not None:
        second_R = tl.load(second + row_R, mask=inside_R, other=0)
    high_R = (((first_R >> 32) & 0xFFFF) << 16) | ((second_R >> 32) & 0xFFFF)
    block_B = tl.program_id(1) * B + tl.arange(0, B)
    zero_RB = tl.zeros([R, B], dtype=tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        cipher_key,
        (first_R & 0xFFFFFFFF).to(tl.uint32)[:, None] + zero_RB,
        (second_R & 0xFFFFFFFF).to(tl.uint32)[:, None] + zero_RB,
        high_R.to(tl.uint32)[:, None] + zero_RB,
        block_B.to(tl.uint32)[None, :] + zero_RB,
    )
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@jit
def _places(
    num_rows: tl.tensor, width: tl.constexpr, R: tl.constexpr, B: tl.constexpr
) -> tl.tensor:
    """Return where this program's words go, and which of them lie inside the output."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column_W = tl.program_id(1) * (4 * B) + tl.arange(0, 4 * B)
    inside_RW = (row_R < num_rows)[:, None] & (column_W < width)[None, :]
    return row_R[:, None] * width + column_W[None, :], inside_RW

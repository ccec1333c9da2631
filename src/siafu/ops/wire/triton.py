"""Encoding rows on CUDA, written in Triton; bit for bit what `wire.reference` gives.

A program owns a row, so that its width is one branch for all its lanes; eight columns fall to a
lane, which is what one call of the cipher draws for.

Shapes: N rows of x, S rows in the message, D width, T columns at a time, W = D / 32 bits of words.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import Draw, Wire
from siafu.ops.random.reference import signed_key
from siafu.ops.wire import reference

jit: Callable[[Any], Any] = triton.jit
keyed: Callable[[Any], Any] = triton.jit(do_not_specialize=["key"])

WIDEST_TILE = 1024
COLUMNS_A_WARP = 256

RAW = tl.constexpr(reference.RAW)
LIMIT = tl.constexpr(reference.LIMIT)
FRACTION, FRACTION_BITS = tl.constexpr(reference.FRACTION), tl.constexpr(reference.FRACTION_BITS)
GRID_FIELD = tl.constexpr(reference.GRID_EXPONENT + 1023)
REST = tl.constexpr(0x7FFFFFFF)


def encode_into(
    x_ND: Tensor, rows_S: Tensor | None, draw: Draw, wire: Wire, range_S: Tensor
) -> None:
    """See `contract.WireKernels`."""
    tensors = (x_ND, x_ND.view(torch.int32), rows_S, draw.first_N, *_words(wire), range_S)
    if len(range_S) and x_ND.size(1):
        _launch(_encode, tensors, x_ND, len(range_S), key=signed_key(draw.key))
    else:
        reference.encode_into(x_ND, rows_S, draw, wire, range_S)


def decode_into(wire: Wire, out_SD: Tensor) -> None:
    """See `contract.WireKernels`."""
    if out_SD.numel():
        _launch(_decode, (*_words(wire), out_SD, out_SD.view(torch.int32)), out_SD, len(out_SD))


encode_changes, decode_changes = reference.encode_changes, reference.decode_changes
"""Plain torch on the device: there is no kernel of changes yet."""


def _words(wire: Wire) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    words = wire.payload.view(torch.int32)
    return words, words.view(torch.float32), wire.bits_S, wire.start_S


def _launch(
    kernel: Any, tensors: tuple[Tensor | None, ...], x: Tensor, num_rows: int, **options: int
) -> None:
    width = x.size(1)
    tile = min(WIDEST_TILE, max(32, triton.next_power_of_2(width)))
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(x):
        kernel[(num_rows,)](
            *tensors,
            **options,
            width=width,
            raw_width=width * x.element_size() // 4,
            T=tile,
            num_warps=max(1, tile // COLUMNS_A_WARP),
        )


@keyed
def _encode(
    x: tl.tensor,
    raw: tl.tensor,
    rows: tl.tensor,
    ids: tl.tensor,
    words: tl.tensor,
    headers: tl.tensor,
    bits_S: tl.tensor,
    start_S: tl.tensor,
    ranges: tl.tensor,
    key: tl.tensor,
    width: tl.constexpr,
    raw_width: tl.constexpr,
    T: tl.constexpr,
) -> None:
    s = tl.program_id(0).to(tl.int64)
    n = s
    if rows is not None:
        n = tl.load(rows + s)
    bits = tl.load(bits_S + s).to(tl.int32)
    at = tl.load(start_S + s) // 4
    low, high = _ends(x + n * width, width, T)
    limit = tl.where(bits == RAW, float("inf"), LIMIT)
    is_good = (low > -limit) & (high < limit)
    tl.store(ranges + s, tl.where(is_good, high - low, float("nan")))
    if bits == RAW:
        for first in range(0, raw_width, T):
            column_T = first + tl.arange(0, T)
            inside_T = column_T < raw_width
            word_T = tl.load(raw + n * raw_width + column_T, mask=inside_T)
            tl.store(words + at + column_T, word_T, mask=inside_T)
    else:
        # a bad row travels as zeros
        zero, step = _scale(tl.where(is_good, low, 0.0), tl.where(is_good, high, 0.0), bits)
        tl.store(headers + at, zero)
        tl.store(headers + at + 1, step)
        node = tl.load(ids + s)
        divisor = tl.where(step == 0, 1.0, step)
        for first in range(0, width, T):
            column_T = first + tl.arange(0, T)
            inside_T = column_T < width
            h_T = tl.load(x + n * width + column_T, mask=inside_T, other=0.0).to(tl.float32)
            h_T = tl.where(is_good, tl.where(inside_T, h_T, zero), 0.0)
            fixed_T = (tl.div_rn(h_T - zero, divisor) * FRACTION + 0.5).to(tl.int32)
            q_T = (fixed_T + _draws(node, key, first, T)) >> FRACTION_BITS
            q_T = tl.where(inside_T, q_T, 0)
            if bits == 2:
                _store(q_T, words + at + 2, first, 2, width, T)
            elif bits == 4:
                _store(q_T, words + at + 2, first, 4, width, T)
            elif bits == 8:
                _store(q_T, words + at + 2, first, 8, width, T)
            else:
                _store(q_T, words + at + 2, first, 16, width, T)


@jit
def _decode(
    words: tl.tensor,
    headers: tl.tensor,
    bits_S: tl.tensor,
    start_S: tl.tensor,
    out: tl.tensor,
    raw: tl.tensor,
    width: tl.constexpr,
    raw_width: tl.constexpr,
    T: tl.constexpr,
) -> None:
    s = tl.program_id(0).to(tl.int64)
    bits = tl.load(bits_S + s).to(tl.int32)
    at = tl.load(start_S + s) // 4
    if bits == RAW:
        for first in range(0, raw_width, T):
            column_T = first + tl.arange(0, T)
            inside_T = column_T < raw_width
            word_T = tl.load(words + at + column_T, mask=inside_T)
            tl.store(raw + s * raw_width + column_T, word_T, mask=inside_T)
    else:
        zero, step = tl.load(headers + at), tl.load(headers + at + 1)
        for first in range(0, width, T):
            column_T = first + tl.arange(0, T)
            inside_T = column_T < width
            bit_T = column_T * bits
            # lanes that share a word read one address, which costs no more than one lane
            word_T = tl.load(words + at + 2 + (bit_T >> 5), mask=inside_T, other=0)
            q_T = (word_T >> (bit_T & 31)) & ((1 << bits) - 1)
            value_T = q_T.to(tl.float32) * step + zero
            tl.store(out + s * width + column_T, value_T.to(out.dtype.element_ty), mask=inside_T)


@jit
def _ordered(bits: tl.tensor) -> tl.tensor:
    """Map the bits of a float32 to an int32 of the same order, NaN beyond infinity; and back."""
    return bits ^ ((bits >> 31) & REST)


@jit
def _ends(row: tl.tensor, width: tl.constexpr, T: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the least and the largest entry of a row; compared as integers, NaN is not lost."""
    first_entry = _ordered(tl.load(row).to(tl.float32).to(tl.int32, bitcast=True))
    low, high = first_entry, first_entry
    for first in range(0, width, T):
        column_T = first + tl.arange(0, T)
        inside_T = column_T < width
        h_T = tl.load(row + column_T, mask=inside_T, other=0.0).to(tl.float32)
        order_T = tl.where(inside_T, _ordered(h_T.to(tl.int32, bitcast=True)), first_entry)
        low = tl.minimum(low, tl.min(order_T, axis=0))
        high = tl.maximum(high, tl.max(order_T, axis=0))
    low, high = _ordered(low), _ordered(high)
    return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)


@jit
def _scale(low: tl.tensor, high: tl.tensor, bits: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return zero point and step; see `reference.scale_of`."""
    top = tl.maximum(tl.maximum(tl.abs(low), tl.abs(high)), high - low)
    exponent = tl.maximum(top.to(tl.int32, bitcast=True) >> 23, 1).to(tl.int64)
    grid = ((exponent + GRID_FIELD) << 52).to(tl.float64, bitcast=True)
    zero = tl.floor(low.to(tl.float64) / grid) * grid
    levels = ((1 << bits) - 1).to(tl.float64)
    step = tl.ceil((high.to(tl.float64) - zero) / grid / levels) * grid
    constant = low == high
    zero = tl.where(constant, low.to(tl.float64), zero)
    return (zero + 0.0).to(tl.float32), tl.where(constant, 0.0, step).to(tl.float32)


@jit
def _draws(node: tl.tensor, key: tl.tensor, first: tl.tensor, T: tl.constexpr) -> tl.tensor:
    """Return the draws of T columns: a row's words cut in two, the low half first."""
    block_B = (first // 8 + tl.arange(0, T // 8)).to(tl.uint32)
    zero_B = tl.zeros([T // 8], dtype=tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        key,
        (node & 0xFFFFFFFF).to(tl.uint32) + zero_B,
        zero_B,
        (((node >> 32) & 0xFFFF) << 16).to(tl.uint32) + zero_B,
        block_B,
    )
    word = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    half_T = tl.interleave(word & 0xFFFF, word >> 16)
    return (half_T >> (16 - FRACTION_BITS)).to(tl.int32)


@jit
def _store(
    q_T: tl.tensor,
    words: tl.tensor,
    first: tl.tensor,
    bits: tl.constexpr,
    width: tl.constexpr,
    T: tl.constexpr,
) -> None:
    """Store fields side by side in whole words."""
    fields: tl.constexpr = 32 // bits
    num_words: tl.constexpr = (width * bits + 31) // 32
    shift_F = (tl.arange(0, fields) * bits)[None, :]
    word_W = tl.sum(tl.reshape(q_T, [T // fields, fields]) << shift_F, axis=1)
    at_W = first // fields + tl.arange(0, T // fields)
    tl.store(words + at_W, word_W, mask=at_W < num_words)

"""Encoding rows on CPU, compiled by Numba; bit for bit what `wire.reference` gives.

A row is copied to scratch that stays in level-1 cache, and each later pass over it is one plain
loop, which becomes vector code: ends, draws, fields of a byte or two, packing.

Arrays are cut and viewed outside the loop over rows (each cut costs an atomic count), so places are
sums; unsigned, since Numba tests signed ones for wrapping.

Shapes: N rows of x, S rows in the message, D width.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Draw, Wire
from siafu.ops.numba_jit import callee, line_width, prefetch, strict_kernel
from siafu.ops.random.numba import draw_row
from siafu.ops.threads import num_chunks, run_chunks
from siafu.ops.wire.reference import FRACTION, FRACTION_BITS, GRID_EXPONENT, LIMIT, RAW

Array = NDArray[Any]
Views = tuple[Array, Array, Array, Array]

AHEAD = 2
"""Rows between the one asked for and the one encoded."""

GRIDS = 2.0 ** (np.maximum(np.arange(256), 1) + GRID_EXPONENT).astype(np.float64)
"""The grid of zero points and steps, by exponent field."""

GRID_UNITS = 1 / GRIDS
"""Exact, both being powers of two; and a product is faster than a quotient."""

DRAW_SHIFT = 16 - FRACTION_BITS
ONE, HALF = np.float32(FRACTION), np.float32(0.5)
INFINITE = np.inf
REST = np.int32(0x7FFFFFFF)


def encode_into(
    x_ND: Tensor, rows_S: Tensor | None, draw: Draw, wire: Wire, range_S: Tensor
) -> None:
    """See `contract.WireKernels`."""
    x, ranges = x_ND.numpy(), range_S.numpy()
    rows = None if rows_S is None else rows_S.numpy()
    ids, key = draw.first_N.numpy(), (np.uint32(draw.key[0]), np.uint32(draw.key[1]))
    place = wire.bits_S.numpy(), wire.start_S.numpy()
    raw, out = x.view(np.uint32), _views(wire.payload)
    run_chunks(
        lambda lo, hi: _encode_rows(x, raw, rows, ids, key, place, out, ranges, (lo, hi)),
        _bounds(x_ND.size(1), wire),
    )


def decode_into(wire: Wire, out_SD: Tensor) -> None:
    """See `contract.WireKernels`."""
    out, views = out_SD.numpy(), _views(wire.payload)
    place, raw = (wire.bits_S.numpy(), wire.start_S.numpy()), out.view(np.uint32)
    run_chunks(
        lambda lo, hi: _decode_rows(place, views, out, raw, (lo, hi)),
        _bounds(out_SD.size(1), wire),
    )


def encode_changes(
    x_ND: Tensor,
    rows_S: Tensor | None,
    kept_SD: Tensor,
    draw: Draw,
    wire: Wire,
    range_S: Tensor,
) -> None:
    """See `contract.WireKernels`."""
    x, ranges, kept = x_ND.numpy(), range_S.numpy(), kept_SD.numpy()
    rows = None if rows_S is None else rows_S.numpy()
    ids, key = draw.first_N.numpy(), (np.uint32(draw.key[0]), np.uint32(draw.key[1]))
    place = wire.bits_S.numpy(), wire.start_S.numpy()
    raw, out = x.view(np.uint32), _views(wire.payload)
    run_chunks(
        lambda lo, hi: _encode_changes(x, raw, rows, kept, ids, key, place, out, ranges, (lo, hi)),
        _bounds(x_ND.size(1), wire),
    )


def decode_changes(wire: Wire, kept_SD: Tensor) -> None:
    """See `contract.WireKernels`."""
    kept, views = kept_SD.numpy(), _views(wire.payload)
    place, raw = (wire.bits_S.numpy(), wire.start_S.numpy()), kept.view(np.uint32)
    run_chunks(
        lambda lo, hi: _decode_changes(place, views, kept, raw, (lo, hi)),
        _bounds(kept_SD.size(1), wire),
    )


def _views(payload: Tensor) -> Views:
    flat = payload.numpy()
    return flat, flat.view(np.uint16), flat.view(np.uint32), flat.view(np.float32)


def _bounds(width: int, wire: Wire) -> list[int]:
    chunks = num_chunks(4 * len(wire.bits_S) * width)
    return np.linspace(0, len(wire.bits_S), chunks + 1).astype(int).tolist()


@callee
def _ordered(bits: Any) -> Any:
    """Map the bits of a float32 to an int32 of the same order, NaN beyond infinity; and back."""
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & REST))


@callee
def _ends(bits: Array) -> Any:
    """Return least and largest entry, as bits; a float minimum would not become vector code."""
    low, high = _ordered(bits[0]), _ordered(bits[0])
    for f in range(len(bits)):
        order = _ordered(bits[f])
        low, high = min(low, order), max(high, order)
    return _ordered(low), _ordered(high)


@callee
def _scale(low: Any, high: Any, bits: Any, pen: Array, pen_bits: Array) -> Any:
    """Return zero point and step; see `reference.scale_of`."""
    if low == high:
        return low + np.float32(0), np.float32(0)
    pen[0] = max(max(abs(low), abs(high)), high - low)
    exponent = np.uint64((pen_bits[0] >> 23) & 0xFF)
    grid, units = GRIDS[exponent], GRID_UNITS[exponent]
    zero = np.floor(np.float64(low) * units) * grid
    levels = np.float64((1 << bits) - 1)
    return np.float32(zero + 0.0), np.float32(np.ceil((high - zero) * units / levels) * grid)


@callee
def _quantise(h: Array, zero: Any, step: Any, halves: Array, q: Array, width: int) -> None:
    """See `reference.quantise`."""
    divisor = np.float32(1) if step == 0 else step
    for f in range(width):
        fixed = np.int32((h[f] - zero) / divisor * ONE + HALF)
        q[f] = np.int32(fixed + np.int32(halves[f] >> np.uint16(DRAW_SHIFT))) >> FRACTION_BITS


@callee
def _pack(q: Array, pairs: Array, fours: Array, bits: Any, out: Array, at: Any, end: Any) -> None:
    """Write fields that lie a byte apart, side by side; the bytes after the last field are 0."""
    if bits == 8:
        for k in range(end - at):
            out[at + k] = q[k]
    elif bits == 4:
        for k in range(end - at):
            out[at + k] = np.uint16(pairs[k] | (pairs[k] >> 4))
    else:
        for k in range(end - at):
            v = fours[k]
            out[at + k] = np.uint32(v | (v >> 6)) | np.uint32((v >> 12) | (v >> 18))


@callee
def _quantise_one(h: Array, zero: Any, step: Any, q: Array, width: int) -> None:
    """Take the nearer of two values; see `reference.encode_changes`."""
    half = HALF * step
    for f in range(width):
        q[f] = np.uint8(h[f] - zero >= half)


@callee
def _pack_one(q: Array, out: Array, at: Any, end: Any) -> None:
    for k in range(end - at):
        byte = np.uint8(0)
        for j in range(8):
            byte |= np.uint8(q[8 * k + j] << np.uint8(j))
        out[at + k] = byte


@callee
def _unpack_one(fields: Array, at: Any, end: Any, q: Array) -> None:
    for k in range(end - at):
        for j in range(8):
            q[8 * k + j] = np.uint8(fields[at + k] >> np.uint8(j)) & np.uint8(1)


@callee
def _unpack(fields: Array, at: Any, end: Any, bits: Any, pairs: Array, fours: Array) -> None:
    """Write fields that lie side by side a byte apart."""
    if bits == 4:
        for k in range(end - at):
            v = np.uint16(fields[at + k])
            pairs[k] = np.uint16(v | (v << 4)) & np.uint16(0x0F0F)
    else:
        for k in range(end - at):
            four = np.uint32(fields[at + k])
            near = np.uint32(four | (four << 6))
            far = np.uint32((four << 12) | (four << 18))
            fours[k] = np.uint32(near | far) & np.uint32(0x03030303)


@callee
def _ask(x: Array, row: int) -> None:
    for f in range(0, x.shape[1], line_width(x)):
        prefetch(x, row, f)


@strict_kernel
def _encode_rows(  # noqa: PLR0913 - flat, so that Numba drops the branch without row numbers
    x: Array,
    raw: Array,
    rows: Array | None,
    ids: Array,
    key: tuple[Any, Any],
    place: tuple[Array, Array],
    out: Views,
    ranges: Array,
    span: tuple[int, int],
) -> None:
    (bits_S, start_S), (out8, out16, out32, headers) = place, out
    width = x.shape[1]
    h, pen = np.zeros(max(width, 1), np.float32), np.zeros(2, np.float32)
    h_bits, pen_bits = h.view(np.int32), pen.view(np.int32)
    words = np.empty(2 * ((width + 7) // 8), np.uint64)
    halves = words.view(np.uint16)  # in memory the draws of the columns, in order
    # room for whole int32 of the narrowest fields; entries past the row's end stay 0
    q, q_wide = np.zeros((width + 15) // 16 * 16, np.uint8), np.zeros(width + 1, np.uint16)
    pairs, fours = q.view(np.uint16), q.view(np.uint32)
    for s in range(span[0], span[1]):
        n = np.uint64(s)
        if rows is not None:
            n = np.uint64(rows[s])
            if s + AHEAD < span[1]:
                _ask(x, rows[s + AHEAD])
        # The row as float32, and its ends: what is not finite, or too large to quantise, is NaN in
        # `ranges` and travels as zeros.
        for f in range(width):
            h[f] = x[n, f]
        pen_bits[0], pen_bits[1] = _ends(h_bits)
        low, high, bits = pen[0], pen[1], np.int64(bits_S[s])
        at, end = np.uint64(start_S[s]), np.uint64(start_S[s + 1])
        at4, limit = at // np.uint64(4), INFINITE if bits == RAW else LIMIT
        is_good = (low > -limit) & (high < limit)
        ranges[s] = high - low if is_good else np.float32(np.nan)
        if not is_good:
            low, high = np.float32(0), np.float32(0)
            h[:] = 0
        if bits == RAW:
            for f in range(raw.shape[1]):
                out32[at4 + np.uint64(f)] = raw[n, f]
        else:
            # Header, then a field per entry: rounded by its draw, and packed into whole int32.
            zero, step = _scale(low, high, bits, pen, pen_bits)
            headers[at4], headers[at4 + np.uint64(1)] = zero, step
            draw_row(ids, None, s, key, words)
            at += np.uint64(8)
            if bits == 16:
                _quantise(h, zero, step, halves, q_wide, width)
                at16 = at // np.uint64(2)
                for k in range(end // np.uint64(2) - at16):
                    out16[at16 + k] = q_wide[k]
            else:
                _quantise(h, zero, step, halves, q, width)
                _pack(q, pairs, fours, bits, out8, at, end)


@strict_kernel
def _decode_rows(
    place: tuple[Array, Array], views: Views, out: Array, raw: Array, span: tuple[int, int]
) -> None:
    (bits_S, start_S), (fields8, fields16, words, headers) = place, views
    width = out.shape[1]
    q = np.empty((width + 15) // 16 * 16, np.uint8)
    pairs, fours = q.view(np.uint16), q.view(np.uint32)
    for s in range(span[0], span[1]):
        at, end, bits = np.uint64(start_S[s]), np.uint64(start_S[s + 1]), np.int64(bits_S[s])
        at4 = at // np.uint64(4)
        if bits == RAW:
            for f in range(raw.shape[1]):
                raw[s, f] = words[at4 + np.uint64(f)]
            continue
        # Fields of 8 and 16 bits are read where they lie; narrower ones are spread first.
        zero, step = headers[at4], headers[at4 + np.uint64(1)]
        at += np.uint64(8)
        if bits == 16:
            at16 = at // np.uint64(2)
            for f in range(width):
                out[s, f] = np.float32(fields16[at16 + np.uint64(f)]) * step + zero
        elif bits == 8:
            for f in range(width):
                out[s, f] = np.float32(fields8[at + np.uint64(f)]) * step + zero
        else:
            _unpack(fields8, at, end, bits, pairs, fours)
            for f in range(width):
                out[s, f] = np.float32(q[f]) * step + zero


@callee
def _settle(kept: Array, s: int, q: Array, zero: Any, step: Any, is_row: bool, width: int) -> None:
    """Make a kept row what its receiver reads."""
    if is_row:
        for f in range(width):
            kept[s, f] = np.float32(q[f]) * step + zero
    else:
        for f in range(width):
            kept[s, f] += np.float32(q[f]) * step + zero


@strict_kernel
def _encode_changes(  # noqa: PLR0913, PLR0915, C901 - as `_encode_rows`, for rows and changes
    x: Array,
    raw: Array,
    rows: Array | None,
    kept: Array,
    ids: Array,
    key: tuple[Any, Any],
    place: tuple[Array, Array],
    out: Views,
    ranges: Array,
    span: tuple[int, int],
) -> None:
    (bits_S, start_S), (out8, out16, out32, headers) = place, out
    width = x.shape[1]
    h, g = np.zeros(max(width, 1), np.float32), np.zeros(max(width, 1), np.float32)
    pen = np.zeros(2, np.float32)
    h_bits, g_bits, pen_bits = h.view(np.int32), g.view(np.int32), pen.view(np.int32)
    words = np.empty(2 * ((width + 7) // 8), np.uint64)
    halves = words.view(np.uint16)
    q, q_wide = np.zeros((width + 31) // 32 * 32, np.uint8), np.zeros(width + 1, np.uint16)
    pairs, fours = q.view(np.uint16), q.view(np.uint32)
    for s in range(span[0], span[1]):
        n = np.uint64(s)
        if rows is not None:
            n = np.uint64(rows[s])
            if s + AHEAD < span[1]:
                _ask(x, rows[s + AHEAD])
        # The row and its change, and which of them spans less.
        for f in range(width):
            h[f] = x[n, f]
            g[f] = x[n, f] - kept[s, f]
        pen_bits[0], pen_bits[1] = _ends(h_bits)
        low_row, high_row, bits = pen[0], pen[1], np.int64(bits_S[s])
        pen_bits[0], pen_bits[1] = _ends(g_bits)
        low, high = pen[0], pen[1]
        is_row = (high_row - low_row < high - low) | (bits == RAW)
        if is_row:
            low, high = low_row, high_row
        limit = INFINITE if bits == RAW else LIMIT
        is_good = (low > -limit) & (high < limit)
        ranges[s] = high - low if is_good else np.float32(np.nan)
        if bits == 0:
            continue
        at, end = np.uint64(start_S[s]), np.uint64(start_S[s + 1])
        at4 = at // np.uint64(4)
        if bits == RAW:
            for f in range(raw.shape[1]):
                out32[at4 + np.uint64(f)] = raw[n, f]
            for f in range(width):
                kept[s, f] = x[n, f]
            continue
        if not is_good:
            low, high, is_row = np.float32(0), np.float32(0), False
            g[:] = 0
        if is_row:
            g[:] = h
        zero, step = _scale(low, high, bits, pen, pen_bits)
        if bits == 1:
            wide = np.float64(step)
            zero, step = np.float32(np.float64(zero) + wide * 0.25), np.float32(wide * 0.5)
        headers[at4], headers[at4 + np.uint64(1)] = zero, (-step if is_row else step)
        at += np.uint64(8)
        if bits == 1:
            _quantise_one(g, zero, step, q, width)
            _pack_one(q, out8, at, end)
            _settle(kept, s, q, zero, step, is_row, width)
            continue
        draw_row(ids, None, s, key, words)
        if bits == 16:
            _quantise(g, zero, step, halves, q_wide, width)
            at16 = at // np.uint64(2)
            for k in range(end // np.uint64(2) - at16):
                out16[at16 + k] = q_wide[k]
            _settle(kept, s, q_wide, zero, step, is_row, width)
        else:
            _quantise(g, zero, step, halves, q, width)
            _pack(q, pairs, fours, bits, out8, at, end)
            _settle(kept, s, q, zero, step, is_row, width)


@strict_kernel
def _decode_changes(
    place: tuple[Array, Array], views: Views, kept: Array, raw: Array, span: tuple[int, int]
) -> None:
    (bits_S, start_S), (fields8, fields16, words, headers) = place, views
    width = kept.shape[1]
    q, q_wide = np.empty((width + 31) // 32 * 32, np.uint8), np.empty(width + 1, np.uint16)
    pairs, fours = q.view(np.uint16), q.view(np.uint32)
    for s in range(span[0], span[1]):
        at, end, bits = np.uint64(start_S[s]), np.uint64(start_S[s + 1]), np.int64(bits_S[s])
        at4 = at // np.uint64(4)
        if bits == 0:
            continue
        if bits == RAW:
            for f in range(raw.shape[1]):
                raw[s, f] = words[at4 + np.uint64(f)]
            continue
        zero, step = headers[at4], abs(headers[at4 + np.uint64(1)])
        is_row = (words[at4 + np.uint64(1)] >> np.uint32(31)) != 0
        at += np.uint64(8)
        if bits == 16:
            at16 = at // np.uint64(2)
            for f in range(width):
                q_wide[f] = fields16[at16 + np.uint64(f)]
            _settle(kept, s, q_wide, zero, step, is_row, width)
            continue
        if bits == 8:
            for f in range(width):
                q[f] = fields8[at + np.uint64(f)]
        elif bits == 1:
            _unpack_one(fields8, at, end, q)
        else:
            _unpack(fields8, at, end, bits, pairs, fours)
        _settle(kept, s, q, zero, step, is_row, width)

"""Encoding rows in plain torch: the reference, and the way without compilers.

Rows of one width are taken together, a slice at a time, so memory stays bounded.

Shapes: N rows of x, S rows in the message, G of them taken together, D width, B encoded bytes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu.ops.contract import Draw, Wire
from siafu.ops.random.reference import draw_words

RAW = 32
"""The width of a row that travels unchanged."""

WIDTHS = (2, 4, 8, 16, RAW)
CHANGE_WIDTHS = (0, 1, *WIDTHS)
"""Of rows whose ends keep what they last had: nothing, or the nearer of two values, will do too."""
DTYPES = (torch.float32, torch.float64)
SLICE_ELEMENTS = 1 << 20

LIMIT = 2.0**126
"""Numbers below this have differences that float32 holds, with room for rounding the step up."""

LARGEST = torch.finfo(torch.float32).max

FRACTION_BITS = 15
"""Of u: the largest quotient, 2^16 - 1, and these are all that an int32 holds."""

FRACTION = 2.0**FRACTION_BITS

GRID_EXPONENT = -149
"""A number whose exponent field is e lies on a grid of 2^(e - 150); steps use the next coarser."""


def encode_into(
    x_ND: Tensor, rows_S: Tensor | None, draw: Draw, wire: Wire, range_S: Tensor
) -> None:
    """See `contract.WireKernels`."""
    for bits, where_G in _groups(wire.bits_S, x_ND.size(1)):
        chosen_GD = x_ND.index_select(0, where_G if rows_S is None else rows_S[where_G])
        low_G, high_G = ends_of(chosen_GD)
        top_G = torch.maximum(low_G.abs(), high_G.abs())
        # written so that NaN is bad
        good_G = top_G <= LARGEST if bits == RAW else top_G < LIMIT
        range_S[where_G] = torch.where(good_G, high_G - low_G, torch.nan)
        if bits == RAW:
            bytes_GB = chosen_GD.view(torch.uint8)
        else:
            chosen_GD = torch.where(good_G[:, None], chosen_GD, 0)  # a bad row travels as zeros
            low_G, high_G = torch.where(good_G, low_G, 0), torch.where(good_G, high_G, 0)
            halves_GD = draw_halves(Draw(draw.key, draw.first_N[where_G]), x_ND.size(1))
            zero_G, step_G = scale_of(low_G, high_G, bits)
            q_GD = quantise(chosen_GD.float(), zero_G[:, None], step_G[:, None], halves_GD)
            words_G2 = torch.stack([zero_G, step_G], dim=1).view(torch.uint8)
            bytes_GB = torch.cat([words_G2, _pack(q_GD, bits)], dim=1)
        wire.payload[_places(wire, where_G, bytes_GB.size(1))] = bytes_GB


def decode_into(wire: Wire, out_SD: Tensor) -> None:
    """See `contract.WireKernels`."""
    width = out_SD.size(1)
    for bits, where_G in _groups(wire.bits_S, width):
        if bits == RAW:
            place_GB = _places(wire, where_G, width * out_SD.element_size())
            out_SD[where_G] = wire.payload[place_GB].view(out_SD.dtype)
            continue
        num_words = -(-width * bits // 32)
        words_GW = wire.payload[_places(wire, where_G, 8 + 4 * num_words)].view(torch.int32)
        scale_G2 = words_GW[:, :2].view(torch.float32)
        q_GD = _fields(words_GW[:, 2:], bits, width)
        out_SD[where_G] = (q_GD * scale_G2[:, 1:] + scale_G2[:, :1]).to(out_SD.dtype)


def encode_changes(
    x_ND: Tensor,
    rows_S: Tensor | None,
    kept_SD: Tensor,
    draw: Draw,
    wire: Wire,
    range_S: Tensor,
) -> None:
    """See `contract.WireKernels`."""
    for bits, where_G in _groups(wire.bits_S, x_ND.size(1)):
        row_GD = x_ND.index_select(0, where_G if rows_S is None else rows_S[where_G])
        kept_GD = kept_SD[where_G]
        change_GD = (row_GD - kept_GD).float()
        (low_G, high_G), (low_row_G, high_row_G) = ends_of(change_GD), ends_of(row_GD)
        is_row_G = high_row_G - low_row_G < high_G - low_G
        if bits == RAW:
            is_row_G = torch.ones_like(is_row_G)
        low_G = torch.where(is_row_G, low_row_G, low_G)
        high_G = torch.where(is_row_G, high_row_G, high_G)
        top_G = torch.maximum(low_G.abs(), high_G.abs())
        good_G = top_G <= LARGEST if bits == RAW else top_G < LIMIT  # NaN is bad
        range_S[where_G] = torch.where(good_G, high_G - low_G, torch.nan)
        if bits == 0:
            continue
        if bits == RAW:
            bytes_GB, kept_SD[where_G] = row_GD.view(torch.uint8), row_GD
        else:
            # A bad row travels as no change.
            is_row_G &= good_G
            chosen_GD = torch.where(is_row_G[:, None], row_GD.float(), change_GD)
            chosen_GD = torch.where(good_G[:, None], chosen_GD, 0)
            low_G, high_G = torch.where(good_G, low_G, 0), torch.where(good_G, high_G, 0)
            zero_G, step_G = scale_of(low_G, high_G, bits)
            if bits == 1:
                zero_G, step_G = quarters(zero_G, step_G)
                q_GD = (chosen_GD - zero_G[:, None] >= 0.5 * step_G[:, None]).long()
            else:
                halves_GD = draw_halves(Draw(draw.key, draw.first_N[where_G]), x_ND.size(1))
                q_GD = quantise(chosen_GD, zero_G[:, None], step_G[:, None], halves_GD)
            told_G = torch.where(is_row_G, -step_G, step_G)
            words_G2 = torch.stack([zero_G, told_G], dim=1).view(torch.uint8)
            bytes_GB = torch.cat([words_G2, _pack(q_GD, bits)], dim=1)
            value_GD = (q_GD.float() * step_G[:, None] + zero_G[:, None]).to(kept_SD.dtype)
            kept_SD[where_G] = torch.where(is_row_G[:, None], 0, kept_GD) + value_GD
        wire.payload[_places(wire, where_G, bytes_GB.size(1))] = bytes_GB


def decode_changes(wire: Wire, kept_SD: Tensor) -> None:
    """See `contract.WireKernels`."""
    width = kept_SD.size(1)
    for bits, where_G in _groups(wire.bits_S, width):
        if bits == 0:
            continue
        if bits == RAW:
            place_GB = _places(wire, where_G, width * kept_SD.element_size())
            kept_SD[where_G] = wire.payload[place_GB].view(kept_SD.dtype)
            continue
        words_GW = wire.payload[_places(wire, where_G, 8 + 4 * -(-width * bits // 32))]
        words_GW = words_GW.view(torch.int32)
        is_row_G1 = words_GW[:, 1:2] < 0  # the sign of the step
        zero_G1, step_G1 = words_GW[:, :2].view(torch.float32).split(1, dim=1)
        value_GD = _fields(words_GW[:, 2:], bits, width) * step_G1.abs() + zero_G1
        kept_SD[where_G] = torch.where(is_row_G1, 0, kept_SD[where_G]) + value_GD.to(kept_SD.dtype)


def quarters(zero_G: Tensor, step_G: Tensor) -> tuple[Tensor, Tensor]:
    """Return zero point and step of one bit: values in the middle of the two halves of a range."""
    wide_G = step_G.double()
    return (zero_G.double() + wide_G * 0.25).float(), (wide_G * 0.5).float()


def draw_halves(draw: Draw, width: int) -> Tensor:
    """Return the 16-bit draws of each column: a row's words cut in two, the low half first."""
    words_GW = draw_words(draw, 4 * -(-width // 8))
    return torch.stack([words_GW & 0xFFFF, words_GW >> 16], dim=2).flatten(1)[:, :width]


def scale_of(low_G: Tensor, high_G: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return zero point and step, multiples of a grid on which q * step + zero is exact.

    The grid is twice the spacing of float32 at the larger of magnitude and range: then q * step, at
    most the range and 2^bits grid units, has 24 significant bits, and so does its sum with zero.
    """
    top_G = torch.maximum(torch.maximum(low_G.abs(), high_G.abs()), high_G - low_G)
    exponent_G = (top_G.contiguous().view(torch.int32) >> 23).clamp(min=1).long()
    grid_G = (exponent_G + GRID_EXPONENT + 1023 << 52).view(torch.float64)
    zero_G = (low_G.double() / grid_G).floor() * grid_G
    step_G = ((high_G - zero_G) / grid_G / ((1 << bits) - 1)).ceil() * grid_G
    constant_G = low_G == high_G
    zero_G = torch.where(constant_G, low_G.double(), zero_G)
    # + 0.0 turns -0.0, whose order among zeros is anyone's, into 0.0
    return (zero_G + 0.0).float(), torch.where(constant_G, 0, step_G).float()


def quantise(h: Tensor, zero: Tensor, step: Tensor, half: Tensor) -> Tensor:
    """Return q as int64: the quotient in fixed point, plus the draw, cut off.

    A quotient is at most 2^bits - 1 and a draw below 1, so q stays in its field at both ends.
    """
    quotient = (h - zero) / torch.where(step == 0, 1, step)
    fixed = (quotient * FRACTION + 0.5).to(torch.int64)
    return (fixed + (half >> 16 - FRACTION_BITS)) >> FRACTION_BITS


def _fields(words_GW: Tensor, bits: int, width: int) -> Tensor:
    """Return the fields of rows of words, as float32."""
    shift_F = bits * torch.arange(32 // bits, device=words_GW.device)
    fields_GWF = (words_GW[:, :, None].long() >> shift_F) & ((1 << bits) - 1)
    return fields_GWF.flatten(1)[:, :width].float()


def _pack(q_GD: Tensor, bits: int) -> Tensor:
    """Return the bytes of rows of fields, each row filled up with zeros to whole int32."""
    fields = 32 // bits
    num_words = -(-q_GD.size(1) // fields)
    padded = q_GD.new_zeros(len(q_GD), num_words * fields)
    padded[:, : q_GD.size(1)] = q_GD
    shift_F = bits * torch.arange(fields, device=q_GD.device)
    words_GW = (padded.view(len(q_GD), num_words, fields) << shift_F).sum(dim=2)
    return words_GW.to(torch.int32).view(torch.uint8)


def ends_of(chosen_GD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest entry of each row, float32."""
    if not chosen_GD.size(1):
        zero_G = torch.zeros(len(chosen_GD), device=chosen_GD.device)
        return zero_G, zero_G
    low_G, high_G = torch.aminmax(chosen_GD.float(), dim=1)
    return low_G, high_G


def _places(wire: Wire, where_G: Tensor, num_bytes: int) -> Tensor:
    byte_B = torch.arange(num_bytes, device=where_G.device)
    return wire.start_S[where_G][:, None] + byte_B


def _groups(bits_S: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (width in bits, rows of that width), not too many at once."""
    step = max(1, SLICE_ELEMENTS // max(1, width))
    for bits in bits_S.unique().tolist():
        for where_G in (bits_S == bits).nonzero()[:, 0].split(step):
            yield bits, where_G

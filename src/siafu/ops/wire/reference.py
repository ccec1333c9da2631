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
        low_G, high_G = _ends(chosen_GD)
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
        shift_F = bits * torch.arange(32 // bits, device=words_GW.device)
        fields_GWF = (words_GW[:, 2:, None].long() >> shift_F) & ((1 << bits) - 1)
        q_GD = fields_GWF.flatten(1)[:, :width].float()
        out_SD[where_G] = (q_GD * scale_G2[:, 1:] + scale_G2[:, :1]).to(out_SD.dtype)


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


def _pack(q_GD: Tensor, bits: int) -> Tensor:
    """Return the bytes of rows of fields, each row filled up with zeros to whole int32."""
    fields = 32 // bits
    num_words = -(-q_GD.size(1) // fields)
    padded = q_GD.new_zeros(len(q_GD), num_words * fields)
    padded[:, : q_GD.size(1)] = q_GD
    shift_F = bits * torch.arange(fields, device=q_GD.device)
    words_GW = (padded.view(len(q_GD), num_words, fields) << shift_F).sum(dim=2)
    return words_GW.to(torch.int32).view(torch.uint8)


def _ends(chosen_GD: Tensor) -> tuple[Tensor, Tensor]:
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

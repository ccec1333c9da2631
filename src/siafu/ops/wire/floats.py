"""Rows as floats of fewer bits: bfloat16, and FP8 (e4m3) with a scale for each row.

Each entry becomes the nearest float, without draws: within 2^-8 of itself as bfloat16, within 2^-4
as FP8, or within 2^-17 of the row's largest entry where that is more. A row of bfloat16 is its
entries, filled up to 4 bytes. A row of FP8 is a float32 scale, a power of two that brings the
largest entry to 128 to 256, and a byte an entry, filled up likewise. All rows of a message have the
same format, so casts of torch are the whole of it, on every device.

Shapes: N rows of x, S rows in the message, G of them at once, D width, B bytes of a row.
"""

import torch
from torch import Tensor

from siafu.ops.wire.reference import LIMIT, ends_of

FP8, BF16 = 9, 17
"""The bytes that stand for the formats, beside widths in bits."""
FLOATS = (FP8, BF16)
_PIECE_NUMBERS = 1 << 16
"""Entries that are cast at once, so that copies on the way take little."""
_TOP_EXPONENT = 8
_LEAST_EXPONENT = -118
"""Of a row's largest entry: below, the scale would not be a normal float32."""


def float_bytes(code: int, width: int) -> int:
    """Return the bytes of a row."""
    return 4 * -(-width // 2) if code == BF16 else 4 + 4 * -(-width // 4)


def encode_floats(
    x_ND: Tensor, rows_S: Tensor | None, code: int, payload: Tensor, range_S: Tensor
) -> None:
    """Write rows x[rows_S] to `payload` and their ranges to `range_S`, NaN of those not finite."""
    bytes_SB = payload.view(len(range_S), float_bytes(code, x_ND.size(1)))
    for piece in _pieces(len(range_S), x_ND.size(1)):
        x_GD = x_ND[piece] if rows_S is None else x_ND.index_select(0, rows_S[piece])
        _encode(x_GD, code, bytes_SB[piece], range_S[piece])


def decode_floats(payload: Tensor, code: int, out_SD: Tensor) -> None:
    """Write the rows of a message to `out_SD`."""
    bytes_SB = payload.view(len(out_SD), float_bytes(code, out_SD.size(1)))
    for piece in _pieces(*out_SD.shape):
        _decode(bytes_SB[piece], code, out_SD[piece])


def _pieces(num_rows: int, width: int) -> list[slice]:
    step = max(1, _PIECE_NUMBERS // max(1, width))
    return [slice(first, first + step) for first in range(0, num_rows, step)]


def _encode(x_GD: Tensor, code: int, bytes_GB: Tensor, range_G: Tensor) -> None:
    low_G, high_G = ends_of(x_GD)
    top_G = torch.maximum(low_G.abs(), high_G.abs())
    good_G = top_G < LIMIT  # written so that NaN is bad
    range_G.copy_(torch.where(good_G, high_G - low_G, torch.nan))
    x_GD = torch.where(good_G[:, None], x_GD, 0)  # a bad row travels as zeros
    head = 0
    if code == FP8:
        exponent_G = torch.frexp(torch.where(good_G, top_G, 0)).exponent
        exponent_G = exponent_G.clamp(min=_LEAST_EXPONENT) - _TOP_EXPONENT
        scale_G1 = torch.ldexp(torch.ones_like(top_G), exponent_G)[:, None]
        bytes_GB[:, :4] = scale_G1.view(torch.uint8)
        x_GD, head = x_GD / scale_G1, 4
    values = x_GD.to(torch.float8_e4m3fn if code == FP8 else torch.bfloat16).view(torch.uint8)
    bytes_GB[:, head : head + values.size(1)] = values
    bytes_GB[:, head + values.size(1) :] = 0


def _decode(bytes_GB: Tensor, code: int, out_GD: Tensor) -> None:
    width = out_GD.size(1)
    if code == BF16:
        out_GD.copy_(bytes_GB[:, : 2 * width].contiguous().view(torch.bfloat16))
        return
    scale_G1 = bytes_GB[:, :4].contiguous().view(torch.float32)
    values_GD = bytes_GB[:, 4 : 4 + width].contiguous().view(torch.float8_e4m3fn)
    out_GD.copy_(values_GD.to(torch.float32) * scale_G1)

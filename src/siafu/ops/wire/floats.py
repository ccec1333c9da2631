"""Rows as floats of fewer bits: bfloat16, and FP8 (e4m3) with a scale for each row.

Each entry becomes the nearest float, without draws: within 2^-8 of itself as bfloat16, within 2^-4
as FP8, or within 2^-17 of the row's largest entry where that is more. A row of bfloat16 is its
entries, filled up to 4 bytes. A row of FP8 is a float32 scale, a power of two that brings the
largest entry to 128 to 256, and a byte an entry, filled up likewise. All rows of a message have the
same format, so casts of torch are the whole of it, on every device.

Shapes: N rows of x, S rows in the message, D width, B bytes of a row.
"""

import torch
from torch import Tensor

from siafu.ops.wire.reference import LIMIT, ends_of

FP8, BF16 = 9, 17
"""The bytes that stand for the formats, beside widths in bits."""
FLOATS = (FP8, BF16)
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
    x_SD = x_ND if rows_S is None else x_ND.index_select(0, rows_S)
    low_S, high_S = ends_of(x_SD)
    top_S = torch.maximum(low_S.abs(), high_S.abs())
    good_S = top_S < LIMIT  # written so that NaN is bad
    range_S.copy_(torch.where(good_S, high_S - low_S, torch.nan))
    x_SD = torch.where(good_S[:, None], x_SD, 0)  # a bad row travels as zeros
    bytes_SB = payload.view(len(x_SD), float_bytes(code, x_SD.size(1)))
    head = 0
    if code == FP8:
        exponent_S = torch.frexp(torch.where(good_S, top_S, 0)).exponent
        exponent_S = exponent_S.clamp(min=_LEAST_EXPONENT) - _TOP_EXPONENT
        scale_S1 = torch.ldexp(torch.ones_like(top_S), exponent_S)[:, None]
        bytes_SB[:, :4] = scale_S1.view(torch.uint8)
        x_SD, head = x_SD / scale_S1, 4
    values = x_SD.to(torch.float8_e4m3fn if code == FP8 else torch.bfloat16).view(torch.uint8)
    bytes_SB[:, head : head + values.size(1)] = values
    bytes_SB[:, head + values.size(1) :] = 0


def decode_floats(payload: Tensor, code: int, out_SD: Tensor) -> None:
    """Write the rows of a message to `out_SD`."""
    num_rows, width = out_SD.shape
    bytes_SB = payload.view(num_rows, float_bytes(code, width))
    if code == BF16:
        out_SD.copy_(bytes_SB[:, : 2 * width].contiguous().view(torch.bfloat16))
        return
    scale_S1 = bytes_SB[:, :4].contiguous().view(torch.float32)
    values_SD = bytes_SB[:, 4 : 4 + width].contiguous().view(torch.float8_e4m3fn)
    out_SD.copy_(values_SD.to(torch.float32) * scale_S1)

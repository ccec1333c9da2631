"""Rows as they travel between ranks: 2 to 16 bits per entry, or unchanged.

`rows` is what others call, and has the format; `reference` (plain torch), `numba` and `triton`
give the same bytes; `floats` are casts of torch.
"""

from siafu.ops.wire.reference import CHANGE_WIDTHS, DTYPES, RAW, WIDTHS

__all__ = ["CHANGE_WIDTHS", "DTYPES", "RAW", "WIDTHS"]

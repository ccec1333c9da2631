"""Rows by number, from the device's memory or from pinned memory of the host, read in place.

A device reads pinned memory over the bus itself, so nothing is copied on the host. Rows that are
read most may have copies on the device.

Shapes: N rows of a table, R rows asked for, K rows with copies, W width.
"""

import torch
from torch import Tensor

from siafu.ops.kernels import row_kernels


def gather_rows(
    table_NW: Tensor,
    rows_R: Tensor,
    slot_N: Tensor | None = None,
    copies_KW: Tensor | None = None,
) -> Tensor:
    """Return table[rows_R] on the device of `rows_R`; the table may lie in pinned host memory.

    `slot_N` (int32, on the device) tells which row of `copies_KW` is that of the table, -1: none.
    """
    out_RW = torch.empty(
        (len(rows_R), *table_NW.shape[1:]), dtype=table_NW.dtype, device=rows_R.device
    )
    if out_RW.numel():
        row_kernels(rows_R.device).gather_into(table_NW, rows_R, slot_N, copies_KW, out_RW)
    return out_RW

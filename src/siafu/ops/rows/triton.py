"""Gathering rows for CUDA, written in Triton: the table may be pinned memory of the host.

Of a table on the host few programs, each with several rows on the way: the bus is full with a few
hundred rows in flight, and the rest of the device goes on training.

Shapes: as in `rows.gather`; P rows of a program at a time, T columns of a tile.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

jit: Callable[[Any], Any] = triton.jit

PROGRAMS = 264
"""Of a table beyond the bus: two for each multiprocessor of an H200."""
TILE = 128
TILE_ELEMENTS = 1024


def gather_into(
    table_NW: Tensor,
    rows_R: Tensor,
    slot_N: Tensor | None,
    copies_KW: Tensor | None,
    out_RW: Tensor,
) -> None:
    """See `contract.RowKernels`."""
    width = out_RW[0].numel()
    tile = min(TILE, triton.next_power_of_2(width))
    step = TILE_ELEMENTS // tile
    programs = triton.cdiv(len(rows_R), step)
    if not table_NW.is_cuda:
        programs = min(PROGRAMS, programs)
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(out_RW):
        _gather[(programs,)](
            table_NW,
            rows_R,
            slot_N,
            copies_KW,
            out_RW,
            len(rows_R),
            programs,
            width=width,
            P=step,
            T=tile,
            num_warps=4,
        )


@jit
def _gather(
    table: tl.tensor,
    rows: tl.tensor,
    slot: tl.tensor,
    copies: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    programs: tl.tensor,
    width: tl.constexpr,
    P: tl.constexpr,
    T: tl.constexpr,
) -> None:
    for first in range(tl.program_id(0) * P, num_rows, programs * P):
        r_P = first + tl.arange(0, P)
        live_P = r_P < num_rows
        row_P = tl.load(rows + r_P, mask=live_P, other=0)
        far_P = live_P
        if slot is not None:
            slot_P = tl.load(slot + row_P, mask=live_P, other=-1).to(tl.int64)
            far_P = live_P & (slot_P < 0)
        for low in range(0, width, T):
            column_T = low + tl.arange(0, T)
            inside_PT = (column_T < width)[None, :] & live_P[:, None]
            from_table_PT = inside_PT & far_P[:, None]
            at_PT = row_P[:, None] * width + column_T[None, :]
            value_PT = tl.load(table + at_PT, mask=from_table_PT, other=0)
            if slot is not None:
                kept_PT = inside_PT & (slot_P >= 0)[:, None]
                at_PT = slot_P[:, None] * width + column_T[None, :]
                kept_value_PT = tl.load(copies + at_PT, mask=kept_PT, other=0)
                value_PT = tl.where(kept_PT, kept_value_PT, value_PT)
            out_PT = r_P.to(tl.int64)[:, None] * width + column_T[None, :]
            tl.store(out + out_PT, value_PT, mask=inside_PT)

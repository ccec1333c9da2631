"""What attentions for CUDA share: the launch, dropped weights, slopes, the softmax's shift.

Shapes: M destination rows, H heads, D width of a head, G heads of a program, W columns of a tile
(D rounded up to a power of 2), S edges a step, B rows looked through for hubs.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import EdgeDrop
from siafu.ops.csr_triton import HUB_SEARCH_ROWS, HUB_WARPS, LONG_ROW

jit: Callable[[Any], Any] = triton.jit
keyed: Callable[[Any], Any] = triton.jit(do_not_specialize=["key"])

WIDEST_TILE = 256
"""G x W up to which a program takes several heads: each edge's number is read once for them all."""

LONG = tl.constexpr(LONG_ROW)

TILE_ELEMENTS = 1024
"""S x G x W: 32 numbers for each lane of a warp."""


def launch(
    kernel: Any, num_rows: int, shape: tuple[int, int], *tensors: Any, **options: Any
) -> None:
    """Start `kernel` for short rows, a warp each, then for hubs; `shape` is (H, D)."""
    heads, width = shape
    if num_rows == 0 or heads * width == 0:
        return
    columns = triton.next_power_of_2(width)
    group = min(triton.next_power_of_2(heads), max(1, WIDEST_TILE // columns))
    step, groups = max(1, TILE_ELEMENTS // (group * columns)), triton.cdiv(heads, group)
    searches = triton.cdiv(num_rows, HUB_SEARCH_ROWS)
    fixed = {"H": heads, "D": width, "G": group, "W": columns, **options}
    device = next(t for t in tensors if isinstance(t, Tensor))
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(device):
        kernel[(num_rows, groups)](*tensors, num_rows, B=1, S=step, num_warps=1, **fixed)
        kernel[(searches, groups)](
            *tensors,
            num_rows,
            B=HUB_SEARCH_ROWS,
            S=step * HUB_WARPS,
            num_warps=HUB_WARPS,
            **fixed,
        )


def drop_options(drop: EdgeDrop | None) -> tuple[tuple[Tensor | None, Tensor | None, int], Any]:
    """Return (ids_C, ids_M, key) and the constants; without ids nothing is dropped."""
    if drop is None:
        return (None, None, 0), {"threshold": 0, "scale": 1.0}
    both = drop.key[0] | drop.key[1] << 32
    # signed, as in random_triton: Triton would compile anew for a uint64
    key = both - 2**64 if both >= 2**63 else both
    return (drop.ids_C, drop.ids_M, key), {"threshold": drop.threshold, "scale": drop.scale}


@jit
def is_mine(indptr: tl.tensor, row: tl.tensor, num_rows: tl.tensor, B: tl.constexpr) -> tl.tensor:
    """Return whether this launch (B = 1: short rows, else hubs) takes `row`, or several rows."""
    start = tl.load(indptr + row, mask=row < num_rows, other=0)
    length = tl.load(indptr + row + 1, mask=row < num_rows, other=0) - start
    return (length <= LONG) if B == 1 else (length > LONG)


@jit
def any_mine(indptr: tl.tensor, num_rows: tl.tensor, B: tl.constexpr) -> tl.tensor:
    """Return whether one of this program's B rows is this launch's."""
    row_B = tl.program_id(0).to(tl.int64) + tl.arange(0, B) * tl.num_programs(0)
    return tl.max(is_mine(indptr, row_B, num_rows, B).to(tl.int32), axis=0) > 0


@jit
def keep_or_drop(
    part_SG: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    j: tl.tensor,
    i: tl.tensor,
    head_G: tl.tensor,
    threshold: tl.constexpr,
    scale: tl.constexpr,
) -> tl.tensor:
    """Return weights times their draws, 0 or `scale`; without ids, the weights."""
    kept_SG = part_SG
    if ids_C is not None:
        # the end that all edges share comes as one number
        none_S = tl.zeros([part_SG.shape[0]], dtype=tl.int64)
        first_S, second_S = tl.load(ids_C + j) + none_S, tl.load(ids_M + i) + none_S
        high_S = (((first_S >> 32) & 0xFFFF) << 16) | ((second_S >> 32) & 0xFFFF)
        zero_SG = tl.zeros(part_SG.shape, dtype=tl.uint32)
        w0, w1, w2, w3 = tl.philox(
            key,
            (first_S & 0xFFFFFFFF).to(tl.uint32)[:, None] + zero_SG,
            (second_S & 0xFFFFFFFF).to(tl.uint32)[:, None] + zero_SG,
            high_S.to(tl.uint32)[:, None] + zero_SG,
            (head_G // 4).to(tl.uint32)[None, :] + zero_SG,
        )
        # four neighbouring heads each run the cipher and take one word: no exchange between lanes
        lane_SG = (head_G % 4)[None, :] + zero_SG.to(tl.int32)
        low_SG = tl.where(lane_SG == 0, w0, w1)
        word_SG = tl.where(lane_SG < 2, low_SG, tl.where(lane_SG == 2, w2, w3))
        scale_SG = tl.full(part_SG.shape, scale, dtype=part_SG.dtype)
        kept_SG = part_SG * tl.where(word_SG.to(tl.int64) >= threshold, scale_SG, 0.0)
    return kept_SG

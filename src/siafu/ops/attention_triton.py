"""What attentions for CUDA share: the launch, dropped weights, slopes, the softmax's shift.

Shapes: M destination rows, H heads, D width of a head, G heads of a program, W columns of a tile
(D rounded up to a power of 2), S edges a step, B rows looked through for hubs.
"""

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
    fixed = {"H": heads, "D": width, "G": group, "W": columns, "long_row": LONG_ROW, **options}
    device = next(t for t in tensors if isinstance(t, Tensor))
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(device):
        kernel[(num_rows, groups)](*tensors, num_rows, num_rows, B=1, S=step, num_warps=1, **fixed)
        kernel[(searches, groups)](
            *tensors,
            num_rows,
            searches,
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
def is_mine(
    indptr: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    long_row: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """Return whether this launch (B = 1: short rows, else hubs) takes `row`, or several rows."""
    start = tl.load(indptr + row, mask=row < num_rows, other=0)
    length = tl.load(indptr + row + 1, mask=row < num_rows, other=0) - start
    return (length <= long_row) if B == 1 else (length > long_row)


@jit
def any_mine(
    indptr: tl.tensor,
    num_rows: tl.tensor,
    searches: tl.tensor,
    long_row: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """Return whether one of this program's B rows is this launch's."""
    row_B = tl.program_id(0).to(tl.int64) + tl.arange(0, B) * searches
    return tl.max(is_mine(indptr, row_B, num_rows, long_row, B).to(tl.int32), axis=0) > 0


@jit
def keep_factor(
    key: tl.tensor,
    first_S: tl.tensor,
    second_S: tl.tensor,
    head_G: tl.tensor,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    wide: tl.constexpr,
) -> tl.tensor:
    """Return 0 for a dropped weight and `scale` for a kept one, [S, G]."""
    high_S = (((first_S >> 32) & 0xFFFF) << 16) | ((second_S >> 32) & 0xFFFF)
    zero_SG = tl.zeros([first_S.shape[0], head_G.shape[0]], dtype=tl.uint32)
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
    scale_SG = tl.full(word_SG.shape, scale, dtype=wide)
    return tl.where(word_SG.to(tl.int64) >= threshold, scale_SG, 0.0)

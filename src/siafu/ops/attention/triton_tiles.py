"""What attention for CUDA is made of: the launch, tiles of rows and edges, dropped weights.

Shapes: M destination rows, H heads, D width of a head, G heads of a program, W columns of a tile
(D rounded up to a power of 2), S edges per step, B rows of a program.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import EdgeDrop
from siafu.ops.random.reference import signed_key

jit: Callable[[Any], Any] = triton.jit
keyed: Callable[[Any], Any] = triton.jit(do_not_specialize=["key"])

WIDEST_TILE = 64
"""G x W up to which a program takes several heads: more programs hide more of memory's delay."""

TILE_ELEMENTS = 512
"""S x G x W: 16 numbers for each lane of a warp."""

LONG = tl.constexpr(512)
"""Edges above which a row is a hub; one warp would outlast the launch."""

HUB_WARPS = 16
HUB_SEARCH_ROWS = 32


def launch(
    kernel: Any,
    num_rows: int,
    shape: tuple[int, int],
    *tensors: Any,
    rows: int = 1,
    parts: tuple[Any, Any] | None = None,
    **options: Any,
) -> None:
    """Start `kernel` for short rows, a warp for `rows` of them, then for hubs; `shape` is (H, D).

    `parts` are two tensors, one per launch, for what programs sum over the rows they take.
    """
    heads, width = shape
    if num_rows == 0 or heads * width == 0:
        return
    columns = triton.next_power_of_2(width)
    group = min(triton.next_power_of_2(heads), max(1, WIDEST_TILE // columns))
    step, groups = max(1, TILE_ELEMENTS // (group * columns)), triton.cdiv(heads, group)
    fixed = {"H": heads, "D": width, "G": group, "W": columns, **options}
    device = next(t for t in tensors if isinstance(t, Tensor))
    short, hubs = ((), ()) if parts is None else ((parts[0],), (parts[1],))
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(device):
        kernel[(triton.cdiv(num_rows, rows), groups)](
            *tensors, *short, num_rows, B=rows, HUBS=False, S=step, num_warps=1, **fixed
        )
        kernel[(triton.cdiv(num_rows, HUB_SEARCH_ROWS), groups)](
            *tensors,
            *hubs,
            num_rows,
            B=HUB_SEARCH_ROWS,
            HUBS=True,
            S=step * HUB_WARPS,
            num_warps=HUB_WARPS,
            **fixed,
        )


def drop_options(drop: EdgeDrop | None) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Return (ids_C, ids_M, key) and the constants; without ids nothing is dropped."""
    if drop is None:
        nothing = {"threshold": 0, "scale": 1.0, "first_head": 0, "held": False}
        return (None, None, 0), nothing
    # Triton would compile anew for a uint64
    key = signed_key(drop.key) if drop.held is None else drop.held
    constants = {"threshold": drop.threshold, "scale": drop.scale, "first_head": drop.first_head}
    return (drop.ids_C, drop.ids_M, key), constants | {"held": drop.held is not None}


@jit
def is_mine(
    indptr: tl.tensor, row: tl.tensor, num_rows: tl.tensor, HUBS: tl.constexpr
) -> tl.tensor:
    """Return whether this launch (for hubs, or for all others) takes `row`, or several rows."""
    start = tl.load(indptr + row, mask=row < num_rows, other=0)
    length = tl.load(indptr + row + 1, mask=row < num_rows, other=0) - start
    return (length > LONG) if HUBS else (length <= LONG)


@jit
def any_mine(
    indptr: tl.tensor, num_rows: tl.tensor, B: tl.constexpr, HUBS: tl.constexpr
) -> tl.tensor:
    """Return whether one of this program's B rows is this launch's."""
    row_B = tl.program_id(0).to(tl.int64) + tl.arange(0, B) * tl.num_programs(0)
    return tl.max(is_mine(indptr, row_B, num_rows, HUBS).to(tl.int32), axis=0) > 0


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
    held: tl.constexpr,
) -> tl.tensor:
    """Return weights times their draws, 0 or `scale`; without ids, the weights."""
    kept_SG = part_SG
    if ids_C is not None:
        cipher_key = tl.load(key) if held else key
        # the end that all edges share comes as one number
        none_S = tl.zeros([part_SG.shape[0]], dtype=tl.int64)
        first_S, second_S = tl.load(ids_C + j) + none_S, tl.load(ids_M + i) + none_S
        high_S = (((first_S >> 32) & 0xFFFF) << 16) | ((second_S >> 32) & 0xFFFF)
        zero_SG = tl.zeros(part_SG.shape, dtype=tl.uint32)
        w0, w1, w2, w3 = tl.philox(
            cipher_key,
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


@jit
def steepness(sum_SG: tl.tensor, slope: tl.constexpr) -> tl.tensor:
    """Return the slope of leaky_relu at each sum, in the type of the sums."""
    # a bare constant would be a float32, too coarse for float64
    slope_SG = tl.full(sum_SG.shape, slope, dtype=sum_SG.dtype)
    return tl.where(sum_SG > 0, tl.full(sum_SG.shape, 1.0, dtype=sum_SG.dtype), slope_SG)


@jit
def exp_live(x_SG: tl.tensor, live_SG: tl.tensor) -> tl.tensor:
    """Return e^x, 0 for lanes without an edge."""
    return tl.exp(tl.where(live_SG, x_SG, float("-inf")))


@jit
def fold(place: tl.tensor, inside: tl.tensor, shrink: tl.tensor, added: tl.tensor) -> None:
    """Add to what was gathered before, scaled down."""
    held = tl.load(place, mask=inside, other=0.0).to(added.dtype)
    tl.store(place, held * shrink + added, mask=inside)


@jit
def numbers(order: tl.tensor, edge_S: tl.tensor, live_S: tl.tensor) -> tl.tensor:
    """Return the original numbers of a transpose's edges, where `order` tells them."""
    number_S = edge_S.to(tl.int64)
    if order is not None:
        number_S = tl.load(order + edge_S, mask=live_S, other=0).to(tl.int64)
    return number_S


@jit
def edges_of(
    indptr: tl.tensor, row: tl.tensor, num_rows: tl.tensor, HUBS: tl.constexpr
) -> tl.tensor:
    """Return a row's first edge and its end; no edges where another launch takes the row."""
    start = tl.load(indptr + row, mask=row < num_rows, other=0)
    end = tl.load(indptr + row + 1, mask=row < num_rows, other=0)
    return start, tl.where(is_mine(indptr, row, num_rows, HUBS), end, start)


@jit
def gather(
    x: tl.tensor,
    row_S: tl.tensor,
    head_G: tl.tensor,
    column_W: tl.tensor,
    live_S: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
) -> tl.tensor:
    """Return the heads' columns of some rows, [S, G, W]."""
    in_GW = (head_G < H)[:, None] & (column_W < D)[None, :]
    place_GW = head_G[:, None] * D + column_W[None, :]
    live_SGW = live_S[:, None, None] & in_GW[None, :, :]
    return tl.load(x + row_S[:, None, None] * (H * D) + place_GW[None, :, :], live_SGW, other=0.0)


@jit
def scalars(
    x: tl.tensor, row_S: tl.tensor, head_G: tl.tensor, live_SG: tl.tensor, H: tl.constexpr
) -> tl.tensor:
    """Return a number for each of some rows and heads, [S, G]."""
    return tl.load(x + row_S[:, None] * H + head_G[None, :], mask=live_SG, other=0.0)


@jit
def own_heads(x: tl.tensor, at_GW: tl.tensor, in_GW: tl.tensor, wide: tl.constexpr) -> tl.tensor:
    """Return a row's heads, [G, W]; zeros where the kind has no such tensor."""
    own_GW = tl.zeros(at_GW.shape, dtype=wide)
    if x is not None:
        own_GW = tl.load(x + at_GW, mask=in_GW, other=0.0).to(wide)
    return own_GW


@jit
def with_edge(
    term_SGW: tl.tensor,
    edge: tl.tensor,
    number_S: tl.tensor,
    head_G: tl.tensor,
    column_W: tl.tensor,
    live_S: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
) -> tl.tensor:
    """Return the term plus the edges' vectors, where there are any."""
    with_SGW = term_SGW
    if edge is not None:
        with_SGW += gather(edge, number_S, head_G, column_W, live_S, H, D).to(term_SGW.dtype)
    return with_SGW

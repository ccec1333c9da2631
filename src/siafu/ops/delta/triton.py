"""Delta kernels for CUDA, written in Triton: each place finds its edge by two short searches.

Where new edges stand and where gone ones stood are sorted, so what comes before a tile of places is
searched for once per tile, and every place searches between two tiles only. One pass reads and
writes the columns; nothing waits for the host.

Places are int32, and so is one tile more than there are.

Shapes: K places after the delta in tiles of P, A born, R gone, N rows, B entries per program.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.delta import reference
from siafu.ops.delta.contract import Changes, SortedEdges

changes = reference.changes  # found on the host
slide = reference.slide  # so is this

jit: Callable[[Any], Any] = triton.jit

TILE_PLACES = 512
"""P: 4 places for each thread, so that many programs wait for memory at a time."""
ENTRIES, WARPS = 512, 4
"""B."""


def move(
    indptr: Tensor,
    columns: tuple[Tensor, ...],
    fresh: tuple[Tensor, ...],
    delta: Changes,
    num_after: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `contract.DeltaKernels`."""
    born_at, born_dst, gone_at, _ = delta
    born, gone = len(born_at), len(gone_at)
    tiles = num_after // TILE_PLACES + 1
    before = torch.empty(2, tiles + 1, dtype=torch.int32, device=indptr.device)
    stood_at = torch.empty(gone, dtype=torch.int32, device=indptr.device)
    next_indptr = torch.empty_like(indptr)
    moved = tuple(torch.empty(num_after, dtype=c.dtype, device=c.device) for c in columns)
    blocks = {"B": ENTRIES, "num_warps": WARPS}
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(indptr):
        _count_before[(triton.cdiv(tiles + 1, ENTRIES),)](
            born_at, gone_at, before, born, gone, tiles + 1, P=TILE_PLACES, **blocks
        )
        for values, new, out in zip(columns, fresh, moved, strict=True):
            _move[(tiles,)](
                values, new, born_at, gone_at, before, out, num_after, tiles + 1, P=TILE_PLACES
            )
        if gone:
            _stood[(triton.cdiv(gone, ENTRIES),)](
                born_at, gone_at, before, stood_at, gone, P=TILE_PLACES, **blocks
            )
        _starts[(triton.cdiv(len(indptr), ENTRIES),)](
            indptr, born_dst, stood_at, next_indptr, born, gone, len(indptr), **blocks
        )
    return next_indptr, moved


def add_normalised(
    edges: SortedEdges, root_N: Tensor, sums_K: Tensor, sign: int, steps: int
) -> tuple[Tensor, Tensor | None]:
    """See `contract.DeltaKernels`."""
    indptr, index, weight = edges
    count = len(index)
    sums = torch.empty_like(sums_K)
    mean = torch.empty(count if steps else 0, dtype=torch.float32, device=sums.device)
    if count:
        tiles = triton.cdiv(count, TILE_PLACES)
        first = torch.arange(tiles + 1, device=indptr.device).mul_(TILE_PLACES)
        row = torch.searchsorted(indptr, first.clamp_(max=count - 1), right=True, out_int32=True)
        with torch.cuda.device_of(indptr):
            _add_normalised[(tiles,)](
                indptr,
                index,
                weight,
                root_N,
                sums_K,
                sums,
                mean,
                row,
                count,
                steps,
                ADDS=sign > 0,
                HAS_MEAN=steps > 0,
                P=TILE_PLACES,
            )
    return sums, mean if steps else None


@jit
def _search(
    one: tl.tensor,
    one_low_B: tl.tensor,
    one_high_B: tl.tensor,
    one_wanted_B: tl.tensor,
    two: tl.tensor,
    two_low_B: tl.tensor,
    two_high_B: tl.tensor,
    two_wanted_B: tl.tensor,
    span: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first places in two sorted lists, from `low` on, whose values are not less.

    `high` where there is none. No range is longer than `span`. Both are searched side by side, so
    that a step waits for memory once.
    """
    while span > 0:
        middle_B = (one_low_B + one_high_B) // 2
        is_open_B = one_low_B < one_high_B
        value_B = tl.load(one + middle_B, mask=is_open_B, other=0)
        other_middle_B = (two_low_B + two_high_B) // 2
        is_other_open_B = two_low_B < two_high_B
        other_B = tl.load(two + other_middle_B, mask=is_other_open_B, other=0)
        goes_up_B = is_open_B & (value_B < one_wanted_B)
        one_low_B = tl.where(goes_up_B, middle_B + 1, one_low_B)
        one_high_B = tl.where(goes_up_B, one_high_B, middle_B)
        goes_up_B = is_other_open_B & (other_B < two_wanted_B)
        two_low_B = tl.where(goes_up_B, other_middle_B + 1, two_low_B)
        two_high_B = tl.where(goes_up_B, two_high_B, other_middle_B)
        span = span // 2
    return one_low_B, two_low_B


@jit
def _count_before(
    born_at: tl.tensor,
    gone_at: tl.tensor,
    before: tl.tensor,
    num_born: tl.tensor,
    num_gone: tl.tensor,
    count: tl.tensor,
    P: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Write how many edges are born, and how many gone, before each tile."""
    tile_B = tl.program_id(0) * B + tl.arange(0, B)
    first_B = tile_B * P
    none_B = tl.zeros([B], dtype=tl.int32)
    span = tl.maximum(num_born, num_gone)
    born_B, gone_B = _search(
        born_at,
        none_B,
        none_B + num_born,
        first_B,
        gone_at,
        none_B,
        none_B + num_gone,
        first_B,
        span,
    )
    tl.store(before + tile_B, born_B, mask=tile_B < count)
    tl.store(before + count + tile_B, gone_B, mask=tile_B < count)


@jit
def _move(
    values: tl.tensor,
    fresh: tl.tensor,
    born_at: tl.tensor,
    gone_at: tl.tensor,
    before: tl.tensor,
    out: tl.tensor,
    num_after: tl.tensor,
    count: tl.tensor,
    P: tl.constexpr,
) -> None:
    """Write a tile: a new value, or the old one that shifts there."""
    tile = tl.program_id(0)
    place_P = tile * P + tl.arange(0, P)
    born, born_end = tl.load(before + tile), tl.load(before + tile + 1)
    gone, gone_end = tl.load(before + count + tile), tl.load(before + count + tile + 1)
    # The edge that stays is stepped to over all that went up to here, hence the next place.
    none_P = tl.zeros([P], dtype=tl.int32)
    born_P, gone_P = _search(
        born_at,
        none_P + born,
        none_P + born_end,
        place_P,
        gone_at,
        none_P + gone,
        none_P + gone_end,
        place_P + 1,
        tl.maximum(born_end - born, gone_end - gone),
    )
    inside_P = place_P < num_after
    is_new_P = inside_P & (born_P < born_end)
    is_new_P = is_new_P & (tl.load(born_at + born_P, mask=is_new_P, other=-1) == place_P)
    stays_P = inside_P & (is_new_P == 0)
    value_P = tl.load(values + (place_P - born_P + gone_P), mask=stays_P, other=0)
    new_P = tl.load(fresh + born_P, mask=is_new_P, other=0)
    tl.store(out + place_P, tl.where(is_new_P, new_P, value_P), mask=inside_P)


@jit
def _stood(
    born_at: tl.tensor,
    gone_at: tl.tensor,
    before: tl.tensor,
    stood_at: tl.tensor,
    num_gone: tl.tensor,
    P: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Write where each gone edge stood: those before it that were not born stood before it too."""
    number_B = tl.program_id(0) * B + tl.arange(0, B)
    inside_B = number_B < num_gone
    place_B = tl.load(gone_at + number_B, mask=inside_B, other=0)
    low_B = tl.load(before + place_B // P, mask=inside_B, other=0)
    high_B = tl.load(before + place_B // P + 1, mask=inside_B, other=0)
    span = tl.max(high_B - low_B, axis=0)
    none_B = tl.zeros([B], dtype=tl.int32)
    born_B, _ = _search(born_at, low_B, high_B, place_B, born_at, none_B, none_B, place_B, span)
    tl.store(stood_at + number_B, place_B - born_B + number_B, mask=inside_B)


@jit
def _starts(
    indptr: tl.tensor,
    born_dst: tl.tensor,
    stood_at: tl.tensor,
    out: tl.tensor,
    num_born: tl.tensor,
    num_gone: tl.tensor,
    count: tl.tensor,
    B: tl.constexpr,
) -> None:
    """Write where rows start: later by those born in rows before, earlier by those gone there."""
    row_B = tl.program_id(0) * B + tl.arange(0, B)
    inside_B = row_B < count
    start_B = tl.load(indptr + row_B, mask=inside_B, other=0)
    none_B = tl.zeros([B], dtype=tl.int32)
    born_B, gone_B = _search(
        born_dst,
        none_B,
        none_B + num_born,
        row_B,
        stood_at,
        none_B,
        none_B + num_gone,
        start_B,
        tl.maximum(num_born, num_gone),
    )
    tl.store(out + row_B, start_B + born_B - gone_B, mask=inside_B)


@jit
def _add_normalised(
    indptr: tl.tensor,
    index: tl.tensor,
    weight: tl.tensor,
    roots: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    mean: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    steps: tl.tensor,
    ADDS: tl.constexpr,
    HAS_MEAN: tl.constexpr,
    P: tl.constexpr,
) -> None:
    """Write the sums of a tile, and their means; `rows` has one more than a tile's first row."""
    tile = tl.program_id(0)
    place_P = tile * P + tl.arange(0, P)
    inside_P = place_P < count
    total_P = tl.load(sums + place_P, mask=inside_P, other=0)
    weight_P = tl.load(weight + place_P, mask=inside_P, other=0)
    # Most edges of a window are not in the snapshot that joins or leaves: no root is read then.
    is_there_P = inside_P & (weight_P != 0)
    low, high = tl.load(rows + tile), tl.load(rows + tile + 1)
    none_P = tl.zeros([P], dtype=tl.int32)
    row_P, _ = _search(
        indptr,
        none_P + low,
        none_P + high,
        place_P + 1,
        indptr,
        none_P,
        none_P,
        place_P,
        high - low,
    )
    column_P = tl.load(index + place_P, mask=is_there_P, other=0)
    root_P = tl.load(roots + row_P - 1, mask=is_there_P, other=0)
    other_P = tl.load(roots + column_P, mask=is_there_P, other=0)
    value_P = weight_P.to(tl.float64) * (root_P * other_P)
    value_P = value_P.to(tl.float32).to(tl.float64)
    total_P = total_P + value_P if ADDS else total_P - value_P
    tl.store(out + place_P, total_P, mask=inside_P)
    if HAS_MEAN:
        tl.store(mean + place_P, (total_P / steps).to(tl.float32), mask=inside_P)

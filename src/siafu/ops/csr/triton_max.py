"""Maxima over compressed rows for CUDA, written in Triton, and what these kernels share with sums.

Shapes: M destination rows, C source columns, E edges, D width, S edges per step, T columns per
tile, B rows looked through for hubs.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import Edges

jit: Callable[[Any], Any] = triton.jit

LONG_ROW = 1024
"""Edges above which a row gets HUB_WARPS warps: with one, it would outlast the launch."""

HUB_WARPS = 8
HUB_SEARCH_ROWS = 256
"""B. The rows of a search lie far apart, so that hubs side by side, as after sorting by degree,
fall to different programs."""

WIDEST_TILE = 128
"""128 float32 are one 16-byte load for each lane of a warp. Rows vary fastest over the grid, so a
wide x is read in passes over narrower ones, more of which stay in the level-2 cache."""

TILE_ELEMENTS = 1024
"""S x T of long rows: 8 loads of 16 bytes in flight for each lane."""

NONE = tl.constexpr(2**31 - 1)


def max_into(edges: Edges, x_CD: Tensor, out_MD: Tensor, edge_MD: Tensor) -> None:
    """See `contract.CsrKernels`."""
    _launch(_max_rows, _max_hubs, (edges.indptr, edges.index, x_CD, edge_MD, out_MD))


def _launch(rows: Any, hubs: Any, tensors: tuple[Tensor | None, ...], **options: bool) -> None:
    out_MD = tensors[-1]
    assert out_MD is not None, "the output comes last"
    if out_MD.numel() == 0:
        return
    num_rows, width = out_MD.shape
    tile = min(WIDEST_TILE, max(16, triton.next_power_of_2(width)))
    step, tiles = TILE_ELEMENTS // tile, triton.cdiv(width, tile)
    searches = triton.cdiv(num_rows, HUB_SEARCH_ROWS)
    shape = {"width": width, "long_row": LONG_ROW, "T": tile, **options}
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(out_MD):
        rows[(num_rows, tiles)](*tensors, S=step, num_warps=1, **shape)
        if hubs is None:
            return
        hubs[(searches, tiles)](
            *tensors,
            num_rows,
            searches,
            B=HUB_SEARCH_ROWS,
            S=step * HUB_WARPS,
            num_warps=HUB_WARPS,
            **shape,
        )


@jit
def longest_row(
    indptr: tl.tensor, num_rows: tl.tensor, searches: tl.tensor, B: tl.constexpr
) -> tl.tensor:
    """Return the length of the longest row of those this program searches."""
    row_B = tl.program_id(0).to(tl.int64) + tl.arange(0, B) * searches
    return tl.max(row_length(indptr, row_B, num_rows), axis=0)


@jit
def row_length(indptr: tl.tensor, row: tl.tensor, num_rows: tl.tensor) -> tl.tensor:
    """Return the number of edges of one or several rows; 0 beyond the last row."""
    start = tl.load(indptr + row, mask=row < num_rows, other=0)
    return tl.load(indptr + row + 1, mask=row < num_rows, other=0) - start


@jit
def _max_rows(
    indptr: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    edge: tl.tensor,
    out: tl.tensor,
    width: tl.constexpr,
    long_row: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    if tl.load(indptr + row + 1) - tl.load(indptr + row) <= long_row:
        _max_row(row, indptr, index, x, edge, out, width, S, T)


@jit
def _max_hubs(
    indptr: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    edge: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    searches: tl.tensor,
    width: tl.constexpr,
    long_row: tl.constexpr,
    B: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> None:
    if longest_row(indptr, num_rows, searches, B) > long_row:
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * searches
            if row_length(indptr, row, num_rows) > long_row:
                _max_row(row, indptr, index, x, edge, out, width, S, T)


@jit
def _max_row(
    row: tl.tensor,
    indptr: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    edge: tl.tensor,
    out: tl.tensor,
    width: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> None:
    start, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    column_T = tl.program_id(1) * T + tl.arange(0, T)
    inside_T = column_T < width
    step_S = tl.arange(0, S)
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    best_ST = tl.full([S, T], float("-inf"), dtype=wide)
    place_ST = tl.full([S, T], NONE, dtype=tl.int32)  # counted from the row's first edge
    # Each of S lanes keeps the best of its own edges; the first NaN stays, and so does the first of
    # equal values.
    for first in range(start, end, S):
        live_S = first + step_S < end
        j_S = tl.load(index + first + step_S, mask=live_S, other=0).to(tl.int64)
        mask_ST = live_S[:, None] & inside_T[None, :]
        address_ST = x + j_S[:, None] * width + column_T[None, :]
        value_ST = tl.load(address_ST, mask=mask_ST, other=0.0).to(wide)
        first_nan_ST = (value_ST != value_ST) & (best_ST == best_ST)
        better_ST = (value_ST > best_ST) | first_nan_ST | (place_ST == NONE)
        better_ST = better_ST & live_S[:, None]
        best_ST = tl.where(better_ST, value_ST, best_ST)
        here_S = (first - start).to(tl.int32) + step_S
        place_ST = tl.where(better_ST, here_S[:, None], place_ST)
    # Over lanes: NaN before all else, then the largest; of equal ones the earliest edge.
    nan_ST = best_ST != best_ST
    has_nan_T = tl.max(nan_ST.to(tl.int32), axis=0) > 0
    best_T = tl.max(tl.where(nan_ST, float("-inf"), best_ST), axis=0)
    chosen_ST = tl.where(has_nan_T[None, :], nan_ST, best_ST == best_T[None, :])
    place_T = tl.min(tl.where(chosen_ST, place_ST, NONE), axis=0)
    best_T = tl.where(has_nan_T, float("nan"), best_T)
    at_T = row * width + column_T
    tl.store(out + at_T, tl.where(end > start, best_T, 0.0), mask=inside_T)
    edge_T = tl.where(end > start, start + place_T, -1)
    tl.store(edge + at_T, edge_T.to(edge.dtype.element_ty), mask=inside_T)

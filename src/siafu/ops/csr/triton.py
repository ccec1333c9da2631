"""Compressed-row kernels for CUDA, written in Triton.

Shapes: M destination rows, C source columns, E edges, D width, S or L edges per step, T columns per
tile, R rows per program, H long rows, P pieces of them, B rows looked through for hubs. A program
owns rows and a tile of columns, so there are no atomics and results repeat.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.contract import NO_LONG_ROWS, Edges, LongRows
from siafu.ops.csr import reference, triton_max
from siafu.ops.csr.triton_max import (
    HUB_SEARCH_ROWS,
    HUB_WARPS,
    TILE_ELEMENTS,
    WIDEST_TILE,
    jit,
    longest_row,
    row_length,
)

DTYPES = reference.DTYPES | {torch.bfloat16, torch.float16}

# sorting is what a GPU does well, and these happen once a matrix or once per layer
transpose = reference.transpose
transpose_order = reference.transpose_order
max_grad_into = reference.max_grad_into
max_into = triton_max.max_into

LONG_ROW = triton_max.LONG_ROW
PIECE_EDGES = 256
"""Most edges of a piece; shorter rows are not cut, where long ones are known."""

GROUP_ELEMENTS, GROUP_STEPS = 64, 4
"""R x T where rows are narrow, and S: rows of a program wait for the longest among them, so few are
better than as many as would fill every lane (measured at 8, 32 and 128 columns)."""


def cut_rows(indptr: Tensor) -> LongRows:
    """See `contract.CsrKernels`. The host waits for the device."""
    length_M = indptr.diff()
    row_H = (length_M > PIECE_EDGES).nonzero()[:, 0]
    if not len(row_H):
        return NO_LONG_ROWS
    start_H, length_H = indptr[row_H], length_M[row_H]
    pieces_H = (length_H + PIECE_EDGES - 1) // PIECE_EDGES
    first_H = torch.zeros(len(row_H) + 1, dtype=torch.int64, device=indptr.device)
    first_H[1:] = pieces_H.cumsum(0)
    number_P = torch.arange(int(first_H[-1]), device=indptr.device)
    nth_P = number_P - first_H[:-1].repeat_interleave(pieces_H)
    start_P = start_H.repeat_interleave(pieces_H) + nth_P * PIECE_EDGES
    end_P = torch.minimum(start_P + PIECE_EDGES, (start_H + length_H).repeat_interleave(pieces_H))
    return LongRows(row_H, first_H, torch.stack([start_P, end_P], dim=1))


def sum_into(
    edges: Edges,
    x_CD: Tensor,
    out_MD: Tensor,
    *,
    accumulate: bool,
    long_rows: LongRows | None = None,
    own_K: Tensor | None = None,
) -> None:
    """See `contract.CsrKernels`.

    One launch sums short rows, several per program, and pieces of longer ones; a second adds the
    pieces up, where there are any. Where nobody knows the long rows, the second searches for them.
    """
    if out_MD.numel() == 0:
        return
    num_rows, width = out_MD.shape
    tile = min(WIDEST_TILE, max(4, triton.next_power_of_2(width)))
    rows, tiles = max(1, GROUP_ELEMENTS // tile), triton.cdiv(width, tile)
    shape = {"accumulate": accumulate, "width": width, "T": tile}
    own = (None, 0) if own_K is None or not len(own_K) else (own_K, len(own_K))
    bounds_P = None if long_rows is None else long_rows.bounds_P2
    pieces = 0 if bounds_P is None else len(bounds_P)
    part_PD = out_MD if bounds_P is None else _parts(x_CD, pieces, width)
    # kernels start on the current device, which need not be the tensors'
    with torch.cuda.device_of(out_MD):
        _sum_rows[(pieces + triton.cdiv(num_rows, rows), tiles)](
            *edges,
            x_CD,
            out_MD,
            bounds_P,
            part_PD,
            num_rows,
            pieces,
            *own,
            long_row=PIECE_EDGES if pieces else LONG_ROW,
            R=rows,
            S=GROUP_STEPS,
            L=TILE_ELEMENTS // tile,
            num_warps=1,
            **shape,
        )
        _sum_long(edges, x_CD, out_MD, part_PD, long_rows, own, shape)


def _sum_long(
    edges: Edges,
    x_CD: Tensor,
    out_MD: Tensor,
    part_PD: Tensor,
    long_rows: LongRows | None,
    own: tuple[Tensor | None, int],
    shape: dict[str, int],
) -> None:
    """Sum the rows that the first launch has left: by their pieces, or by a search for them."""
    (num_rows, width), tile = out_MD.shape, shape["T"]
    tiles = triton.cdiv(width, tile)
    if long_rows is None:
        searches = triton.cdiv(num_rows, HUB_SEARCH_ROWS)
        _sum_hubs[(searches, tiles)](
            *edges,
            x_CD,
            out_MD,
            num_rows,
            searches,
            *own,
            long_row=LONG_ROW,
            B=HUB_SEARCH_ROWS,
            S=TILE_ELEMENTS // tile * HUB_WARPS,
            num_warps=HUB_WARPS,
            **shape,
        )
    elif long_rows.bounds_P2 is not None and len(long_rows.bounds_P2):
        row_H, first_H = long_rows.row_H, long_rows.first_H
        assert row_H is not None, "pieces are of rows"
        _sum_pieces[(len(row_H), tiles)](
            row_H,
            first_H,
            part_PD,
            edges.row_scale_M,
            x_CD,
            out_MD,
            *own,
            S=8,
            num_warps=1,
            **shape,
        )


def _parts(x_CD: Tensor, pieces: int, width: int) -> Tensor:
    wide = torch.float64 if x_CD.dtype == torch.float64 else torch.float32
    return torch.empty(pieces, width, dtype=wide, device=x_CD.device)


def max_fold_into(
    edges: Edges,
    number_E: Tensor,
    rows_M: Tensor | None,
    x_CD: Tensor,
    value_MD: Tensor,
    edge_MD: Tensor,
) -> None:
    """See `contract.CsrKernels`."""
    reference.fold_by(max_into, edges, number_E, rows_M, x_CD, (value_MD, edge_MD))


@jit
def _sum_rows(
    indptr: tl.tensor,
    index: tl.tensor,
    weight: tl.tensor,
    row_scale: tl.tensor,
    col_scale: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    bounds: tl.tensor,
    parts: tl.tensor,
    num_rows: tl.tensor,
    pieces: tl.tensor,
    own: tl.tensor,
    num_own: tl.tensor,
    accumulate: tl.constexpr,
    width: tl.constexpr,
    long_row: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    L: tl.constexpr,
    T: tl.constexpr,
) -> None:
    """The first programs sum pieces of long rows, which take longest; the others R rows each."""
    program = tl.program_id(0).to(tl.int64)
    column_T = tl.program_id(1) * T + tl.arange(0, T)
    if bounds is None:
        _sum_group(
            program,
            indptr,
            index,
            weight,
            row_scale,
            col_scale,
            x,
            out,
            column_T,
            num_rows,
            own,
            num_own,
            accumulate,
            width,
            long_row,
            R,
            S,
            T,
        )
    elif program < pieces:
        start, end = tl.load(bounds + 2 * program), tl.load(bounds + 2 * program + 1)
        total_T = _sum_span(start, end, index, weight, col_scale, x, column_T, width, L, T)
        tl.store(parts + program * width + column_T, total_T, mask=column_T < width)
    else:
        _sum_group(
            program - pieces,
            indptr,
            index,
            weight,
            row_scale,
            col_scale,
            x,
            out,
            column_T,
            num_rows,
            own,
            num_own,
            accumulate,
            width,
            long_row,
            R,
            S,
            T,
        )


@jit
def _sum_group(  # noqa: PLR0915 - a kernel is one piece
    group: tl.tensor,
    indptr: tl.tensor,
    index: tl.tensor,
    weight: tl.tensor,
    row_scale: tl.tensor,
    col_scale: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    column_T: tl.tensor,
    num_rows: tl.tensor,
    own: tl.tensor,
    num_own: tl.tensor,
    accumulate: tl.constexpr,
    width: tl.constexpr,
    long_row: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> None:
    """Write the sums of R rows, but of long ones."""
    inside_T = column_T < width
    row_R = group * R + tl.arange(0, R)
    here_R = row_R < num_rows
    start_R = tl.load(indptr + row_R, mask=here_R, other=0)
    end_R = tl.load(indptr + row_R + 1, mask=here_R, other=0)
    here_R = here_R & (end_R - start_R <= long_row)
    end_R = tl.where(here_R, end_R, start_R)
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    # Steps come first, so that lanes lie along columns, then rows: one row's sum stays in a lane.
    edge_SR = start_R[None, :] + tl.arange(0, S)[:, None]
    live_SR = edge_SR < end_R[None, :]
    total_SRT = tl.zeros([S, R, T], dtype=wide)
    j_SR = tl.load(index + edge_SR, mask=live_SR, other=0).to(tl.int64)
    for _ in range(0, tl.max(end_R - start_R, axis=0), S):
        # the next step's columns are on their way while this step's rows are read
        soon_SR = edge_SR + S < end_R[None, :]
        next_SR = tl.load(index + edge_SR + S, mask=soon_SR, other=0).to(tl.int64)
        address_SRT = x + j_SR[:, :, None] * width + column_T[None, None, :]
        mask_SRT = live_SR[:, :, None] & inside_T[None, None, :]
        message_SRT = tl.load(address_SRT, mask=mask_SRT, other=0.0).to(wide)
        if weight is not None:
            factor_SR = tl.load(weight + edge_SR, mask=live_SR, other=0.0).to(wide)
            message_SRT *= factor_SR[:, :, None]
        if col_scale is not None:
            factor_SR = tl.load(col_scale + j_SR, mask=live_SR, other=0.0).to(wide)
            message_SRT *= factor_SR[:, :, None]
        total_SRT += message_SRT
        edge_SR += S
        live_SR, j_SR = soon_SR, next_SR
    total_RT = tl.sum(total_SRT, axis=0)
    if row_scale is not None:
        # an empty row's scale may be 1 / 0, and 0 times that is NaN
        scale_R = tl.load(row_scale + row_R, mask=end_R > start_R, other=0.0).to(wide)
        total_RT *= scale_R[:, None]
    place_RT = out + row_R[:, None] * width + column_T[None, :]
    mask_RT = here_R[:, None] & inside_T[None, :]
    if own is not None:
        owned_R = here_R & (row_R < num_own)
        factor_R = tl.load(own + row_R, mask=owned_R, other=0.0).to(wide)
        mine_RT = x + row_R[:, None] * width + column_T[None, :]
        mine_RT = tl.load(mine_RT, mask=owned_R[:, None] & inside_T[None, :], other=0.0).to(wide)
        total_RT += factor_R[:, None] * mine_RT
    if accumulate:
        total_RT += tl.load(place_RT, mask=mask_RT, other=0.0).to(wide)
    tl.store(place_RT, total_RT, mask=mask_RT)


@jit
def _sum_pieces(
    rows: tl.tensor,
    firsts: tl.tensor,
    parts: tl.tensor,
    row_scale: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    own: tl.tensor,
    num_own: tl.tensor,
    accumulate: tl.constexpr,
    width: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> None:
    """Add up the pieces of a long row, in their order."""
    hub = tl.program_id(0)
    row, first, last = tl.load(rows + hub), tl.load(firsts + hub), tl.load(firsts + hub + 1)
    column_T = tl.program_id(1) * T + tl.arange(0, T)
    inside_T = column_T < width
    total_ST = tl.zeros([S, T], dtype=parts.dtype.element_ty)
    for piece in range(first, last, S):
        piece_S = piece + tl.arange(0, S)
        mask_ST = (piece_S < last)[:, None] & inside_T[None, :]
        total_ST += tl.load(
            parts + piece_S[:, None] * width + column_T[None, :], mask=mask_ST, other=0.0
        )
    total_T = tl.sum(total_ST, axis=0)
    if row_scale is not None:
        total_T *= tl.load(row_scale + row).to(total_T.dtype)
    if own is not None:
        total_T = _with_own(total_T, own, num_own, x, row, column_T, width)
    place_T = out + row * width + column_T
    if accumulate:
        total_T += tl.load(place_T, mask=inside_T, other=0.0).to(total_T.dtype)
    tl.store(place_T, total_T, mask=inside_T)


@jit
def _sum_hubs(
    indptr: tl.tensor,
    index: tl.tensor,
    weight: tl.tensor,
    row_scale: tl.tensor,
    col_scale: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    searches: tl.tensor,
    own: tl.tensor,
    num_own: tl.tensor,
    accumulate: tl.constexpr,
    width: tl.constexpr,
    long_row: tl.constexpr,
    B: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> None:
    if longest_row(indptr, num_rows, searches, B) > long_row:
        column_T = tl.program_id(1) * T + tl.arange(0, T)
        inside_T = column_T < width
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * searches
            if row_length(indptr, row, num_rows) > long_row:
                start, end = tl.load(indptr + row), tl.load(indptr + row + 1)
                total_T = _sum_span(start, end, index, weight, col_scale, x, column_T, width, S, T)
                if row_scale is not None:
                    total_T *= tl.load(row_scale + row).to(total_T.dtype)
                if own is not None:
                    total_T = _with_own(total_T, own, num_own, x, row, column_T, width)
                place_T = out + row * width + column_T
                if accumulate:
                    total_T += tl.load(place_T, mask=inside_T, other=0.0).to(total_T.dtype)
                tl.store(place_T, total_T, mask=inside_T)


@jit
def _with_own(
    total_T: tl.tensor,
    own: tl.tensor,
    num_own: tl.tensor,
    x: tl.tensor,
    row: tl.tensor,
    column_T: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """Return a row's sum with own[row] * x[row], where it has one."""
    factor = tl.load(own + tl.minimum(row, num_own - 1)).to(total_T.dtype)
    mask_T = (column_T < width) & (column_T * 0 + row < num_own)
    mine_T = tl.load(x + row * width + column_T, mask=mask_T, other=0.0)
    return total_T + factor * mine_T.to(total_T.dtype)


@jit
def _sum_span(
    start: tl.tensor,
    end: tl.tensor,
    index: tl.tensor,
    weight: tl.tensor,
    col_scale: tl.tensor,
    x: tl.tensor,
    column_T: tl.tensor,
    width: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
) -> tl.tensor:
    """Return the sum over the edges from `start` to `end`, S of them at a time."""
    step_S, inside_T = tl.arange(0, S), column_T < width
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    total_ST = tl.zeros([S, T], dtype=wide)
    j_S = tl.load(index + start + step_S, mask=start + step_S < end, other=0).to(tl.int64)
    for first in range(start, end, S):
        edge_S = first + step_S
        live_S = edge_S < end
        next_S = tl.load(index + edge_S + S, mask=edge_S + S < end, other=0).to(tl.int64)
        address_ST = x + j_S[:, None] * width + column_T[None, :]
        mask_ST = live_S[:, None] & inside_T[None, :]
        message_ST = tl.load(address_ST, mask=mask_ST, other=0.0).to(wide)
        if weight is not None:
            message_ST *= tl.load(weight + edge_S, mask=live_S, other=0.0).to(wide)[:, None]
        if col_scale is not None:
            message_ST *= tl.load(col_scale + j_S, mask=live_S, other=0.0).to(wide)[:, None]
        total_ST += message_ST
        j_S = next_S
    # One sum over the lanes at the end.
    return tl.sum(total_ST, axis=0)

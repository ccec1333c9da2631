"""GATv2 and dot-product attention for CUDA: the backward pass, for source columns and for rows.

Names are those of `triton_kinds`.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, G heads of a
program, W columns of a tile, S edges a step, B rows of a program.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

import triton.language as tl

from siafu.ops.attention.triton_kinds import near_grad, own_heads, score_of, with_edge
from siafu.ops.attention.triton_rows import (
    any_mine,
    edges_of,
    exp_live,
    fold,
    gather,
    jit,
    keep_or_drop,
    keyed,
    numbers,
    scalars,
    steepness,
)


@keyed
def grad_columns(
    indptr: tl.tensor,
    index: tl.tensor,
    order: tl.tensor,
    x: tl.tensor,
    value: tl.tensor,
    own: tl.tensor,
    att: tl.tensor,
    edge: tl.tensor,
    lse: tl.tensor,
    grad: tl.tensor,
    delta: tl.tensor,
    grad_x: tl.tensor,
    grad_value: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    num_rows: tl.tensor,
    factor: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    HUBS: tl.constexpr,
    S: tl.constexpr,
) -> None:
    """Gather for sources, the rows of the transpose: queries and gradients of who reads them."""
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_GW = (head_G < H)[:, None] & (column_W < D)[None, :]
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        att_GW = own_heads(att, head_G[:, None] * D + column_W[None, :], in_GW, wide)
        for b in range(B):
            j = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, j, num_rows, HUBS)
            if end > start:
                at_GW = (j * H + head_G)[:, None] * D + column_W[None, :]
                x_GW, value_GW = (
                    own_heads(x, at_GW, in_GW, wide),
                    own_heads(value, at_GW, in_GW, wide),
                )
                near_GW, kept_GW = _grad_column(
                    index, order, own, edge, lse, grad, delta, ids_C, ids_M, key, j, start, end,
                    x_GW, value_GW, att_GW, head_G, column_W, factor, threshold, scale,
                    V2, H, D, G, W, S, wide,
                )  # fmt: skip
                fold(grad_x + at_GW, in_GW, 1.0, near_GW)
                if not V2:
                    fold(grad_value + at_GW, in_GW, 1.0, kept_GW)


@jit
def _grad_column(
    index: tl.tensor,
    order: tl.tensor,
    own: tl.tensor,
    edge: tl.tensor,
    lse: tl.tensor,
    grad: tl.tensor,
    delta: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    j: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    x_GW: tl.tensor,
    value_GW: tl.tensor,
    att_GW: tl.tensor,
    head_G: tl.tensor,
    column_W: tl.tensor,
    factor: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    S: tl.constexpr,
    wide: tl.constexpr,
) -> tl.tensor:
    """Return the gradients of one source's key and value; in GATv2 the first is of both."""
    near_out_SGW, kept_out_SGW = tl.zeros([S, G, W], wide), tl.zeros([S, G, W], wide)
    zero_SGW = tl.zeros([S, G, W], wide)
    for first in range(start, end, S):
        edge_S = (first + tl.arange(0, S)).to(tl.int64)
        live_S = edge_S < end
        live_SG = live_S[:, None] & (head_G < H)[None, :]
        i_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
        number_S = numbers(order, edge_S, live_S)
        row_SGW = gather(own, i_S, head_G, column_W, live_S, H, D).to(wide)
        grad_SGW = gather(grad, i_S, head_G, column_W, live_S, H, D).to(wide)
        extra_SGW = with_edge(zero_SGW, edge, number_S, head_G, column_W, live_S, H, D)
        near_SGW = x_GW[None, :, :] + extra_SGW
        lse_SG = scalars(lse, i_S, head_G, live_SG, H).to(wide)
        part_SG = exp_live(score_of(near_SGW, row_SGW, att_GW, factor, V2) - lse_SG, live_SG)
        kept_SG = keep_or_drop(part_SG, ids_C, ids_M, key, j, i_S, head_G, threshold, scale)
        value_SGW = value_GW[None, :, :] if V2 else value_GW[None, :, :] + extra_SGW
        dot_SG = tl.sum(grad_SGW * value_SGW, axis=2)
        delta_SG = scalars(delta, i_S, head_G, live_SG, H).to(wide)
        slip_SG = kept_SG * dot_SG - part_SG * delta_SG
        near_out_SGW += near_grad(slip_SG, near_SGW, row_SGW, att_GW, factor, V2)
        if V2:
            near_out_SGW += kept_SG[:, :, None] * grad_SGW
        else:
            kept_out_SGW += kept_SG[:, :, None] * grad_SGW
    return tl.sum(near_out_SGW, axis=0), tl.sum(kept_out_SGW, axis=0)


@keyed
def grad_rows(
    indptr: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    value: tl.tensor,
    own: tl.tensor,
    att: tl.tensor,
    edge: tl.tensor,
    lse: tl.tensor,
    grad: tl.tensor,
    delta: tl.tensor,
    grad_own: tl.tensor,
    grad_edge: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    parts: tl.tensor,
    num_rows: tl.tensor,
    factor: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    HUBS: tl.constexpr,
    S: tl.constexpr,
) -> None:
    """Gather for rows; what they give to `att` goes to the program's place in `parts`."""
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_GW = (head_G < H)[:, None] & (column_W < D)[None, :]
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        place_GW = head_G[:, None] * D + column_W[None, :]
        att_GW, att_out_GW = own_heads(att, place_GW, in_GW, wide), tl.zeros([G, W], dtype=wide)
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, row, num_rows, HUBS)
            if end > start:
                at_GW = row * (H * D) + place_GW
                row_out_GW, added_GW = _grad_row(
                    index, x, value, edge, lse, delta, grad_edge, ids_C, ids_M, key,
                    row, start, end, own_heads(own, at_GW, in_GW, wide),
                    own_heads(grad, at_GW, in_GW, wide), att_GW, head_G, column_W,
                    factor, threshold, scale, V2, H, D, G, W, S, wide,
                )  # fmt: skip
                fold(grad_own + at_GW, in_GW, 1.0, row_out_GW)
                att_out_GW += added_GW
        if V2:
            tl.store(parts + tl.program_id(0) * (H * D) + place_GW, att_out_GW, mask=in_GW)


@jit
def _grad_row(
    index: tl.tensor,
    x: tl.tensor,
    value: tl.tensor,
    edge: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    grad_edge: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    own_GW: tl.tensor,
    grad_GW: tl.tensor,
    att_GW: tl.tensor,
    head_G: tl.tensor,
    column_W: tl.tensor,
    factor: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    S: tl.constexpr,
    wide: tl.constexpr,
) -> tl.tensor:
    """Return what one row's edges give to its own tensor and to `att`."""
    lse_G = tl.load(lse + row * H + head_G, mask=head_G < H, other=0.0).to(wide)
    delta_G = tl.load(delta + row * H + head_G, mask=head_G < H, other=0.0).to(wide)
    own_out_SGW, att_out_SGW = tl.zeros([S, G, W], wide), tl.zeros([S, G, W], wide)
    for first in range(start, end, S):
        edge_S = (first + tl.arange(0, S)).to(tl.int64)
        live_S = edge_S < end
        j_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
        x_SGW = gather(x, j_S, head_G, column_W, live_S, H, D).to(wide)
        near_SGW = with_edge(x_SGW, edge, edge_S, head_G, column_W, live_S, H, D)
        score_SG = score_of(near_SGW, own_GW[None, :, :], att_GW, factor, V2)
        part_SG = exp_live(score_SG - lse_G[None, :], live_S[:, None] & (head_G < H)[None, :])
        kept_SG = keep_or_drop(part_SG, ids_C, ids_M, key, j_S, row, head_G, threshold, scale)
        if not V2:
            x_SGW = gather(value, j_S, head_G, column_W, live_S, H, D).to(wide)
            x_SGW = with_edge(x_SGW, edge, edge_S, head_G, column_W, live_S, H, D)
        dot_SG = tl.sum(x_SGW * grad_GW[None, :, :], axis=2)
        slip_SG = kept_SG * dot_SG - part_SG * delta_G[None, :]
        made_SGW = near_grad(slip_SG, near_SGW, own_GW[None, :, :], att_GW, factor, V2)
        if V2:
            own_out_SGW += made_SGW
            att_out_SGW += _att_grad(slip_SG, near_SGW + own_GW[None, :, :], factor)
        else:
            # scores are linear in the query as they are in the key
            own_out_SGW += near_grad(slip_SG, near_SGW, near_SGW, att_GW, factor, V2)
            made_SGW += kept_SG[:, :, None] * grad_GW[None, :, :]
        if grad_edge is not None:
            _store_edges(grad_edge, made_SGW, edge_S, head_G, column_W, live_S, H, D)
    return tl.sum(own_out_SGW, axis=0), tl.sum(att_out_SGW, axis=0)


@jit
def _att_grad(slip_SG: tl.tensor, sum_SGW: tl.tensor, factor: tl.constexpr) -> tl.tensor:
    return slip_SG[:, :, None] * (sum_SGW * steepness(sum_SGW, factor))


@jit
def _store_edges(
    place: tl.tensor,
    made_SGW: tl.tensor,
    edge_S: tl.tensor,
    head_G: tl.tensor,
    column_W: tl.tensor,
    live_S: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
) -> None:
    in_GW = (head_G < H)[:, None] & (column_W < D)[None, :]
    at_SGW = edge_S[:, None, None] * (H * D) + (head_G[:, None] * D + column_W[None, :])[None, :, :]
    tl.store(place + at_SGW, made_SGW, mask=live_S[:, None, None] & in_GW[None, :, :])

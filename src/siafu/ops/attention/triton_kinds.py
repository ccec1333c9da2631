"""GATv2 and dot-product attention for CUDA: scores of edges, and the forward pass.

V2 tells the kinds apart; `near` is an edge's key (x_j, or key_j, with the edge's own vector), `row`
its query (x_i, or query_i).

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, G heads of a
program, W columns of a tile, S edges a step, B rows of a program.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

import triton.language as tl

from siafu.ops.attention.triton_rows import (
    any_mine,
    edges_of,
    exp_live,
    fold,
    gather,
    jit,
    keep_or_drop,
    keyed,
    steepness,
)


@jit
def score_of(
    near_SGW: tl.tensor,
    row_SGW: tl.tensor,
    att_GW: tl.tensor,
    factor: tl.constexpr,
    V2: tl.constexpr,
) -> tl.tensor:
    """Return scores, [S, G]."""
    if V2:
        sum_SGW = near_SGW + row_SGW
        score_SG = tl.sum(sum_SGW * steepness(sum_SGW, factor) * att_GW[None, :, :], axis=2)
    else:
        dot_SG = tl.sum(near_SGW * row_SGW, axis=2)
        # a bare constant would be a float32, too coarse for float64
        score_SG = dot_SG * tl.full(dot_SG.shape, factor, dtype=dot_SG.dtype)
    return score_SG


@jit
def near_grad(
    slip_SG: tl.tensor,
    near_SGW: tl.tensor,
    row_SGW: tl.tensor,
    att_GW: tl.tensor,
    factor: tl.constexpr,
    V2: tl.constexpr,
) -> tl.tensor:
    """Return what a score's gradient gives to the edge's key, [S, G, W]."""
    if V2:
        grad_SGW = slip_SG[:, :, None] * steepness(near_SGW + row_SGW, factor) * att_GW[None, :, :]
    else:
        scale_SG = tl.full(slip_SG.shape, factor, dtype=slip_SG.dtype)
        grad_SGW = (slip_SG * scale_SG)[:, :, None] * row_SGW
    return grad_SGW


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


@keyed
def fold_rows(
    indptr: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    value: tl.tensor,
    own: tl.tensor,
    att: tl.tensor,
    edge: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
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
    """Fold a block into the state, a row at a time."""
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_G, in_GW = head_G < H, (head_G < H)[:, None] & (column_W < D)[None, :]
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        att_GW = own_heads(att, head_G[:, None] * D + column_W[None, :], in_GW, wide)
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, row, num_rows, HUBS)
            if end > start:
                at_G = row * H + head_G
                at_GW = at_G[:, None] * D + column_W[None, :]
                own_GW = own_heads(own, at_GW, in_GW, wide)
                old_G = tl.load(top + at_G, mask=in_G, other=0.0).to(wide)
                best_G, weight_G, total_GW = _fold_row(
                    index, x, value, edge, ids_C, ids_M, key, row, start, end, own_GW, att_GW,
                    old_G, head_G, column_W, factor, threshold, scale, V2, H, D, G, W, S, wide,
                )  # fmt: skip
                shrink_G = tl.exp(old_G - tl.where(best_G == float("-inf"), 0.0, best_G))
                fold(weight + at_G, in_G, shrink_G, weight_G)
                fold(total + at_GW, in_GW, shrink_G[:, None], total_GW)
                tl.store(top + at_G, best_G, mask=in_G)


@jit
def _fold_row(
    index: tl.tensor,
    x: tl.tensor,
    value: tl.tensor,
    edge: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    own_GW: tl.tensor,
    att_GW: tl.tensor,
    best_G: tl.tensor,
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
    """Return the largest score, and the sums of exp(score - it), of one row's edges."""
    weight_SG, total_SGW = tl.zeros([S, G], dtype=wide), tl.zeros([S, G, W], dtype=wide)
    for first in range(start, end, S):
        edge_S = (first + tl.arange(0, S)).to(tl.int64)
        live_S = edge_S < end
        live_SG = live_S[:, None] & (head_G < H)[None, :]
        j_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
        x_SGW = gather(x, j_S, head_G, column_W, live_S, H, D).to(wide)
        near_SGW = with_edge(x_SGW, edge, edge_S, head_G, column_W, live_S, H, D)
        score_SG = score_of(near_SGW, own_GW[None, :, :], att_GW, factor, V2)
        # the maximum is found on the way: a pass of its own would gather every row twice
        new_G = tl.maximum(best_G, tl.max(tl.where(live_SG, score_SG, float("-inf")), axis=0))
        shift_G = tl.where(new_G == float("-inf"), 0.0, new_G)
        shrink_G = tl.exp(best_G - shift_G)
        part_SG = exp_live(score_SG - shift_G[None, :], live_SG)
        weight_SG = weight_SG * shrink_G[None, :] + part_SG
        kept_SG = keep_or_drop(part_SG, ids_C, ids_M, key, j_S, row, head_G, threshold, scale)
        if not V2:
            x_SGW = gather(value, j_S, head_G, column_W, live_S, H, D).to(wide)
            x_SGW = with_edge(x_SGW, edge, edge_S, head_G, column_W, live_S, H, D)
        total_SGW = total_SGW * shrink_G[None, :, None] + kept_SG[:, :, None] * x_SGW
        best_G = new_G
    return best_G, tl.sum(weight_SG, axis=0), tl.sum(total_SGW, axis=0)

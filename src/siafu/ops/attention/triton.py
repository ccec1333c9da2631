"""Attention for CUDA, written in Triton: one forward kernel and two backward, for every kind.

KIND is the value of a `contract.Kind`, known when a kernel is compiled. `x` is what scores read of
a source, `own` what they read of a row: numbers per head in GAT, vectors otherwise.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, G heads of a
program, W columns of a tile, S edges per step, B rows of a program. A program owns rows (or source
columns) and some heads: no atomics, and results repeat. The price is that backward gathers twice,
for columns and for rows.
"""
# ruff: noqa: PLR0913, PLR0915, C901 - kernel arguments are flat, and loops are written out

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from siafu.ops.attention.triton_tiles import (
    HUB_SEARCH_ROWS,
    any_mine,
    drop_options,
    edges_of,
    exp_live,
    fold,
    gather,
    jit,
    keep_or_drop,
    keyed,
    launch,
    numbers,
    own_heads,
    scalars,
    steepness,
    with_edge,
)
from siafu.ops.contract import AttentionBlock, AttentionGrads, Kind, RowGrads, Softmax, Transposed
from siafu.ops.csr import reference as csr_reference

DTYPES = csr_reference.DTYPES | {torch.bfloat16, torch.float16}

ROWS_A_PROGRAM = 16
"""Rows whose part of the gradient of `att` is summed before it is written."""


def fold_into(block: AttentionBlock, state: Softmax) -> None:
    """See `contract.AttentionKernels`."""
    inputs, ids_and_key, options = _arguments(block)
    edges, num_rows = (block.indptr, block.index), len(block.rows[0])
    launch(_fold_rows, num_rows, _shape(block), *edges, *inputs, *state, *ids_and_key, **options)


def grad_into(
    block: AttentionBlock, back: Transposed, rows: RowGrads, grads: AttentionGrads
) -> None:
    """See `contract.AttentionKernels`."""
    inputs, ids_and_key, options = _arguments(block)
    shape, known = _shape(block), (*inputs, *rows, *_scored_and_summed(block, grads.sources))
    launch(_grad_columns, len(block.sources[0]), shape, *back, *known, *ids_and_key, **options)
    edges, outputs = (block.indptr, block.index), (grads.rows[0], grads.edge)
    known, parts = (*inputs, *rows, *outputs), _parts(block)
    options |= {"rows": ROWS_A_PROGRAM if grads.shared else 1, "parts": parts}
    launch(_grad_rows, len(block.rows[0]), shape, *edges, *known, *ids_and_key, **options)
    for total in grads.shared:
        for part in parts:
            if part is not None:
                total.add_(part.sum(dim=0))


def _arguments(block: AttentionBlock) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
    """Return what every kernel takes: the block's tensors, ids and key of draws, constants."""
    ids_and_key, options = drop_options(block.drop)
    options |= {"factor": block.factor, "KIND": block.kind.value}
    att = block.shared[0] if block.shared else None
    scored = _scored_and_summed(block, block.sources)
    return (*scored, block.rows[0], att, block.edge), ids_and_key, options


def _scored_and_summed(block: AttentionBlock, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return the tensor of sources that scores read, and the one that is summed."""
    if block.kind is Kind.GAT:
        return tensors[1], tensors[0]
    return tensors[0], tensors[-1]


def _shape(block: AttentionBlock) -> tuple[int, int]:
    return block.sources[0].size(1), block.sources[0].size(2)


def _parts(block: AttentionBlock) -> tuple[Tensor | None, Tensor | None]:
    """Return where programs leave their parts of the gradient of `att`, where there is one."""
    if not block.shared:
        return None, None
    att, num_rows = block.shared[0], len(block.rows[0])
    wide = torch.float64 if att.dtype == torch.float64 else torch.float32
    short, hubs = (
        torch.zeros(triton.cdiv(num_rows, n), *att.shape, dtype=wide, device=att.device)
        for n in (ROWS_A_PROGRAM, HUB_SEARCH_ROWS)
    )
    return short, hubs


@jit
def _sum_of_ends(
    x: tl.tensor,
    edge: tl.tensor,
    row_S: tl.tensor,
    number_S: tl.tensor,
    own_G: tl.tensor,
    head_G: tl.tensor,
    live_SG: tl.tensor,
    H: tl.constexpr,
    wide: tl.constexpr,
) -> tl.tensor:
    """Return GAT's left + right + edge of some edges: one end is `own_G`, the other is gathered."""
    sum_SG = scalars(x, row_S, head_G, live_SG, H).to(wide) + own_G[None, :]
    if edge is not None:
        sum_SG += scalars(edge, number_S, head_G, live_SG, H).to(wide)
    return sum_SG


@jit
def _score(
    near_SGW: tl.tensor,
    row_SGW: tl.tensor,
    att_GW: tl.tensor,
    factor: tl.constexpr,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Return scores, [S, G], of kinds whose ends are vectors; `near` is the key with the edge."""
    if KIND == "gatv2":
        sum_SGW = near_SGW + row_SGW
        score_SG = tl.sum(sum_SGW * steepness(sum_SGW, factor) * att_GW[None, :, :], axis=2)
    else:
        tl.static_assert(KIND == "dot", "a kind of attention without scores")
        dot_SG = tl.sum(near_SGW * row_SGW, axis=2)
        # a bare constant would be a float32, too coarse for float64
        score_SG = dot_SG * tl.full(dot_SG.shape, factor, dtype=dot_SG.dtype)
    return score_SG


@jit
def _d_near(
    d_score_SG: tl.tensor,
    near_SGW: tl.tensor,
    row_SGW: tl.tensor,
    att_GW: tl.tensor,
    factor: tl.constexpr,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Return what a score's gradient gives to the edge's key, [S, G, W]."""
    if KIND == "gatv2":
        steep_SGW = steepness(near_SGW + row_SGW, factor)
        grad_SGW = d_score_SG[:, :, None] * steep_SGW * att_GW[None, :, :]
    else:
        tl.static_assert(KIND == "dot", "a kind of attention without gradients")
        scale_SG = tl.full(d_score_SG.shape, factor, dtype=d_score_SG.dtype)
        grad_SGW = (d_score_SG * scale_SG)[:, :, None] * row_SGW
    return grad_SGW


@keyed
def _fold_rows(
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
    first_head: tl.constexpr,
    held: tl.constexpr,
    KIND: tl.constexpr,
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
    drawn_G = first_head + head_G
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        att_GW = own_heads(att, head_G[:, None] * D + column_W[None, :], in_GW, wide)
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, row, num_rows, HUBS)
            if end > start:
                at_G = row * H + head_G
                at_GW = at_G[:, None] * D + column_W[None, :]
                if KIND == "gat":
                    own_G = tl.load(own + at_G, mask=in_G, other=0.0).to(wide)
                else:
                    own_GW = own_heads(own, at_GW, in_GW, wide)
                old_G = tl.load(top + at_G, mask=in_G, other=0.0).to(wide)
                best_G = old_G
                weight_SG, total_SGW = tl.zeros([S, G], wide), tl.zeros([S, G, W], wide)
                for first in range(start, end, S):
                    edge_S = (first + tl.arange(0, S)).to(tl.int64)
                    live_S = edge_S < end
                    live_SG = live_S[:, None] & in_G[None, :]
                    j_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
                    if KIND == "gat":
                        value_SGW = gather(value, j_S, head_G, column_W, live_S, H, D).to(wide)
                        sum_SG = _sum_of_ends(x, edge, j_S, edge_S, own_G, head_G, live_SG, H, wide)
                        score_SG = sum_SG * steepness(sum_SG, factor)
                    else:
                        value_SGW = gather(x, j_S, head_G, column_W, live_S, H, D).to(wide)
                        near_SGW = with_edge(
                            value_SGW, edge, edge_S, head_G, column_W, live_S, H, D
                        )
                        score_SG = _score(near_SGW, own_GW[None, :, :], att_GW, factor, KIND)

                    # The maximum is found on the way: a pass of its own would gather every row
                    # twice. Where it rises, what was gathered shrinks.
                    best_SG = tl.where(live_SG, score_SG, float("-inf"))
                    new_G = tl.maximum(best_G, tl.max(best_SG, axis=0))
                    shift_G = tl.where(new_G == float("-inf"), 0.0, new_G)
                    shrink_G = tl.exp(best_G - shift_G)
                    part_SG = exp_live(score_SG - shift_G[None, :], live_SG)
                    weight_SG = weight_SG * shrink_G[None, :] + part_SG

                    # The normalising sum stays whole: draws drop from the weighted one alone.
                    kept_SG = keep_or_drop(
                        part_SG, ids_C, ids_M, key, j_S, row, drawn_G, threshold, scale, held
                    )
                    if KIND == "dot":
                        value_SGW = gather(value, j_S, head_G, column_W, live_S, H, D).to(wide)
                        value_SGW = with_edge(
                            value_SGW, edge, edge_S, head_G, column_W, live_S, H, D
                        )
                    total_SGW = (
                        total_SGW * shrink_G[None, :, None] + kept_SG[:, :, None] * value_SGW
                    )
                    best_G = new_G
                shrink_G = tl.exp(old_G - tl.where(best_G == float("-inf"), 0.0, best_G))
                fold(weight + at_G, in_G, shrink_G, tl.sum(weight_SG, axis=0))
                fold(total + at_GW, in_GW, shrink_G[:, None], tl.sum(total_SGW, axis=0))
                tl.store(top + at_G, best_G, mask=in_G)


@keyed
def _grad_columns(
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
    first_head: tl.constexpr,
    held: tl.constexpr,
    KIND: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    HUBS: tl.constexpr,
    S: tl.constexpr,
) -> None:
    """Gather for sources, the rows of the transpose: what those who read them have."""
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_G, in_GW = head_G < H, (head_G < H)[:, None] & (column_W < D)[None, :]
    drawn_G = first_head + head_G
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        att_GW = own_heads(att, head_G[:, None] * D + column_W[None, :], in_GW, wide)
        for b in range(B):
            j = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, j, num_rows, HUBS)
            if end > start:
                at_G = j * H + head_G
                at_GW = at_G[:, None] * D + column_W[None, :]
                value_GW = own_heads(value, at_GW, in_GW, wide)
                zero_SGW, d_value_SGW = tl.zeros([S, G, W], wide), tl.zeros([S, G, W], wide)
                if KIND == "gat":
                    x_G = tl.load(x + at_G, mask=in_G, other=0.0).to(wide)
                    d_x_SG = tl.zeros([S, G], wide)
                else:
                    x_GW = own_heads(x, at_GW, in_GW, wide)
                    d_x_SGW = tl.zeros([S, G, W], wide)
                for first in range(start, end, S):
                    edge_S = (first + tl.arange(0, S)).to(tl.int64)
                    live_S = edge_S < end
                    live_SG = live_S[:, None] & in_G[None, :]
                    i_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
                    number_S = numbers(order, edge_S, live_S)

                    # Softmax weights once more, from scores and the rows' log-sum-exp.
                    value_SGW = value_GW[None, :, :]
                    if KIND == "gat":
                        grad_SGW = gather(grad, i_S, head_G, column_W, live_S, H, D).to(wide)
                        sum_SG = _sum_of_ends(
                            own, edge, i_S, number_S, x_G, head_G, live_SG, H, wide
                        )
                        steep_SG = steepness(sum_SG, factor)
                        score_SG = sum_SG * steep_SG
                    else:
                        row_SGW = gather(own, i_S, head_G, column_W, live_S, H, D).to(wide)
                        grad_SGW = gather(grad, i_S, head_G, column_W, live_S, H, D).to(wide)
                        extra_SGW = with_edge(
                            zero_SGW, edge, number_S, head_G, column_W, live_S, H, D
                        )
                        near_SGW = x_GW[None, :, :] + extra_SGW
                        score_SG = _score(near_SGW, row_SGW, att_GW, factor, KIND)
                    if KIND == "dot":
                        value_SGW = value_GW[None, :, :] + extra_SGW
                    lse_SG = scalars(lse, i_S, head_G, live_SG, H).to(wide)
                    part_SG = exp_live(score_SG - lse_SG, live_SG)
                    kept_SG = keep_or_drop(
                        part_SG, ids_C, ids_M, key, j, i_S, drawn_G, threshold, scale, held
                    )

                    # The gradient of the score, and what it and the value's give to the source.
                    dot_SG = tl.sum(grad_SGW * value_SGW, axis=2)
                    delta_SG = scalars(delta, i_S, head_G, live_SG, H).to(wide)
                    d_score_SG = kept_SG * dot_SG - part_SG * delta_SG
                    if KIND == "gat":
                        d_x_SG += d_score_SG * steep_SG
                    else:
                        d_x_SGW += _d_near(d_score_SG, near_SGW, row_SGW, att_GW, factor, KIND)
                    if KIND == "gatv2":
                        d_x_SGW += kept_SG[:, :, None] * grad_SGW
                    else:
                        d_value_SGW += kept_SG[:, :, None] * grad_SGW
                if KIND == "gat":
                    fold(grad_x + at_G, in_G, 1.0, tl.sum(d_x_SG, axis=0))
                else:
                    fold(grad_x + at_GW, in_GW, 1.0, tl.sum(d_x_SGW, axis=0))
                if KIND != "gatv2":
                    fold(grad_value + at_GW, in_GW, 1.0, tl.sum(d_value_SGW, axis=0))


@keyed
def _grad_rows(
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
    first_head: tl.constexpr,
    held: tl.constexpr,
    KIND: tl.constexpr,
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
    in_G, in_GW = head_G < H, (head_G < H)[:, None] & (column_W < D)[None, :]
    drawn_G = first_head + head_G
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        place_GW = head_G[:, None] * D + column_W[None, :]
        att_GW, d_att_GW = own_heads(att, place_GW, in_GW, wide), tl.zeros([G, W], dtype=wide)
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, row, num_rows, HUBS)
            if end > start:
                at_G, at_GW = row * H + head_G, row * (H * D) + place_GW
                grad_GW = own_heads(grad, at_GW, in_GW, wide)
                lse_G = tl.load(lse + at_G, mask=in_G, other=0.0).to(wide)
                delta_G = tl.load(delta + at_G, mask=in_G, other=0.0).to(wide)
                if KIND == "gat":
                    own_G = tl.load(own + at_G, mask=in_G, other=0.0).to(wide)
                    d_own_SG = tl.zeros([S, G], wide)
                else:
                    own_GW = own_heads(own, at_GW, in_GW, wide)
                    d_own_SGW, d_att_SGW = tl.zeros([S, G, W], wide), tl.zeros([S, G, W], wide)
                for first in range(start, end, S):
                    edge_S = (first + tl.arange(0, S)).to(tl.int64)
                    live_S = edge_S < end
                    live_SG = live_S[:, None] & in_G[None, :]
                    live_SGW = live_S[:, None, None] & in_GW[None, :, :]
                    j_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)

                    # Softmax weights once more, from scores and the row's log-sum-exp.
                    if KIND == "gat":
                        value_SGW = gather(value, j_S, head_G, column_W, live_S, H, D).to(wide)
                        sum_SG = _sum_of_ends(x, edge, j_S, edge_S, own_G, head_G, live_SG, H, wide)
                        steep_SG = steepness(sum_SG, factor)
                        score_SG = sum_SG * steep_SG
                    else:
                        value_SGW = gather(x, j_S, head_G, column_W, live_S, H, D).to(wide)
                        near_SGW = with_edge(
                            value_SGW, edge, edge_S, head_G, column_W, live_S, H, D
                        )
                        score_SG = _score(near_SGW, own_GW[None, :, :], att_GW, factor, KIND)
                    part_SG = exp_live(score_SG - lse_G[None, :], live_SG)
                    kept_SG = keep_or_drop(
                        part_SG, ids_C, ids_M, key, j_S, row, drawn_G, threshold, scale, held
                    )
                    if KIND == "dot":
                        value_SGW = gather(value, j_S, head_G, column_W, live_S, H, D).to(wide)
                        value_SGW = with_edge(
                            value_SGW, edge, edge_S, head_G, column_W, live_S, H, D
                        )
                    dot_SG = tl.sum(value_SGW * grad_GW[None, :, :], axis=2)
                    d_score_SG = kept_SG * dot_SG - part_SG * delta_G[None, :]

                    # What the score's gradient gives to the row, to `att` and to the edge.
                    if KIND == "gat":
                        d_edge_SG = d_score_SG * steep_SG
                        d_own_SG += d_edge_SG
                        if grad_edge is not None:
                            place_SG = grad_edge + edge_S[:, None] * H + head_G[None, :]
                            tl.store(place_SG, d_edge_SG, mask=live_SG)
                    else:
                        row_SGW = own_GW[None, :, :]
                        d_edge_SGW = _d_near(d_score_SG, near_SGW, row_SGW, att_GW, factor, KIND)
                        if KIND == "gatv2":
                            d_own_SGW += d_edge_SGW
                            sum_SGW = near_SGW + row_SGW
                            bent_SGW = sum_SGW * steepness(sum_SGW, factor)
                            d_att_SGW += d_score_SG[:, :, None] * bent_SGW
                        else:
                            # scores are linear in the query as they are in the key
                            d_own_SGW += _d_near(
                                d_score_SG, near_SGW, near_SGW, att_GW, factor, KIND
                            )
                            d_edge_SGW += kept_SG[:, :, None] * grad_GW[None, :, :]
                        if grad_edge is not None:
                            at_SGW = edge_S[:, None, None] * (H * D) + place_GW[None, :, :]
                            tl.store(grad_edge + at_SGW, d_edge_SGW, mask=live_SGW)
                if KIND == "gat":
                    fold(grad_own + at_G, in_G, 1.0, tl.sum(d_own_SG, axis=0))
                else:
                    fold(grad_own + at_GW, in_GW, 1.0, tl.sum(d_own_SGW, axis=0))
                    d_att_GW += tl.sum(d_att_SGW, axis=0)
        if KIND == "gatv2":
            tl.store(parts + tl.program_id(0) * (H * D) + place_GW, d_att_GW, mask=in_GW)

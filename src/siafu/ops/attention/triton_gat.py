"""GAT's attention for CUDA, written in Triton.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, G heads of a
program, W columns of a tile, S edges a step, B rows looked through for hubs. A program owns a row
(or a source column) and some heads: no atomics, and results repeat. The price is that backward
gathers twice, once for the gradients of columns and once for those of rows.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

import triton.language as tl

from siafu.ops.attention.triton_rows import (
    any_mine,
    drop_options,
    edges_of,
    exp_live,
    fold,
    gather,
    is_mine,
    jit,
    keep_or_drop,
    keyed,
    launch,
    numbers,
    scalars,
    steepness,
)
from siafu.ops.contract import AttentionBlock, AttentionGrads, RowGrads, Softmax, Turned
from siafu.ops.csr import reference as csr_reference

DTYPES = csr_reference.DTYPES


def fold_into(block: AttentionBlock, state: Softmax) -> None:
    """See `contract.AttentionKernels`."""
    ids_and_key, options = drop_options(block.drop)
    z, left = block.sources
    launch(
        _attend,
        len(block.rows[0]),
        (z.size(1), z.size(2)),
        block.indptr,
        block.index,
        z,
        left,
        block.rows[0],
        block.edge,
        *state,
        *ids_and_key,
        slope=block.factor,
        **options,
    )


def grad_into(block: AttentionBlock, back: Turned, rows: RowGrads, grads: AttentionGrads) -> None:
    """See `contract.AttentionKernels`."""
    ids_and_key, options = drop_options(block.drop)
    z, left = block.sources
    shape = z.size(1), z.size(2)
    options |= {"slope": block.factor}
    inputs = (z, left, block.rows[0], block.edge, *rows)
    launch(
        _grad_columns,
        len(z),
        shape,
        back.indptr,
        back.index,
        back.order,
        *inputs,
        *grads.sources,
        *ids_and_key,
        **options,
    )
    launch(
        _grad_rows,
        len(block.rows[0]),
        shape,
        block.indptr,
        block.index,
        *inputs,
        grads.rows[0],
        grads.edge,
        *ids_and_key,
        **options,
    )


@keyed
def _attend(
    indptr: tl.tensor,
    index: tl.tensor,
    z: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    bias: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    num_rows: tl.tensor,
    slope: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    HUBS: tl.constexpr,
    S: tl.constexpr,
) -> None:
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_G, in_GW = head_G < H, (head_G < H)[:, None] & (column_W < D)[None, :]
    wide: tl.constexpr = tl.float64 if z.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, row, num_rows, HUBS)
            if end > start:
                at_G = row * H + head_G
                right_G = tl.load(right + at_G, mask=in_G, other=0.0).to(wide)
                old_G = tl.load(top + at_G, mask=in_G, other=0.0).to(wide)
                best_G, weight_G, total_GW = _attend_row(
                    index, z, left, bias, ids_C, ids_M, key, row, start, end, right_G, old_G,
                    head_G, column_W, slope, threshold, scale, H, D, G, W, S, wide,
                )  # fmt: skip
                shrink_G = tl.exp(old_G - tl.where(best_G == float("-inf"), 0.0, best_G))
                fold(weight + at_G, in_G, shrink_G, weight_G)
                at_GW = at_G[:, None] * D + column_W[None, :]
                fold(total + at_GW, in_GW, shrink_G[:, None], total_GW)
                tl.store(top + at_G, best_G, mask=in_G)


@jit
def _attend_row(
    index: tl.tensor,
    z: tl.tensor,
    left: tl.tensor,
    bias: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    right_G: tl.tensor,
    best_G: tl.tensor,
    head_G: tl.tensor,
    column_W: tl.tensor,
    slope: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
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
        edge_S = first + tl.arange(0, S)
        live_SG = (edge_S < end)[:, None] & (head_G < H)[None, :]
        j_S = tl.load(index + edge_S, mask=edge_S < end, other=0).to(tl.int64)
        z_SGW = gather(z, j_S, head_G, column_W, edge_S < end, H, D).to(wide)
        sum_SG = _sum(left, bias, j_S, edge_S, right_G, head_G, live_SG, H, wide)
        score_SG = sum_SG * steepness(sum_SG, slope)
        new_G = tl.maximum(best_G, tl.max(tl.where(live_SG, score_SG, float("-inf")), axis=0))
        shift_G = tl.where(new_G == float("-inf"), 0.0, new_G)
        shrink_G = tl.exp(best_G - shift_G)
        part_SG = exp_live(score_SG - shift_G[None, :], live_SG)
        weight_SG = weight_SG * shrink_G[None, :] + part_SG
        kept_SG = keep_or_drop(part_SG, ids_C, ids_M, key, j_S, row, head_G, threshold, scale)
        total_SGW = total_SGW * shrink_G[None, :, None] + kept_SG[:, :, None] * z_SGW
        best_G = new_G
    return best_G, tl.sum(weight_SG, axis=0), tl.sum(total_SGW, axis=0)


# rows of the transpose are sources: each gathers the gradients of the rows that read it
@keyed
def _grad_columns(
    indptr: tl.tensor,
    index: tl.tensor,
    order: tl.tensor,
    z: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    bias: tl.tensor,
    lse: tl.tensor,
    grad: tl.tensor,
    delta: tl.tensor,
    grad_z: tl.tensor,
    grad_left: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    num_rows: tl.tensor,
    slope: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    HUBS: tl.constexpr,
    S: tl.constexpr,
) -> None:
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_G, in_GW = head_G < H, (head_G < H)[:, None] & (column_W < D)[None, :]
    wide: tl.constexpr = tl.float64 if z.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        for b in range(B):
            j = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            if is_mine(indptr, j, num_rows, HUBS) & (j < num_rows):
                start, end = tl.load(indptr + j), tl.load(indptr + j + 1)
                at_G = j * H + head_G
                at_GW = at_G[:, None] * D + column_W[None, :]
                left_G = tl.load(left + at_G, mask=in_G, other=0.0).to(wide)
                z_GW = tl.load(z + at_GW, mask=in_GW, other=0.0).to(wide)
                left_SG, out_SGW = tl.zeros([S, G], wide), tl.zeros([S, G, W], wide)
                for first in range(start, end, S):
                    edge_S = first + tl.arange(0, S)
                    live_S, live_SG = edge_S < end, (edge_S < end)[:, None] & in_G[None, :]
                    i_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
                    number_S = numbers(order, edge_S, live_S)
                    grad_SGW = gather(grad, i_S, head_G, column_W, live_S, H, D).to(wide)
                    sum_SG = _sum(right, bias, i_S, number_S, left_G, head_G, live_SG, H, wide)
                    lse_SG = scalars(lse, i_S, head_G, live_SG, H).to(wide)
                    steep_SG = steepness(sum_SG, slope)
                    part_SG = exp_live(sum_SG * steep_SG - lse_SG, live_SG)
                    kept_SG = keep_or_drop(
                        part_SG, ids_C, ids_M, key, j, i_S, head_G, threshold, scale
                    )
                    out_SGW += kept_SG[:, :, None] * grad_SGW
                    dot_SG = tl.sum(grad_SGW * z_GW[None, :, :], axis=2)
                    delta_SG = scalars(delta, i_S, head_G, live_SG, H).to(wide)
                    left_SG += (kept_SG * dot_SG - part_SG * delta_SG) * steep_SG
                fold(grad_z + at_GW, in_GW, 1.0, tl.sum(out_SGW, axis=0))
                fold(grad_left + at_G, in_G, 1.0, tl.sum(left_SG, axis=0))


@keyed
def _grad_rows(
    indptr: tl.tensor,
    index: tl.tensor,
    z: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    bias: tl.tensor,
    lse: tl.tensor,
    grad: tl.tensor,
    delta: tl.tensor,
    grad_right: tl.tensor,
    grad_bias: tl.tensor,
    ids_C: tl.tensor,
    ids_M: tl.tensor,
    key: tl.tensor,
    num_rows: tl.tensor,
    slope: tl.constexpr,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
    HUBS: tl.constexpr,
    S: tl.constexpr,
) -> None:
    head_G, column_W = tl.program_id(1) * G + tl.arange(0, G), tl.arange(0, W)
    in_G, in_GW = head_G < H, (head_G < H)[:, None] & (column_W < D)[None, :]
    wide: tl.constexpr = tl.float64 if z.dtype.element_ty == tl.float64 else tl.float32
    if any_mine(indptr, num_rows, B, HUBS):
        for b in range(B):
            row = tl.program_id(0).to(tl.int64) + b * tl.num_programs(0)
            start, end = edges_of(indptr, row, num_rows, HUBS)
            if end > start:
                at_G = row * H + head_G
                at_GW = at_G[:, None] * D + column_W[None, :]
                right_G = tl.load(right + at_G, mask=in_G, other=0.0).to(wide)
                lse_G = tl.load(lse + at_G, mask=in_G, other=0.0).to(wide)
                delta_G = tl.load(delta + at_G, mask=in_G, other=0.0).to(wide)
                grad_GW = tl.load(grad + at_GW, mask=in_GW, other=0.0).to(wide)
                right_SG = tl.zeros([S, G], dtype=wide)
                for first in range(start, end, S):
                    edge_S = first + tl.arange(0, S)
                    live_S, live_SG = edge_S < end, (edge_S < end)[:, None] & in_G[None, :]
                    j_S = tl.load(index + edge_S, mask=live_S, other=0).to(tl.int64)
                    z_SGW = gather(z, j_S, head_G, column_W, live_S, H, D).to(wide)
                    sum_SG = _sum(left, bias, j_S, edge_S, right_G, head_G, live_SG, H, wide)
                    steep_SG = steepness(sum_SG, slope)
                    part_SG = exp_live(sum_SG * steep_SG - lse_G[None, :], live_SG)
                    kept_SG = keep_or_drop(
                        part_SG, ids_C, ids_M, key, j_S, row, head_G, threshold, scale
                    )
                    dot_SG = tl.sum(z_SGW * grad_GW[None, :, :], axis=2)
                    slip_SG = (kept_SG * dot_SG - part_SG * delta_G[None, :]) * steep_SG
                    right_SG += slip_SG
                    if grad_bias is not None:
                        place_SG = grad_bias + edge_S.to(tl.int64)[:, None] * H + head_G[None, :]
                        tl.store(place_SG, slip_SG, mask=live_SG)
                fold(grad_right + at_G, in_G, 1.0, tl.sum(right_SG, axis=0))


@jit
def _sum(
    other: tl.tensor,
    bias: tl.tensor,
    row_S: tl.tensor,
    edge_S: tl.tensor,
    own_G: tl.tensor,
    head_G: tl.tensor,
    live_SG: tl.tensor,
    H: tl.constexpr,
    wide: tl.constexpr,
) -> tl.tensor:
    """Return left + right + bias of some edges: one end is `own_G`, the other is gathered."""
    sum_SG = scalars(other, row_S, head_G, live_SG, H).to(wide) + own_G[None, :]
    if bias is not None:
        sum_SG += scalars(bias, edge_S.to(tl.int64), head_G, live_SG, H).to(wide)
    return sum_SG

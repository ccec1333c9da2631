"""Attention for CPU, compiled by Numba: one forward kernel and two backward, for every kind.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch, P parts. A thread owns the rows (or columns) that it writes, and what it adds to others goes
to a number of buffers fixed by the shape, so results do not depend on the number of threads.
"""
# ruff: noqa: PLR0913, PLR0915, C901 - kernel arguments are flat, and loops are written out
# Calls with several unpacked tuples are ignored by type: mypy mixes up their positions.

from typing import Any

import numpy as np
import torch

from siafu.ops.attention.numba_batch import (
    AHEAD,
    BATCH,
    DTYPES,
    TILE,
    Array,
    Drop,
    Tiles,
    add_edge_dots,
    add_edge_rows,
    add_rows,
    ask_row,
    dots,
    drop_arrays,
    drop_weights,
    edge_number,
    exp_of,
    fixed_shape,
    flat_of,
    num_parts,
    optional,
    padded,
    scores,
    weights,
    width_of,
)
from siafu.ops.contract import AttentionBlock, AttentionGrads, Kind, RowGrads, Softmax, Transposed
from siafu.ops.csr.numba import equal_edges
from siafu.ops.numba_jit import kernel
from siafu.ops.threads import SMALL_WORK, num_chunks, run_chunks

__all__ = ["DTYPES", "fold_into", "grad_into"]

PARTS = 64
"""Pieces that rows are cut into when each keeps a sum of its own for shared tensors."""


def fold_into(block: AttentionBlock, state: Softmax) -> None:
    """See `contract.AttentionKernels`."""
    if state.total_MHD.numel() == 0 or len(block.index) == 0:
        return
    indptr, index = block.indptr.numpy(), block.index.numpy()
    x, value, own, att, edge = _operands(block)
    inputs = x, flat_of(x), own, value, flat_of(value), att, edge
    totals = state.top_MH.numpy(), state.weight_MH.numpy(), state.total_MHD.numpy()
    kind, drop = _kind(block), drop_arrays(block.drop, value.dtype)
    shape = fixed_shape(*value.shape[1:])

    def work(lo: int, hi: int) -> None:
        _fold(*kind, indptr, index, *inputs, *totals, drop, lo, hi, *shape)  # type: ignore[arg-type]

    run_chunks(work, equal_edges(indptr, num_chunks(len(index) * value[0:1].size)))


def grad_into(
    block: AttentionBlock, back: Transposed, rows: RowGrads, grads: AttentionGrads
) -> None:
    """See `contract.AttentionKernels`."""
    if rows.grad_MHD.numel() == 0 or len(block.index) == 0:
        if grads.edge is not None:
            grads.edge.zero_()
    elif block.kind is Kind.GAT:
        _gat_grad_into(block, back, rows, grads)
    else:
        _into_columns(block, back, rows, grads)
        _into_rows(block, rows, grads)


def _kind(block: AttentionBlock) -> tuple[Any, Any, Any]:
    """Return what tells the compiler the kind: its factor among None for all others."""
    factor = block.sources[0].numpy().dtype.type(block.factor)
    gat, gatv2, dot = (factor if kind is block.kind else None for kind in Kind)
    return gat, gatv2, dot


def _operands(block: AttentionBlock) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Return what scores read of a source, values, what scores read of a row, att and edges."""
    first, last = block.sources[0].numpy(), block.sources[-1].numpy()
    # GAT scores by its second tensor and sums its first, dot product the other way round
    x, value = (last, first) if block.kind is Kind.GAT else (first, last)
    att = optional(block.shared[0]) if block.shared else None
    return x, value, block.rows[0].numpy(), att, optional(block.edge)


def _gat_grad_into(
    block: AttentionBlock, back: Transposed, rows: RowGrads, grads: AttentionGrads
) -> None:
    """Walk columns alone: a row gets one number per head, so a few buffers of them are small."""
    indptr, index, order = back.indptr.numpy(), back.index.numpy(), optional(back.order)
    left, z, _, _, edge = _operands(block)
    grad, right_MH = rows.grad_MHD.numpy(), block.rows[0]
    # right, log-sum-exp and delta of a row side by side: one cache line at 4 heads
    packed = right_MH.new_empty(len(right_MH), TILE * -(-3 * right_MH.size(1) // TILE))
    torch.cat([right_MH, rows.lse_MH, rows.delta_MH], dim=1, out=packed[:, : 3 * right_MH.size(1)])
    x, flat_grad = packed.numpy(), flat_of(grad)
    inputs = x, x, left, z, None, edge, None, grad, flat_grad, None
    grad_z, grad_left = (t.numpy() for t in grads.sources)
    parts = num_parts(len(index), len(grad), len(index) * grad[0:1].size)
    bounds = equal_edges(indptr, parts)
    right_PMH = torch.zeros(parts, *grads.rows[0].shape, dtype=grads.rows[0].dtype)
    sums, grad_edge = right_PMH.numpy(), optional(grads.edge)
    kind, drop, shape = _kind(block), drop_arrays(block.drop, z.dtype), fixed_shape(*z.shape[1:])

    def work(part: int, _: int) -> None:
        outputs = grad_left, grad_z, sums[part], grad_edge
        span = bounds[part], bounds[part + 1]
        _grad_columns(*kind, indptr, index, order, *inputs, *outputs, drop, *span, *shape)  # type: ignore[arg-type]

    run_chunks(work, range(parts + 1))
    for part_MH in right_PMH:
        grads.rows[0].add_(part_MH)


def _into_columns(
    block: AttentionBlock, back: Transposed, rows: RowGrads, grads: AttentionGrads
) -> None:
    indptr, index, order = back.indptr.numpy(), back.index.numpy(), optional(back.order)
    own, value, x, att, edge = _operands(block)
    lse, grad, delta = (t.numpy() for t in rows)
    inputs = x, flat_of(x), own, value, att, edge, lse, grad, flat_of(grad), delta
    outputs = grads.sources[0].numpy(), grads.sources[-1].numpy(), None, None
    kind, drop, shape = _kind(block), drop_arrays(block.drop, x.dtype), fixed_shape(*x.shape[1:])

    def work(lo: int, hi: int) -> None:
        _grad_columns(*kind, indptr, index, order, *inputs, *outputs, drop, lo, hi, *shape)  # type: ignore[arg-type]

    run_chunks(work, equal_edges(indptr, num_chunks(len(index) * x[0:1].size)))


def _into_rows(block: AttentionBlock, rows: RowGrads, grads: AttentionGrads) -> None:
    indptr, index = block.indptr.numpy(), block.index.numpy()
    x, value, own, att, edge = _operands(block)
    lse, grad, delta = (t.numpy() for t in rows)
    inputs = x, flat_of(x), own, value, flat_of(value), att, edge, lse, grad, delta
    kind, drop, shape = _kind(block), drop_arrays(block.drop, x.dtype), fixed_shape(*x.shape[1:])
    parts = 1 if len(index) * x[0:1].size < SMALL_WORK else PARTS
    bounds = equal_edges(indptr, parts)
    buffers = [torch.zeros(parts, *t.shape, dtype=t.dtype) for t in grads.shared]
    sums = buffers[0].numpy() if buffers else None
    grad_own, grad_edge = grads.rows[0].numpy(), optional(grads.edge)

    def work(part: int, _: int) -> None:
        outputs = grad_own, None if sums is None else sums[part], grad_edge
        span = bounds[part], bounds[part + 1]
        _grad_rows(*kind, indptr, index, *inputs, *outputs, drop, *span, *shape)  # type: ignore[arg-type]

    run_chunks(work, range(parts + 1))
    for total, buffer in zip(grads.shared, buffers, strict=True):
        for part_HD in buffer:
            total.add_(part_HD)


@kernel
def _fold(
    gat: Any,
    gatv2: Any,
    dot: Any,
    indptr: Array,
    index: Array,
    x: Array,
    flat_x: Array,
    own: Array,
    value: Array,
    flat_value: Array,
    att: Any,
    edge: Array | None,
    top: Array,
    weight: Array,
    total: Array,
    drop: Drop,
    lo: int,
    hi: int,
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Fold the edges of each row into its softmax, a batch at a time."""
    H, d = value.shape[1] if heads is None else len(heads), width_of(value, tiles)
    score = np.empty((H, BATCH), value.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    low = score.dtype.type(-np.inf)
    for row in range(lo, hi):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)
            scores(
                score, gat, gatv2, dot, index, None, e, count, x, flat_x, own, i, att, edge, H,
                tiles,
            )  # fmt: skip

            # Scores become exp(score - top); where top rises, what was gathered shrinks.
            for h in range(H):
                best = top[i, h]
                for q in range(count):
                    best = score[h, q] if score[h, q] > best else best
                for q in range(count, padded(count)):
                    score[h, q] = low
                if best > top[i, h]:
                    shrink = exp_of(top[i, h] - best)
                    weight[i, h] *= shrink
                    for f in range(d):
                        total[i, h, f] *= shrink
                    top[i, h] = best
                shift = best if best > low else score.dtype.type(0)
                summed = score.dtype.type(0)
                for q in range(padded(count)):
                    raised = exp_of(score[h, q] - shift)
                    score[h, q] = raised
                    summed += raised
                weight[i, h] += summed

            # The normalising sum is whole by now: draws drop values from the other sum alone.
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(score, ids, words, count, drop)
            add_rows(score, index, e, count, value, flat_value, total, i, H, tiles)
            if dot is not None and edge is not None:
                add_edge_rows(score, e, count, edge, total, i, H, tiles)
            e += count


@kernel
def _grad_columns(
    gat: Any,
    gatv2: Any,
    dot: Any,
    indptr: Array,
    index: Array,
    order: Array | None,
    x: Array,
    flat_x: Array,
    own: Array,
    value: Array,
    att: Any,
    edge: Array | None,
    lse: Array | None,
    grad: Array,
    flat_grad: Array,
    delta: Array | None,
    grad_own: Array,
    grad_value: Array,
    grad_x: Any,
    grad_edge: Array | None,
    drop: Drop,
    lo: int,
    hi: int,
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Walk source columns: each owns the gradients of its tensors.

    In GAT, x holds right, log-sum-exp and delta of a row side by side; rows and edges get their
    gradients here too, rows in the buffer of this part.
    """
    H, d, last = (
        value.shape[1] if heads is None else len(heads),
        width_of(value, tiles),
        len(index) - 1,
    )
    weight, kept = np.empty((H, BATCH), value.dtype), np.empty((H, BATCH), value.dtype)
    dot_product, steep = np.empty((H, BATCH), value.dtype), np.empty((H, BATCH), value.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    zero, one = value.dtype.type(0), value.dtype.type(1)
    for column in range(lo, hi):
        j = np.uint64(column)
        e, end = indptr[column], indptr[column + 1]
        while e < end:
            count = min(BATCH, end - e)

            # Softmax weights once more, from scores and the rows' log-sum-exp.
            if gat is not None:
                for q in range(count):
                    i, soon = np.uint64(index[e + q]), np.uint64(index[min(e + q + BATCH, last)])
                    ask_row(x, soon, 3 * H)
                    ask_row(grad_x, soon, H)
                    for h in range(H):
                        weight[h, q] = own[j, h] + x[i, np.uint64(h)]
                        steep[h, q] = x[i, np.uint64(h) + np.uint64(H)]
                if edge is not None:
                    for q in range(count):
                        n = edge_number(order, e + q)
                        for h in range(H):
                            weight[h, q] += edge[n, h]
                # `steep` has held the log-sum-exp; from here on it is the slope of leaky_relu
                for h in range(H):
                    for q in range(count, padded(count)):
                        weight[h, q], steep[h, q] = zero, zero
                    for q in range(padded(count)):
                        summed = weight[h, q]
                        factor = one if summed > 0 else gat
                        weight[h, q] = exp_of(summed * factor - steep[h, q])
                        kept[h, q], steep[h, q] = weight[h, q], factor
            if lse is not None:
                scores(
                    weight, gat, gatv2, dot, index, order, e, count, x, flat_x, own, j, att, edge,
                    H, tiles,
                )  # fmt: skip
                for q in range(count):
                    i = np.uint64(index[e + q])
                    for h in range(H):
                        weight[h, q] -= lse[i, h]
                weights(weight, kept, count)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][j], drop[4][index[e + q]]
                drop_weights(kept, ids, words, count, drop)

            # <grad, value>, and the values' gradients: a row that is far away serves both.
            for q in range(count):
                i = np.uint64(index[e + q])
                ask_row(flat_grad, np.uint64(index[min(e + q + AHEAD, last)]), H * d)
                for h in range(H):
                    factor, summed = kept[h, q], zero
                    for f in range(d):
                        summed += grad[i, h, f] * value[j, h, f]
                        grad_value[j, h, f] += factor * grad[i, h, f]
                    dot_product[h, q] = summed
            if dot is not None and edge is not None:
                add_edge_dots(dot_product, index, order, e, count, edge, grad, j, H, tiles)

            # The gradient of a score is kept * <grad, value> - weight * delta; it goes to what
            # the kind makes scores of.
            if gat is not None:
                for q in range(count):
                    i = np.uint64(index[e + q])
                    for h in range(H):
                        row_delta = x[i, np.uint64(h) + np.uint64(2 * H)]
                        product = kept[h, q] * dot_product[h, q] - weight[h, q] * row_delta
                        d_score = product * steep[h, q]
                        dot_product[h, q] = d_score
                        grad_own[j, h] += d_score
                        grad_x[i, h] += d_score
                if grad_edge is not None:
                    for q in range(count):
                        n = edge_number(order, e + q)
                        for h in range(H):
                            grad_edge[n, h] = dot_product[h, q]
            if delta is not None:
                for q in range(count):
                    i = np.uint64(index[e + q])
                    for h in range(H):
                        product = kept[h, q] * dot_product[h, q]
                        dot_product[h, q] = product - weight[h, q] * delta[i, h]
                if gatv2 is not None:
                    for q in range(count):
                        i = np.uint64(index[e + q])
                        for h in range(H):
                            d_score, d_low = dot_product[h, q], dot_product[h, q] * gatv2
                            if edge is None:
                                for f in range(d):
                                    u = x[i, h, f] + own[j, h, f]
                                    grad_own[j, h, f] += att[h, f] * (d_score if u > 0 else d_low)
                            else:
                                n = edge_number(order, e + q)
                                for f in range(d):
                                    u = x[i, h, f] + own[j, h, f] + edge[n, h, f]
                                    grad_own[j, h, f] += att[h, f] * (d_score if u > 0 else d_low)
                if dot is not None:
                    for h in range(H):
                        for q in range(count):
                            dot_product[h, q] *= dot
                    add_rows(dot_product, index, e, count, x, flat_x, grad_own, j, H, tiles)
            e += count


@kernel
def _grad_rows(
    gat: None,
    gatv2: Any,
    dot: Any,
    indptr: Array,
    index: Array,
    x: Array,
    flat_x: Array,
    own: Array,
    value: Array,
    flat_value: Array,
    att: Any,
    edge: Array | None,
    lse: Array,
    grad: Array,
    delta: Array,
    grad_own: Array,
    grad_att: Any,
    grad_edge: Array | None,
    drop: Drop,
    lo: int,
    hi: int,
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Walk destination rows: each owns the gradients of its tensor and of its edges' terms."""
    H, d = x.shape[1] if heads is None else len(heads), width_of(x, tiles)
    weight, kept = np.empty((H, BATCH), x.dtype), np.empty((H, BATCH), x.dtype)
    d_score = np.empty((H, BATCH), x.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for row in range(lo, hi):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)

            # Softmax weights once more, as in `_grad_columns`.
            scores(
                weight, gat, gatv2, dot, index, None, e, count, x, flat_x, own, i, att, edge, H,
                tiles,
            )  # fmt: skip
            for q in range(count):
                for h in range(H):
                    weight[h, q] -= lse[i, h]
            weights(weight, kept, count)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(kept, ids, words, count, drop)

            # The gradients of scores: kept * <grad, value> - weight * delta.
            dots(d_score, index, e, count, value, flat_value, grad, i, H, tiles)
            if dot is not None and edge is not None:
                add_edge_dots(d_score, index, None, e, count, edge, grad, i, H, tiles)
            for h in range(H):
                for q in range(count):
                    d_score[h, q] = kept[h, q] * d_score[h, q] - weight[h, q] * delta[i, h]

            # They go to the row, to shared tensors and to the edges' terms. A loop stores to one
            # array: with two, the compiler gives up on vectors.
            if gatv2 is not None:
                for q in range(count):
                    j, n = np.uint64(index[e + q]), np.uint64(e + q)
                    for h in range(H):
                        high, low = d_score[h, q], d_score[h, q] * gatv2
                        if edge is None:
                            for f in range(d):
                                u = x[j, h, f] + own[i, h, f]
                                grad_own[i, h, f] += att[h, f] * (high if u > 0 else low)
                            for f in range(d):
                                u = x[j, h, f] + own[i, h, f]
                                grad_att[h, f] += u * (high if u > 0 else low)
                        else:
                            for f in range(d):
                                u = x[j, h, f] + own[i, h, f] + edge[n, h, f]
                                grad_own[i, h, f] += att[h, f] * (high if u > 0 else low)
                            for f in range(d):
                                u = x[j, h, f] + own[i, h, f] + edge[n, h, f]
                                grad_att[h, f] += u * (high if u > 0 else low)
                            if grad_edge is not None:
                                for f in range(d):
                                    u = x[j, h, f] + own[i, h, f] + edge[n, h, f]
                                    grad_edge[n, h, f] = att[h, f] * (high if u > 0 else low)
            if dot is not None:
                for h in range(H):
                    for q in range(count):
                        d_score[h, q] *= dot
                add_rows(d_score, index, e, count, x, flat_x, grad_own, i, H, tiles)
                if edge is not None:
                    add_edge_rows(d_score, e, count, edge, grad_own, i, H, tiles)
                if grad_edge is not None:
                    for q in range(count):
                        n = np.uint64(e + q)
                        for h in range(H):
                            of_query, of_grad = d_score[h, q], kept[h, q]
                            for f in range(d):
                                along = of_query * own[i, h, f]
                                grad_edge[n, h, f] = along + of_grad * grad[i, h, f]
            e += count

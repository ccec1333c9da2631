"""GAT's attention for CPU, compiled by Numba.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch, P buffers. Results do not depend on the number of threads: a thread owns the rows it writes,
and what columns add to rows goes to a number of buffers fixed by the shape.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.ops.attention_numba import (
    BATCH,
    DTYPES,
    TILE,
    Array,
    Drop,
    add_rows,
    ask_row,
    dot_and_add,
    drop_arrays,
    drop_weights,
    exp_of,
    fixed_shape,
    fold_scores,
    num_parts,
    optional,
    padded,
)
from siafu.ops.contract import GatBlock, GatGrads, RowGrads, Softmax, Turned
from siafu.ops.csr_numba import _equal_edges
from siafu.ops.numba_jit import callee, kernel
from siafu.ops.threads import num_chunks, run_chunks

__all__ = ["DTYPES", "attend_grad_into", "attend_into"]


def attend_into(block: GatBlock, state: Softmax) -> None:
    """See `contract.GatKernels`."""
    if state.total_MHD.numel() == 0 or len(block.index) == 0:
        return
    indptr, index, z, left, right = (t.numpy() for t in block[:5])
    bias, slope = optional(block.bias_EH, z), z.dtype.type(block.slope)
    drop, shape = drop_arrays(block.drop, z.dtype), fixed_shape(*z.shape[1:])
    arrays = (state.top_MH.numpy(), state.weight_MH.numpy(), state.total_MHD.numpy())
    flat = z.reshape(len(z), -1)

    def work(lo: int, hi: int) -> None:
        _attend_rows(
            indptr, index, z, flat, left, right, bias, slope, arrays, drop, (lo, hi), *shape
        )

    run_chunks(work, _equal_edges(indptr, num_chunks(len(index) * flat.shape[1])))


def attend_grad_into(block: GatBlock, back: Turned, rows: RowGrads, grads: GatGrads) -> None:
    """See `contract.GatKernels`."""
    if block.z_CHD.numel() == 0 or len(block.index) == 0:
        grads.z_CHD.zero_()
        grads.left_CH.zero_()
        if grads.bias_EH is not None:
            grads.bias_EH.zero_()
        return
    indptr, index = back.indptr.numpy(), back.index.numpy()
    z, left = block.z_CHD.numpy(), block.left_CH.numpy()
    order = index[:0] if back.order is None else back.order.numpy()
    bias, grad_bias = optional(block.bias_EH, z), optional(grads.bias_EH, z)
    drop, shape = drop_arrays(block.drop, z.dtype), fixed_shape(*z.shape[1:])
    packed, grad = _pack(block.right_MH, rows), rows.grad_MHD.numpy()
    parts = num_parts(len(index), len(grad), len(index) * grad[0:1].size)
    bounds = _equal_edges(indptr, parts)
    right_PMH = torch.zeros(parts, *grads.right_MH.shape, dtype=grads.right_MH.dtype)
    right = right_PMH.numpy()
    outputs = grads.z_CHD.numpy(), grads.left_CH.numpy(), grad_bias

    def work(part: int, _: int) -> None:
        _grad_columns(
            indptr,
            index,
            order,
            z,
            left,
            bias,
            z.dtype.type(block.slope),
            packed,
            grad,
            grad.reshape(len(grad), -1),
            (*outputs, right[part]),
            drop,
            (bounds[part], bounds[part + 1]),
            *shape,
        )

    run_chunks(work, range(parts + 1))
    for part_MH in right_PMH:
        grads.right_MH.add_(part_MH)


def _pack(right_MH: Tensor, rows: RowGrads) -> Array:
    """Return right, log-sum-exp and delta of a row side by side: one cache line at 4 heads."""
    line = TILE * -(-3 * right_MH.size(1) // TILE)
    packed = right_MH.new_empty(len(right_MH), line)
    torch.cat([right_MH, rows.lse_MH, rows.delta_MH], dim=1, out=packed[:, : 3 * right_MH.size(1)])
    return packed.numpy()


@kernel
def _attend_rows(
    indptr: Array,
    index: Array,
    z: Array,
    flat: Array,
    left: Array,
    right: Array,
    bias: Array,
    slope: Any,
    state: tuple[Array, Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: tuple[int, ...] | None,
) -> None:
    H = z.shape[1] if heads is None else len(heads)
    D = z.shape[2] if tiles is None else len(tiles) * TILE
    score = np.empty((H, BATCH), z.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for row in range(span[0], span[1]):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)
            for q in range(count):
                j = np.uint64(index[e + q])
                for h in range(H):
                    score[h, q] = left[j, h] + right[i, h]
            _bend(score, bias, e, slope, count, H)
            fold_scores(score, state, i, count, D)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(score, ids, words, count, drop)
            add_rows(score, index, e, count, z, flat, state[2], i, H, D)
            e += count


@callee
def _bend(score: Array, bias: Array, e: int, slope: Any, count: int, heads: int) -> None:
    """Add the bias, where there is one, and apply leaky_relu."""
    if len(bias) > 0:
        for q in range(count):
            for h in range(heads):
                score[h, q] += bias[np.uint64(e + q), h]
    for h in range(heads):
        for q in range(count):
            value = score[h, q]
            score[h, q] = value if value > 0 else value * slope


@kernel
def _grad_columns(
    indptr: Array,
    index: Array,
    order: Array,
    z: Array,
    left: Array,
    bias: Array,
    slope: Any,
    packed: Array,
    grad: Array,
    flat: Array,
    outputs: tuple[Array, Array, Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: tuple[int, ...] | None,
) -> None:
    """Walk source columns: each owns its gradients, and adds to the rows in its part's buffer."""
    H = z.shape[1] if heads is None else len(heads)
    D = z.shape[2] if tiles is None else len(tiles) * TILE
    grad_z, grad_left, grad_bias, grad_right = outputs
    weight, steep = np.empty((H, BATCH), z.dtype), np.empty((H, BATCH), z.dtype)
    kept, dot = np.empty((H, BATCH), z.dtype), np.empty((H, BATCH), z.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for column in range(span[0], span[1]):
        j = np.uint64(column)
        grad_left[j] = 0
        grad_z[j] = 0
        e, end = indptr[column], indptr[column + 1]
        while e < end:
            count = min(BATCH, end - e)
            _sums(weight, steep, index, e, count, left, packed, grad_right, j, H)
            if len(bias) > 0:
                _add_bias(weight, bias, order, e, count)
            _weigh(weight, steep, kept, slope, count)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][j], drop[4][index[e + q]]
                drop_weights(kept, ids, words, count, drop)
            dot_and_add(kept, dot, index, e, count, grad, flat, (z, grad_z), j, H, D)
            _share(weight, steep, kept, dot, index, e, count, packed, outputs, j, H)
            if len(bias) > 0:
                for q in range(count):
                    for h in range(H):
                        grad_bias[np.uint64(order[e + q]), h] = dot[h, q]
            e += count


@callee
def _add_bias(total: Array, bias: Array, order: Array, e: int, count: int) -> None:
    for q in range(count):
        for h in range(total.shape[0]):
            total[h, q] += bias[np.uint64(order[e + q]), h]


@callee
def _sums(
    total: Array,
    lse: Array,
    index: Array,
    e: int,
    count: int,
    left: Array,
    packed: Array,
    grad_right: Array,
    j: Any,
    heads: int,
) -> None:
    """Write left + right and the log-sum-exp of a batch's edges; ask for the next batch's."""
    last = len(index) - 1
    for q in range(count):
        i, soon = np.uint64(index[e + q]), np.uint64(index[min(e + q + BATCH, last)])
        ask_row(packed, soon, 3 * heads)
        ask_row(grad_right, soon, heads)
        for h in range(heads):
            total[h, q] = left[j, h] + packed[i, np.uint64(h)]
            lse[h, q] = packed[i, np.uint64(h) + np.uint64(heads)]


@callee
def _weigh(weight: Array, steep: Array, kept: Array, slope: Any, count: int) -> None:
    """Turn sums and log-sum-exps into softmax weights, twice, and the slopes of leaky_relu."""
    zero, one = weight.dtype.type(0), weight.dtype.type(1)
    for h in range(weight.shape[0]):
        for q in range(count, padded(count)):
            weight[h, q], steep[h, q] = zero, zero
        for q in range(padded(count)):
            value = weight[h, q]
            factor = one if value > 0 else slope
            weight[h, q] = exp_of(value * factor - steep[h, q])
            kept[h, q], steep[h, q] = weight[h, q], factor


@callee
def _share(
    weight: Array,
    steep: Array,
    kept: Array,
    dot: Array,
    index: Array,
    e: int,
    count: int,
    packed: Array,
    outputs: tuple[Array, Array, Array, Array],
    j: Any,
    heads: int,
) -> None:
    """Turn <grad, z> into the gradient of left + right, and add it to both."""
    _, grad_left, _, grad_right = outputs
    for q in range(count):
        i = np.uint64(index[e + q])
        for h in range(heads):
            delta = packed[i, np.uint64(h) + np.uint64(2 * heads)]
            value = (kept[h, q] * dot[h, q] - weight[h, q] * delta) * steep[h, q]
            dot[h, q] = value
            grad_left[j, h] += value
            grad_right[i, h] += value

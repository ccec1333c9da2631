"""Dot-product attention for CPU, compiled by Numba.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch. A thread owns the rows (or columns) that it writes, so results do not depend on the number of
threads; backward walks columns for key and value, then rows for query.
"""
# ruff: noqa: PLR0913, C901 - kernel arguments are flat, and loops are written out

from typing import Any

import numpy as np

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
    optional,
)
from siafu.ops.contract import DotBlock, DotGrads, RowGrads, Softmax, Turned
from siafu.ops.csr_numba import _equal_edges
from siafu.ops.numba_jit import callee, kernel
from siafu.ops.threads import num_chunks, run_chunks

__all__ = ["DTYPES", "attend_grad_into", "attend_into"]


def attend_into(block: DotBlock, state: Softmax) -> None:
    """See `contract.DotKernels`."""
    if state.total_MHD.numel() == 0 or len(block.index) == 0:
        return
    indptr, index, query, key, value = (t.numpy() for t in block[:5])
    bias, scale = optional(block.bias_EH, key), key.dtype.type(block.scale)
    drop, shape = drop_arrays(block.drop, key.dtype), fixed_shape(*key.shape[1:])
    arrays = (state.top_MH.numpy(), state.weight_MH.numpy(), state.total_MHD.numpy())

    def work(lo: int, hi: int) -> None:
        _attend_rows(indptr, index, query, key, value, bias, scale, arrays, drop, (lo, hi), *shape)

    run_chunks(work, _equal_edges(indptr, num_chunks(len(index) * key[0:1].size)))


def attend_grad_into(block: DotBlock, back: Turned, rows: RowGrads, grads: DotGrads) -> None:
    """See `contract.DotKernels`."""
    if block.key_CHD.numel() == 0 or len(block.index) == 0:
        grads.key_CHD.zero_()
        grads.value_CHD.zero_()
        if grads.bias_EH is not None:
            grads.bias_EH.zero_()
        return
    indptr, index, query, key, value = (t.numpy() for t in block[:5])
    turned, column = back.indptr.numpy(), back.index.numpy()
    order = column[:0] if back.order is None else back.order.numpy()
    bias, grad_bias = optional(block.bias_EH, key), optional(grads.bias_EH, key)
    scale, drop = key.dtype.type(block.scale), drop_arrays(block.drop, key.dtype)
    known = rows.lse_MH.numpy(), rows.grad_MHD.numpy(), rows.delta_MH.numpy()
    tensors, shape = (query, key, value), fixed_shape(*key.shape[1:])
    outputs = grads.key_CHD.numpy(), grads.value_CHD.numpy()
    grad_query, chunks = grads.query_MHD.numpy(), num_chunks(len(index) * key[0:1].size)

    def columns(lo: int, hi: int) -> None:
        _grad_columns(
            turned, column, order, tensors, bias, scale, known, outputs, drop, (lo, hi), *shape
        )

    def own_rows(lo: int, hi: int) -> None:
        _grad_rows(
            indptr,
            index,
            tensors,
            bias,
            scale,
            known,
            (grad_query, grad_bias),
            drop,
            (lo, hi),
            *shape,
        )

    run_chunks(columns, _equal_edges(turned, chunks))
    run_chunks(own_rows, _equal_edges(indptr, chunks))


@callee
def _flat(x: Array) -> Any:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


@callee
def _dots(
    out: Array,
    index: Array,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    i: Any,
    heads: int,
    d: int,
) -> None:
    """Write out[h, q] = <x of row index[e + q], own row i>."""
    last = len(index) - 1
    for q in range(count):
        j = np.uint64(index[e + q])
        ask_row(flat, np.uint64(index[min(e + q + 4, last)]), heads * d)
        for h in range(heads):
            summed = x.dtype.type(0)
            for f in range(d):
                summed += x[j, h, f] * own[i, h, f]
            out[h, q] = summed


@kernel
def _attend_rows(
    indptr: Array,
    index: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array,
    scale: Any,
    state: tuple[Array, Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: tuple[int, ...] | None,
) -> None:
    H = key.shape[1] if heads is None else len(heads)
    D = key.shape[2] if tiles is None else len(tiles) * TILE
    score = np.empty((H, BATCH), key.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    flat_key, flat_value = _flat(key), _flat(value)
    for row in range(span[0], span[1]):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)
            _dots(score, index, e, count, key, flat_key, query, i, H, D)
            for h in range(H):
                for q in range(count):
                    score[h, q] *= scale
                    if len(bias) > 0:
                        score[h, q] += bias[np.uint64(e + q), h]
            fold_scores(score, state, i, count, D)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(score, ids, words, count, drop)
            add_rows(score, index, e, count, value, flat_value, state[2], i, H, D)
            e += count


@kernel
def _grad_columns(
    indptr: Array,
    index: Array,
    order: Array,
    tensors: tuple[Array, Array, Array],
    bias: Array,
    scale: Any,
    known: tuple[Array, Array, Array],
    outputs: tuple[Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: tuple[int, ...] | None,
) -> None:
    """Walk source columns: each owns the gradients of its key and value."""
    query, key, value = tensors
    lse, grad, delta = known
    grad_key, grad_value = outputs
    H = key.shape[1] if heads is None else len(heads)
    D = key.shape[2] if tiles is None else len(tiles) * TILE
    weight, kept = np.empty((H, BATCH), key.dtype), np.empty((H, BATCH), key.dtype)
    dot = np.empty((H, BATCH), key.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    flat_query, flat_grad = _flat(query), _flat(grad)
    for column in range(span[0], span[1]):
        j = np.uint64(column)
        grad_key[j] = 0
        grad_value[j] = 0
        e, end = indptr[column], indptr[column + 1]
        while e < end:
            count = min(BATCH, end - e)
            _dots(weight, index, e, count, query, flat_query, key, j, H, D)
            for q in range(count):
                i = np.uint64(index[e + q])
                for h in range(H):
                    score = weight[h, q] * scale
                    if len(bias) > 0:
                        score += bias[np.uint64(order[e + q]), h]
                    weight[h, q] = exp_of(score - lse[i, h])
                    kept[h, q] = weight[h, q]
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][j], drop[4][index[e + q]]
                drop_weights(kept, ids, words, count, drop)
            dot_and_add(kept, dot, index, e, count, grad, flat_grad, (value, grad_value), j, H, D)
            for q in range(count):
                i = np.uint64(index[e + q])
                for h in range(H):
                    dot[h, q] = scale * (kept[h, q] * dot[h, q] - weight[h, q] * delta[i, h])
            add_rows(dot, index, e, count, query, flat_query, grad_key, j, H, D)
            e += count


@kernel
def _grad_rows(
    indptr: Array,
    index: Array,
    tensors: tuple[Array, Array, Array],
    bias: Array,
    scale: Any,
    known: tuple[Array, Array, Array],
    outputs: tuple[Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: tuple[int, ...] | None,
) -> None:
    """Walk destination rows: each owns the gradients of its query and of its edges' biases."""
    query, key, value = tensors
    lse, grad, delta = known
    grad_query, grad_bias = outputs
    H = key.shape[1] if heads is None else len(heads)
    D = key.shape[2] if tiles is None else len(tiles) * TILE
    weight, kept = np.empty((H, BATCH), key.dtype), np.empty((H, BATCH), key.dtype)
    dot = np.empty((H, BATCH), key.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    flat_key, flat_value = _flat(key), _flat(value)
    for row in range(span[0], span[1]):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)
            _dots(weight, index, e, count, key, flat_key, query, i, H, D)
            for q in range(count):
                for h in range(H):
                    score = weight[h, q] * scale
                    if len(bias) > 0:
                        score += bias[np.uint64(e + q), h]
                    weight[h, q] = exp_of(score - lse[i, h])
                    kept[h, q] = weight[h, q]
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(kept, ids, words, count, drop)
            _dots(dot, index, e, count, value, flat_value, grad, i, H, D)
            for q in range(count):
                for h in range(H):
                    dot[h, q] = kept[h, q] * dot[h, q] - weight[h, q] * delta[i, h]
                    if len(bias) > 0:
                        grad_bias[np.uint64(e + q), h] = dot[h, q]
                    dot[h, q] *= scale
            add_rows(dot, index, e, count, key, flat_key, grad_query, i, H, D)
            e += count

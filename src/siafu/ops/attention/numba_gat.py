"""GAT's attention for CPU, compiled by Numba.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch, P buffers. Results do not depend on the number of threads: a thread owns the rows it writes,
and what columns add to rows goes to a number of buffers fixed by the shape.
"""
# ruff: noqa: PLR0913, C901 - kernel arguments are flat, and loops are written out

from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.ops.attention.numba_batch import (
    BATCH,
    DTYPES,
    TILE,
    Array,
    Drop,
    Tiles,
    ask_row,
    dot_and_add,
    drop_arrays,
    drop_weights,
    edge_number,
    exp_of,
    fixed_shape,
    flat_of,
    num_parts,
    optional,
    padded,
)
from siafu.ops.attention.numba_fold import fold_rows
from siafu.ops.attention.numba_kinds import GatRule
from siafu.ops.contract import AttentionBlock, AttentionGrads, RowGrads, Softmax, Turned
from siafu.ops.csr.numba import _equal_edges
from siafu.ops.numba_jit import callee, kernel
from siafu.ops.threads import run_chunks


class GatAttention:
    """GAT's kernels."""

    DTYPES = DTYPES

    def fold_into(self, block: AttentionBlock, state: Softmax) -> None:
        """See `contract.AttentionKernels`."""
        fold_rows(GatRule(block.sources[0].numpy().dtype.type(block.factor)), block, state)

    def grad_into(
        self, block: AttentionBlock, back: Turned, rows: RowGrads, grads: AttentionGrads
    ) -> None:
        """See `contract.AttentionKernels`."""
        if rows.grad_MHD.numel() == 0 or len(block.index) == 0:
            if grads.edge is not None:
                grads.edge.zero_()
            return
        _into_columns(block, back, rows, grads)


def _into_columns(
    block: AttentionBlock, back: Turned, rows: RowGrads, grads: AttentionGrads
) -> None:
    indptr, index, order = back.indptr.numpy(), back.index.numpy(), optional(back.order)
    z, left = (t.numpy() for t in block.sources)
    edge, grad_edge = optional(block.edge), optional(grads.edge)
    drop, shape = drop_arrays(block.drop, z.dtype), fixed_shape(*z.shape[1:])
    packed, grad = _pack(block.rows[0], rows), rows.grad_MHD.numpy()
    parts = num_parts(len(index), len(grad), len(index) * grad[0:1].size)
    bounds = _equal_edges(indptr, parts)
    right_PMH = torch.zeros(parts, *grads.rows[0].shape, dtype=grads.rows[0].dtype)
    right = right_PMH.numpy()
    grad_z, grad_left = (t.numpy() for t in grads.sources)

    def work(part: int, _: int) -> None:
        _grad_columns(
            indptr,
            index,
            order,
            z,
            left,
            edge,
            z.dtype.type(block.factor),
            packed,
            grad,
            flat_of(grad),
            grad_edge,
            (grad_z, grad_left, right[part]),
            drop,
            (bounds[part], bounds[part + 1]),
            *shape,
        )

    run_chunks(work, range(parts + 1))
    for part_MH in right_PMH:
        grads.rows[0].add_(part_MH)


def _pack(right_MH: Tensor, rows: RowGrads) -> Array:
    """Return right, log-sum-exp and delta of a row side by side: one cache line at 4 heads."""
    line = TILE * -(-3 * right_MH.size(1) // TILE)
    packed = right_MH.new_empty(len(right_MH), line)
    torch.cat([right_MH, rows.lse_MH, rows.delta_MH], dim=1, out=packed[:, : 3 * right_MH.size(1)])
    return packed.numpy()


@kernel
def _grad_columns(
    indptr: Array,
    index: Array,
    order: Array | None,
    z: Array,
    left: Array,
    edge: Array | None,
    slope: Any,
    packed: Array,
    grad: Array,
    flat: Array,
    grad_edge: Array | None,
    outputs: tuple[Array, Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Walk source columns: each owns its gradients, and adds to the rows in its part's buffer."""
    H = z.shape[1] if heads is None else len(heads)
    grad_z, _, grad_right = outputs
    weight, steep = np.empty((H, BATCH), z.dtype), np.empty((H, BATCH), z.dtype)
    kept, dot = np.empty((H, BATCH), z.dtype), np.empty((H, BATCH), z.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for column in range(span[0], span[1]):
        j = np.uint64(column)
        e, end = indptr[column], indptr[column + 1]
        while e < end:
            count = min(BATCH, end - e)
            _sums(weight, steep, index, e, count, left, packed, grad_right, j, H)
            if edge is not None:
                for q in range(count):
                    n = edge_number(order, e + q)
                    for h in range(H):
                        weight[h, q] += edge[n, h]
            _weigh(weight, steep, kept, slope, count)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][j], drop[4][index[e + q]]
                drop_weights(kept, ids, words, count, drop)
            dot_and_add(kept, dot, index, e, count, grad, flat, (z, grad_z), j, H, tiles)
            _share(weight, steep, kept, dot, index, e, count, packed, outputs, j, H)
            if grad_edge is not None:
                for q in range(count):
                    n = edge_number(order, e + q)
                    for h in range(H):
                        grad_edge[n, h] = dot[h, q]
            e += count


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
    outputs: tuple[Array, Array, Array],
    j: Any,
    heads: int,
) -> None:
    """Turn <grad, z> into the gradient of left + right, and add it to both."""
    _, grad_left, grad_right = outputs
    for q in range(count):
        i = np.uint64(index[e + q])
        for h in range(heads):
            delta = packed[i, np.uint64(h) + np.uint64(2 * heads)]
            value = (kept[h, q] * dot[h, q] - weight[h, q] * delta) * steep[h, q]
            dot[h, q] = value
            grad_left[j, h] += value
            grad_right[i, h] += value

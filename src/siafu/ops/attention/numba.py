"""GATv2 and dot-product attention for CPU, compiled by Numba.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch, P parts. A thread owns the columns (then the rows) that it writes: backward walks columns
for sources, then rows for the rest. What rows add to shared tensors goes to a number of buffers
fixed by the shape, so results do not depend on the number of threads.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from typing import Any

import numpy as np
import torch

from siafu.ops.attention.numba_batch import (
    BATCH,
    DTYPES,
    Array,
    Drop,
    Tiles,
    add_edge_dots,
    dot_and_add,
    dots,
    drop_arrays,
    drop_weights,
    exp_of,
    fixed_shape,
    flat_of,
    optional,
    padded,
)
from siafu.ops.attention.numba_fold import fold_rows
from siafu.ops.attention.numba_kinds import (
    DotRule,
    GatV2Rule,
    Many,
    Rule,
    scores,
    spread_columns,
    spread_rows,
)
from siafu.ops.contract import AttentionBlock, AttentionGrads, RowGrads, Softmax, Turned
from siafu.ops.csr.numba import _equal_edges
from siafu.ops.numba_jit import callee, kernel
from siafu.ops.threads import SMALL_WORK, num_chunks, run_chunks

PARTS = 64
"""Pieces that rows are cut into when each keeps a sum of its own for shared tensors."""


class VectorAttention:
    """The kernels of one kind whose ends are vectors."""

    DTYPES = DTYPES

    def __init__(self, rule: type[GatV2Rule] | type[DotRule]) -> None:
        self._rule = rule

    def fold_into(self, block: AttentionBlock, state: Softmax) -> None:
        """See `contract.AttentionKernels`."""
        fold_rows(self._made(block), block, state)

    def grad_into(
        self, block: AttentionBlock, back: Turned, rows: RowGrads, grads: AttentionGrads
    ) -> None:
        """See `contract.AttentionKernels`."""
        if rows.grad_MHD.numel() == 0 or len(block.index) == 0:
            if grads.edge is not None:
                grads.edge.zero_()
            return
        _into_columns(self._made(block), block, back, rows, grads)
        _into_rows(self._made(block), block, rows, grads)

    def _made(self, block: AttentionBlock) -> Rule:
        return self._rule(block.sources[0].numpy().dtype.type(block.factor))


def _into_columns(
    rule: Rule, block: AttentionBlock, back: Turned, rows: RowGrads, grads: AttentionGrads
) -> None:
    indptr, index, order = back.indptr.numpy(), back.index.numpy(), optional(back.order)
    own, value, x = (t.numpy() for t in (block.sources[0], block.sources[-1], block.rows[0]))
    shared, edge = tuple(t.numpy() for t in block.shared), optional(block.edge)
    in_value = edge if isinstance(rule, DotRule) else None
    known = rows.lse_MH.numpy(), rows.grad_MHD.numpy(), rows.delta_MH.numpy()
    flats = flat_of(x), flat_of(known[1])
    outputs = grads.sources[0].numpy(), grads.sources[-1].numpy()
    drop, shape = drop_arrays(block.drop, x.dtype), fixed_shape(*x.shape[1:])

    def work(lo: int, hi: int) -> None:
        _grad_columns(
            rule,
            indptr,
            index,
            order,
            (own, value, x),
            flats,
            shared,
            edge,
            in_value,
            known,
            outputs,
            drop,
            (lo, hi),
            *shape,
        )

    run_chunks(work, _equal_edges(indptr, num_chunks(len(index) * x[0:1].size)))


def _into_rows(rule: Rule, block: AttentionBlock, rows: RowGrads, grads: AttentionGrads) -> None:
    indptr, index = block.indptr.numpy(), block.index.numpy()
    x, value, own = (t.numpy() for t in (block.sources[0], block.sources[-1], block.rows[0]))
    shared, edge = tuple(t.numpy() for t in block.shared), optional(block.edge)
    in_value = edge if isinstance(rule, DotRule) else None
    known = rows.lse_MH.numpy(), rows.grad_MHD.numpy(), rows.delta_MH.numpy()
    flats = flat_of(x), flat_of(value)
    drop, shape = drop_arrays(block.drop, x.dtype), fixed_shape(*x.shape[1:])
    parts = 1 if len(index) * x[0:1].size < SMALL_WORK else PARTS
    bounds = _equal_edges(indptr, parts)
    buffers = [torch.zeros(parts, *t.shape, dtype=t.dtype) for t in grads.shared]
    sums = [b.numpy() for b in buffers]
    grad_own, grad_edge = grads.rows[0].numpy(), optional(grads.edge)

    def work(part: int, _: int) -> None:
        _grad_rows(
            rule,
            indptr,
            index,
            (x, value, own),
            flats,
            shared,
            edge,
            in_value,
            known,
            (grad_own, tuple(s[part] for s in sums)),
            grad_edge,
            drop,
            (bounds[part], bounds[part + 1]),
            *shape,
        )

    run_chunks(work, range(parts + 1))
    for total, buffer in zip(grads.shared, buffers, strict=True):
        for part in buffer:
            total.add_(part)


@callee
def _weigh(
    weight: Array, kept: Array, lse: Array, index: Array | None, at: Any, count: int, e: int
) -> None:
    """Turn scores into softmax weights, twice; the row is `at`, or with an index each edge's."""
    low = weight.dtype.type(-np.inf)
    for q in range(count):
        i = at if index is None else np.uint64(index[e + q])
        for h in range(weight.shape[0]):
            weight[h, q] -= lse[i, h]
    for h in range(weight.shape[0]):
        for q in range(count, padded(count)):
            weight[h, q] = low
        for q in range(padded(count)):
            value = exp_of(weight[h, q])
            weight[h, q], kept[h, q] = value, value


@kernel
def _grad_columns(
    rule: Rule,
    indptr: Array,
    index: Array,
    order: Array | None,
    tensors: Many,
    flats: Many,
    shared: Many,
    edge: Array | None,
    in_value: Array | None,
    known: tuple[Array, Array, Array],
    outputs: tuple[Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Walk source columns: each owns the gradients of its tensors."""
    own, value, x = tensors
    lse, grad, delta = known
    H = x.shape[1] if heads is None else len(heads)
    weight, kept = np.empty((H, BATCH), x.dtype), np.empty((H, BATCH), x.dtype)
    dot = np.empty((H, BATCH), x.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for column in range(span[0], span[1]):
        j = np.uint64(column)
        e, end = indptr[column], indptr[column + 1]
        while e < end:
            count = min(BATCH, end - e)
            scores(
                rule, weight, index, order, e, count, x, flats[0], own, j, shared, edge, H, tiles
            )
            _weigh(weight, kept, lse, index, j, count, e)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][j], drop[4][index[e + q]]
                drop_weights(kept, ids, words, count, drop)
            target = value, outputs[1]
            dot_and_add(kept, dot, index, e, count, grad, flats[1], target, j, H, tiles)
            if in_value is not None:
                add_edge_dots(dot, index, order, e, count, in_value, grad, j, H, tiles)
            for q in range(count):
                i = np.uint64(index[e + q])
                for h in range(H):
                    dot[h, q] = kept[h, q] * dot[h, q] - weight[h, q] * delta[i, h]
            spread_columns(
                rule, dot, index, order, e, count, x, flats[0], own, j, shared, edge, outputs[0],
                H, tiles,
            )  # fmt: skip
            e += count


@kernel
def _grad_rows(
    rule: Rule,
    indptr: Array,
    index: Array,
    tensors: Many,
    flats: Many,
    shared: Many,
    edge: Array | None,
    in_value: Array | None,
    known: tuple[Array, Array, Array],
    outputs: tuple[Array, Many],
    grad_edge: Array | None,
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Walk destination rows: each owns the gradients of its tensor and of its edges' terms."""
    x, value, own = tensors
    lse, grad, delta = known
    H = x.shape[1] if heads is None else len(heads)
    weight, kept = np.empty((H, BATCH), x.dtype), np.empty((H, BATCH), x.dtype)
    dot = np.empty((H, BATCH), x.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for row in range(span[0], span[1]):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)
            scores(rule, weight, index, None, e, count, x, flats[0], own, i, shared, edge, H, tiles)
            _weigh(weight, kept, lse, None, i, count, e)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(kept, ids, words, count, drop)
            dots(dot, index, e, count, value, flats[1], grad, i, H, tiles)
            if in_value is not None:
                add_edge_dots(dot, index, None, e, count, in_value, grad, i, H, tiles)
            for h in range(H):
                for q in range(count):
                    dot[h, q] = kept[h, q] * dot[h, q] - weight[h, q] * delta[i, h]
            spread_rows(
                rule, dot, kept, index, e, count, x, flats[0], own, grad, i, shared, edge, outputs,
                grad_edge, H, tiles,
            )  # fmt: skip
            e += count

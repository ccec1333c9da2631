"""Attentions for CPU, compiled by Numba: the forward pass of every kind.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch. A thread owns the rows that it writes, so results do not depend on the number of threads.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

import numpy as np

from siafu.ops.attention.numba_batch import (
    BATCH,
    Array,
    Drop,
    Tiles,
    add_edge_rows,
    add_rows,
    drop_arrays,
    drop_weights,
    fixed_shape,
    flat_of,
    fold_scores,
    optional,
)
from siafu.ops.attention.numba_kinds import GatRule, Many, Rule, scores
from siafu.ops.contract import AttentionBlock, Softmax
from siafu.ops.csr.numba import _equal_edges
from siafu.ops.numba_jit import kernel
from siafu.ops.threads import num_chunks, run_chunks


def fold_rows(rule: Rule, block: AttentionBlock, state: Softmax) -> None:
    """Fold a block into the state; `rule` says how edges are scored."""
    if state.total_MHD.numel() == 0 or len(block.index) == 0:
        return
    indptr, index = block.indptr.numpy(), block.index.numpy()
    sources, own = [t.numpy() for t in block.sources], block.rows[0].numpy()
    # GAT scores by its second tensor and sums its first, dot product the other way round
    x, value = (sources[1], sources[0]) if isinstance(rule, GatRule) else (sources[0], sources[-1])
    shared, edge = tuple(t.numpy() for t in block.shared), optional(block.edge)
    in_value = edge if len(sources) == 2 and not isinstance(rule, GatRule) else None
    drop, shape = drop_arrays(block.drop, value.dtype), fixed_shape(*value.shape[1:])
    arrays = (state.top_MH.numpy(), state.weight_MH.numpy(), state.total_MHD.numpy())
    tensors = x, flat_of(x), own, value, flat_of(value)

    def work(lo: int, hi: int) -> None:
        _fold(rule, indptr, index, *tensors, shared, edge, in_value, arrays, drop, (lo, hi), *shape)

    run_chunks(work, _equal_edges(indptr, num_chunks(len(index) * value[0:1].size)))


@kernel
def _fold(
    rule: Rule,
    indptr: Array,
    index: Array,
    x: Array,
    flat_x: Array,
    own: Array,
    value: Array,
    flat_value: Array,
    shared: Many,
    edge: Array | None,
    in_value: Array | None,
    state: tuple[Array, Array, Array],
    drop: Drop,
    span: tuple[int, int],
    heads: tuple[int, ...] | None,
    tiles: Tiles,
) -> None:
    """Score the edges of each row a batch at a time; `in_value` is the part of values on edges."""
    H = value.shape[1] if heads is None else len(heads)
    score = np.empty((H, BATCH), value.dtype)
    ids, words = np.empty((2, BATCH), np.int64), np.empty((4, BATCH), np.uint32)
    for row in range(span[0], span[1]):
        i = np.uint64(row)
        e, end = indptr[row], indptr[row + 1]
        while e < end:
            count = min(BATCH, end - e)
            scores(rule, score, index, None, e, count, x, flat_x, own, i, shared, edge, H, tiles)
            fold_scores(score, state, i, count, tiles)
            if drop[0] > 0:
                for q in range(count):
                    ids[0, q], ids[1, q] = drop[3][index[e + q]], drop[4][i]
                drop_weights(score, ids, words, count, drop)
            add_rows(score, index, e, count, value, flat_value, state[2], i, H, tiles)
            if in_value is not None:
                add_edge_rows(score, e, count, in_value, state[2], i, H, tiles)
            e += count

"""Arithmetic of a batch of edges for attention on CPU: scores by kind, products, dropped weights.

A kind reaches compiled code as three arguments, `gat`, `gatv2` and `dot`: the one in charge is its
slope or scale, the others are None. Branches are `if gat is not None`, without an else: what is
None at compile time is left out before types are checked.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch. A batch's numbers lie in [H, B] arrays: a loop over B is vector code at any number of heads.
"""
# ruff: noqa: PLR0913, C901 - kernel arguments are flat, and loops are written out

import math
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.contract import Draw, EdgeDrop
from siafu.ops.numba_jit import callee, line_width, prefetch
from siafu.ops.random.numba import philox4
from siafu.ops.random.reference import key_of
from siafu.ops.threads import SMALL_WORK

DTYPES = frozenset({torch.float32, torch.float64})

Array = NDArray[Any]
Drop = tuple[Any, Any, tuple[Any, Any], Array, Array, int]
Tiles = tuple[int, ...] | None
"""Its length is D / TILE: a type, so that every function is compiled for that width."""

BATCH = 32
LANES = 8
"""Batches are filled up to a multiple of this, so that exp runs in whole vectors."""

TILE = 16
FIXED_HEADS = (1, 2, 4, 8)
WIDEST = 512
"""H x D up to which common shapes get machine code of their own."""

AHEAD = 8
"""Edges between the row asked for and the row used."""

MOST_PARTS = 32

EXP_LOW = np.float32(-87)
LOG2_E = np.float32(1.44269504088896341)
HALF = np.float32(0.5)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Cephes' expf
E0, E1, E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E4, E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)

_intrinsic: Any = intrinsic


def fixed_shape(heads: int, width: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return tuples that tell the compiler H and D / TILE by their lengths; None: at run time."""
    if heads in FIXED_HEADS and width > 0 and width % TILE == 0 and heads * width <= WIDEST:
        return (0,) * heads, (0,) * (width // TILE)
    return None, None


def num_parts(num_edges: int, num_rows: int, elements: int) -> int:
    """Return how many buffers GAT's gradients of rows are summed in while columns are walked.

    A matter of the shape alone: with the number of threads the order of additions would change.
    With 8 edges per row or more, the buffers stay below half the size of a number for each edge.
    """
    if elements < SMALL_WORK:
        return 1
    return min(MOST_PARTS, max(4, num_edges // (2 * max(1, num_rows))))


def drop_arrays(drop: EdgeDrop | None, dtype: Any) -> Drop:
    """Return (threshold, scale, key, ids_C, ids_M, first head); a threshold of 0 drops nothing."""
    if drop is None:
        none = np.zeros(1, np.int64)
        return np.uint64(0), dtype.type(1), (np.uint32(0), np.uint32(0)), none, none, 0
    words = key_of(Draw(drop.key, drop.ids_C, held=drop.held))
    key = (np.uint32(words[0]), np.uint32(words[1]))
    threshold, scale = np.uint64(drop.threshold), dtype.type(drop.scale)
    return threshold, scale, key, drop.ids_C.numpy(), drop.ids_M.numpy(), drop.first_head


def optional(tensor: Tensor | None) -> Array | None:
    """Return the array; None has machine code of its own, without the term."""
    return None if tensor is None else tensor.numpy()


def flat_of(x: Array) -> Array:
    """Return [N, H, D] as a matrix."""
    return x.reshape(len(x), -1)


def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


float_of_bits: Any = _intrinsic(_float_of_bits)


@callee
def _exp32(x: Any) -> Any:
    """Return e^x within 2e-7 of it for x <= 0, without a branch; NaN stays NaN."""
    kept = EXP_LOW if x < EXP_LOW else x
    k = np.floor(kept * LOG2_E + HALF)
    r = kept - k * LN2_HIGH - k * LN2_LOW
    p = ((((E0 * r + E1) * r + E2) * r + E3) * r + E4) * r + E5
    value = (p * r * r + r + np.float32(1)) * float_of_bits(
        (np.int32(k) + np.int32(127)) << np.int32(23)
    )
    return np.float32(0) if x < EXP_LOW else value


def exp_of(x: Any) -> Any:
    """Return e^x: a polynomial in float32, the exact function in float64."""
    return math.exp(x)


def _exp_of(x: Any) -> Any:
    def short(x: Any) -> Any:
        return _exp32(x)

    def exact(x: Any) -> Any:
        return math.exp(x)

    return short if x == types.float32 else exact


overload(exp_of)(_exp_of)


@callee
def width_of(x: Array, tiles: Tiles) -> Any:
    """Return D, a constant to the compiler where the tiles tell it."""
    return x.shape[2] if tiles is None else len(tiles) * TILE


@callee
def padded(count: int) -> Any:
    """Return `count` rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@callee
def ask_row(x: Array, row: Any, width: int) -> None:
    """Ask for the cache lines of a row that will be needed soon."""
    for f in range(0, width, line_width(x)):
        prefetch(x, row, f)


@callee
def add_rows(
    weight: Array,
    index: Array,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    out: Array,
    i: Any,
    heads: int,
    tiles: Tiles,
) -> None:
    """Add weight[h, q] * x[index[e + q], h] over a batch to out[i, h]; `flat` is x as a matrix."""
    d = width_of(x, tiles)
    last = len(index) - 1
    q = 0
    # four edges per step: a quarter of the loads and stores of the output row
    while q + 4 <= count:
        for step in range(4):
            ask_row(flat, np.uint64(index[min(e + q + AHEAD + step, last)]), heads * d)
        j0, j1 = np.uint64(index[e + q]), np.uint64(index[e + q + 1])
        j2, j3 = np.uint64(index[e + q + 2]), np.uint64(index[e + q + 3])
        for h in range(heads):
            w0, w1, w2, w3 = weight[h, q], weight[h, q + 1], weight[h, q + 2], weight[h, q + 3]
            for f in range(d):
                out[i, h, f] += (w0 * x[j0, h, f] + w1 * x[j1, h, f]) + (
                    w2 * x[j2, h, f] + w3 * x[j3, h, f]
                )
        q += 4
    while q < count:
        ask_row(flat, np.uint64(index[min(e + q + AHEAD, last)]), heads * d)
        j0 = np.uint64(index[e + q])
        for h in range(heads):
            w0 = weight[h, q]
            for f in range(d):
                out[i, h, f] += w0 * x[j0, h, f]
        q += 1


@callee
def dots(
    out: Array,
    index: Array,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    heads: int,
    tiles: Tiles,
) -> None:
    """Write out[h, q] = <x of row index[e + q], own row at>; `flat` is x as a matrix."""
    d = width_of(x, tiles)
    last = len(index) - 1
    for q in range(count):
        j = np.uint64(index[e + q])
        ask_row(flat, np.uint64(index[min(e + q + AHEAD, last)]), heads * d)
        for h in range(heads):
            summed = x.dtype.type(0)
            for f in range(d):
                summed += x[j, h, f] * own[at, h, f]
            out[h, q] = summed


@callee
def edge_number(order: Array | None, e: int) -> Any:
    """Return the number of the edge at place e; without an order they are the same."""
    return np.uint64(e) if order is None else np.uint64(order[e])


@callee
def add_edge_dots(
    out: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    edge: Array,
    rows: Array,
    at: Any,
    heads: int,
    tiles: Tiles,
) -> None:
    """Add <vector of the edge at e + q, its row> to out[h, q]; without an order the row is `at`."""
    d = width_of(edge, tiles)
    for q in range(count):
        n = edge_number(order, e + q)
        i = at if order is None else np.uint64(index[e + q])
        for h in range(heads):
            summed = edge.dtype.type(0)
            for f in range(d):
                summed += edge[n, h, f] * rows[i, h, f]
            out[h, q] += summed


@callee
def add_edge_rows(
    weight: Array, e: int, count: int, edge: Array, out: Array, i: Any, heads: int, tiles: Tiles
) -> None:
    """Add weight[h, q] * vector of edge e + q over a batch to out[i, h]."""
    d = width_of(edge, tiles)
    for q in range(count):
        n = np.uint64(e + q)
        for h in range(heads):
            factor = weight[h, q]
            for f in range(d):
                out[i, h, f] += factor * edge[n, h, f]


@callee
def bent(u: Any, slope: Any) -> Any:
    """Return leaky_relu(u)."""
    return u if u > 0 else u * slope


@callee
def scores(
    out: Array,
    gat: Any,
    gatv2: Any,
    dot: Any,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    att: Any,
    edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    """Write the scores out[h, q] of the edges from place e on.

    `own` at row `at` is the end that the edges share, `x` the end that is gathered (`flat` is x as
    a matrix). Kinds are symmetric in both, so edges may be those of a row or of a source column.
    """
    last = len(index) - 1
    if gat is not None:
        for q in range(count):
            j = np.uint64(index[e + q])
            for h in range(heads):
                out[h, q] = x[j, h] + own[at, h]
        if edge is not None:
            for q in range(count):
                n = edge_number(order, e + q)
                for h in range(heads):
                    out[h, q] += edge[n, h]
        for h in range(heads):
            for q in range(count):
                out[h, q] = bent(out[h, q], gat)
    if gatv2 is not None:
        d = width_of(x, tiles)
        for q in range(count):
            j = np.uint64(index[e + q])
            ask_row(flat, np.uint64(index[min(e + q + AHEAD, last)]), heads * d)
            for h in range(heads):
                summed = x.dtype.type(0)
                if edge is None:
                    for f in range(d):
                        summed += att[h, f] * bent(x[j, h, f] + own[at, h, f], gatv2)
                else:
                    n = edge_number(order, e + q)
                    for f in range(d):
                        u = x[j, h, f] + own[at, h, f] + edge[n, h, f]
                        summed += att[h, f] * bent(u, gatv2)
                out[h, q] = summed
    if dot is not None:
        dots(out, index, e, count, x, flat, own, at, heads, tiles)
        if edge is not None:
            # an edge's vector belongs to the key: its partner is the query, at the row's end
            query = own if order is None else x
            add_edge_dots(out, index, order, e, count, edge, query, at, heads, tiles)
        for h in range(heads):
            for q in range(count):
                out[h, q] *= dot


@callee
def weights(weight: Array, kept: Array, count: int) -> None:
    """Turn score - log-sum-exp into softmax weights, twice: one is for dropping."""
    low = weight.dtype.type(-np.inf)
    for h in range(weight.shape[0]):
        for q in range(count, padded(count)):
            weight[h, q] = low
        for q in range(padded(count)):
            value = exp_of(weight[h, q])
            weight[h, q], kept[h, q] = value, value


@callee
def drop_weights(weight: Array, ids: Array, words: Array, count: int, drop: Drop) -> None:
    """Multiply weight[h, q] by its draw, 0 or scale; ids[0] are of sources, ids[1] of rows."""
    threshold, scale, key, _, _, first_head = drop
    last_head = first_head + weight.shape[0]
    for block in range(first_head // 4, (last_head + 3) // 4):
        for q in range(count):
            first, second = ids[0, q], ids[1, q]
            high = ((first >> 32) & 0xFFFF) << 16 | ((second >> 32) & 0xFFFF)
            w0, w1, w2, w3 = philox4(
                np.uint32(first), np.uint32(second), np.uint32(high), np.uint32(block), key
            )
            words[0, q], words[1, q], words[2, q], words[3, q] = w0, w1, w2, w3
        for lane in range(max(0, first_head - 4 * block), min(4, last_head - 4 * block)):
            h = 4 * block + lane - first_head
            for q in range(count):
                kept = weight[h, q] * scale
                weight[h, q] = kept if np.uint64(words[lane, q]) >= threshold else scale * 0

"""What sets the kinds apart on CPU: how a batch of edges is scored, and where gradients go.

A kind reaches a kernel as a named tuple, and the compiler takes that kind's code: one skeleton
serves all. Kinds whose ends are vectors are symmetric, so a batch may be the edges of a row or of a
source column: `own` is the end that its edges share, `x` the end that is gathered.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, B edges of a
batch.
"""
# ruff: noqa: PLR0913 - kernel arguments are flat

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from siafu.ops.attention.numba_batch import (
    AHEAD,
    Array,
    Tiles,
    add_edge_dots,
    add_edge_rows,
    add_rows,
    ask_row,
    dots,
    edge_number,
    width_of,
)
from siafu.ops.numba_jit import callee

Rule = Any
Many = tuple[Array, ...]


class GatRule(NamedTuple):
    """See `kinds.Gat`."""

    slope: Any


class GatV2Rule(NamedTuple):
    """See `kinds.GatV2`."""

    slope: Any


class DotRule(NamedTuple):
    """See `kinds.DotProduct`."""

    scale: Any


def scores(
    rule: Rule,
    out: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    """Write the scores out[h, q] of the edges from place e on; compiled code alone calls this."""
    raise NotImplementedError


def spread_columns(
    rule: Rule,
    slip: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    grad_own: Array,
    heads: int,
    tiles: Tiles,
) -> None:
    """Add what scores' gradients slip[h, q] give to the source that is `at`."""
    raise NotImplementedError


def spread_rows(
    rule: Rule,
    slip: Array,
    kept: Array,
    index: Array,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    grad: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    grads: tuple[Array, Many],
    grad_edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    """Add what scores' gradients give to a row and shared tensors, and write its edges' own."""
    raise NotImplementedError


def _by_rule(generic: Callable[..., None], **made: Callable[..., None]) -> None:
    """Let the compiler replace `generic` by the function made for its first argument's kind."""

    def choose(rule: Any, *rest: Any) -> Any:
        if isinstance(rule, types.NamedTuple | types.NamedUniTuple):
            return made.get(rule.instance_class.__name__)
        return None

    overload(generic, strict=False, jit_options={"forceinline": True})(choose)


def _gat_scores(
    rule: Rule,
    out: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
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
            out[h, q] = _bent(out[h, q], rule.slope)


@callee
def _bent(u: Any, slope: Any) -> Any:
    return u if u > 0 else u * slope


def _gatv2_scores(
    rule: Rule,
    out: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    last, att, d = len(index) - 1, shared[0], width_of(x, tiles)
    for q in range(count):
        j = np.uint64(index[e + q])
        ask_row(flat, np.uint64(index[min(e + q + AHEAD, last)]), heads * d)
        for h in range(heads):
            summed = x.dtype.type(0)
            if edge is None:
                for f in range(d):
                    summed += att[h, f] * _bent(x[j, h, f] + own[at, h, f], rule.slope)
            else:
                n = edge_number(order, e + q)
                for f in range(d):
                    u = x[j, h, f] + own[at, h, f] + edge[n, h, f]
                    summed += att[h, f] * _bent(u, rule.slope)
            out[h, q] = summed


def _dot_scores(
    rule: Rule,
    out: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    dots(out, index, e, count, x, flat, own, at, heads, tiles)
    if edge is not None:
        # an edge's vector belongs to the key: its partner is the query, at the row's end
        query = own if order is None else x
        add_edge_dots(out, index, order, e, count, edge, query, at, heads, tiles)
    for h in range(heads):
        for q in range(count):
            out[h, q] *= rule.scale


def _gatv2_spread_columns(
    rule: Rule,
    slip: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    grad_own: Array,
    heads: int,
    tiles: Tiles,
) -> None:
    att, d = shared[0], width_of(x, tiles)
    for q in range(count):
        i = np.uint64(index[e + q])
        for h in range(heads):
            steep, flat_part = slip[h, q], slip[h, q] * rule.slope
            if edge is None:
                for f in range(d):
                    u = x[i, h, f] + own[at, h, f]
                    grad_own[at, h, f] += att[h, f] * (steep if u > 0 else flat_part)
            else:
                n = edge_number(order, e + q)
                for f in range(d):
                    u = x[i, h, f] + own[at, h, f] + edge[n, h, f]
                    grad_own[at, h, f] += att[h, f] * (steep if u > 0 else flat_part)


# a loop stores to one array: with two, the compiler gives up on vectors
def _gatv2_spread_rows(
    rule: Rule,
    slip: Array,
    kept: Array,
    index: Array,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    grad: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    grads: tuple[Array, Many],
    grad_edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    att, grad_own, grad_att = shared[0], grads[0], grads[1][0]
    d = width_of(x, tiles)
    for q in range(count):
        j, n = np.uint64(index[e + q]), np.uint64(e + q)
        for h in range(heads):
            steep, flat_part = slip[h, q], slip[h, q] * rule.slope
            if edge is None:
                for f in range(d):
                    u = x[j, h, f] + own[at, h, f]
                    grad_own[at, h, f] += att[h, f] * (steep if u > 0 else flat_part)
                for f in range(d):
                    u = x[j, h, f] + own[at, h, f]
                    grad_att[h, f] += u * (steep if u > 0 else flat_part)
            else:
                for f in range(d):
                    u = x[j, h, f] + own[at, h, f] + edge[n, h, f]
                    grad_own[at, h, f] += att[h, f] * (steep if u > 0 else flat_part)
                for f in range(d):
                    u = x[j, h, f] + own[at, h, f] + edge[n, h, f]
                    grad_att[h, f] += u * (steep if u > 0 else flat_part)
                if grad_edge is not None:
                    for f in range(d):
                        u = x[j, h, f] + own[at, h, f] + edge[n, h, f]
                        grad_edge[n, h, f] = att[h, f] * (steep if u > 0 else flat_part)


def _dot_spread_columns(
    rule: Rule,
    slip: Array,
    index: Array,
    order: Array | None,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    grad_own: Array,
    heads: int,
    tiles: Tiles,
) -> None:
    for h in range(heads):
        for q in range(count):
            slip[h, q] *= rule.scale
    add_rows(slip, index, e, count, x, flat, grad_own, at, heads, tiles)


def _dot_spread_rows(
    rule: Rule,
    slip: Array,
    kept: Array,
    index: Array,
    e: int,
    count: int,
    x: Array,
    flat: Array,
    own: Array,
    grad: Array,
    at: Any,
    shared: Many,
    edge: Array | None,
    grads: tuple[Array, Many],
    grad_edge: Array | None,
    heads: int,
    tiles: Tiles,
) -> None:
    grad_own, d = grads[0], width_of(x, tiles)
    for h in range(heads):
        for q in range(count):
            slip[h, q] *= rule.scale
    add_rows(slip, index, e, count, x, flat, grad_own, at, heads, tiles)
    if edge is not None:
        add_edge_rows(slip, e, count, edge, grad_own, at, heads, tiles)
    if grad_edge is not None:
        for q in range(count):
            n = np.uint64(e + q)
            for h in range(heads):
                of_query, of_grad = slip[h, q], kept[h, q]
                for f in range(d):
                    grad_edge[n, h, f] = of_query * own[at, h, f] + of_grad * grad[at, h, f]


_by_rule(scores, GatRule=_gat_scores, GatV2Rule=_gatv2_scores, DotRule=_dot_scores)
_by_rule(spread_columns, GatV2Rule=_gatv2_spread_columns, DotRule=_dot_spread_columns)
_by_rule(spread_rows, GatV2Rule=_gatv2_spread_rows, DotRule=_dot_spread_rows)

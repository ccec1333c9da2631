"""Attention folded over blocks of columns and over chunks of rows equals the whole."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from siafu.ops import (
    CSR,
    EdgeDraw,
    SoftmaxState,
    attend_reference,
    finish,
    fold_backward,
    fold_into,
)
from tests.unit.ops.attention_cases import (
    FLOAT32,
    FLOAT64,
    assert_equal,
    detached,
    draw_of,
    grad_like,
    inputs_of,
    make_csr,
    role,
    with_gradients,
)

DEGREES = [0, 3, 1, 0, 40, 5, 32, 33, 2, 0]


def column_blocks(csr, cuts):
    """Yield the columns of each block, its edges, and their numbers."""
    rows = csr.rows()
    for lo, hi in pairwise(cuts):
        edges = ((csr.index >= lo) & (csr.index < hi)).nonzero()[:, 0]
        counts = torch.bincount(rows[edges], minlength=csr.num_rows)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        yield slice(lo, hi), CSR(indptr, csr.index[edges] - lo, hi - lo), edges


def folded(kind, csr, inputs, drop, cuts, grad=None):
    """Return the output and every gradient, computed a block at a time."""
    inputs = detached(inputs)
    sources, rows, shared = (role(inputs, name) for name in ("sources", "rows", "shared"))
    edge, first = inputs.get("edge"), sources[0]
    state = SoftmaxState.empty(csr.num_rows, *first.shape[1:], first)
    blocks = []
    for columns, block, edges in column_blocks(csr, cuts):
        part = drop and replace(drop, ids_C=drop.ids_C[columns])
        options = {"edge": None if edge is None else edge[edges], "drop": part}
        near = tuple(t[columns] for t in sources)
        blocks.append((columns, edges, (kind, block, near, rows, shared), options))
        fold_into(*blocks[-1][2], state, **options)
    out, lse = finish(state)
    grad = grad_like(out) if grad is None else grad
    got = {name: torch.full_like(value, torch.nan) for name, value in inputs.items()}
    into = {name: torch.zeros_like(value) for name, value in inputs.items()}
    for columns, edges, arguments, options in blocks:
        made, made_edge = fold_backward(
            *arguments,
            lse,
            grad,
            (grad * out).sum(dim=2),
            **options,
            into_rows=role(into, "rows"),
            into_shared=role(into, "shared"),
        )
        for k, value in enumerate(made):
            got[f"sources {k}"][columns] = value
        if edge is not None:
            got["edge"][edges] = made_edge
    got |= {name: value for name, value in into.items() if name.startswith(("rows", "shared"))}
    return {"out": out, **got}


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("cuts", [[0, 11], [0, 5, 11], [0, 4, 4, 9, 11]])
def test_several_blocks_equal_the_whole(device, kind, cuts, edge):
    csr = make_csr(DEGREES, 11).to(device)
    inputs, drop = inputs_of(kind, csr, 3, 5, edge=edge), draw_of(csr) if edge else None
    want = with_gradients(attend_reference, kind, csr, inputs, drop=drop)
    assert_equal(folded(kind, csr, inputs, drop, cuts), want, **FLOAT64)


@pytest.mark.parametrize(("lo", "hi"), [(0, 2), (2, 3), (3, 9), (5, 6)])
def test_a_slice_of_heads_is_dropped_as_in_the_whole(device, kind, lo, hi):
    csr = make_csr(DEGREES, 11).to(device)
    inputs, drop = inputs_of(kind, csr, 9, 5, edge=True), draw_of(csr)
    whole = with_gradients(attend_reference, kind, csr, inputs, drop=drop)
    want = {k: v[lo:hi] if k.startswith("shared") else v[:, lo:hi] for k, v in whole.items()}
    sliced = {k: v[lo:hi] if k.startswith("shared") else v[:, lo:hi] for k, v in inputs.items()}
    grad = grad_like(whole["out"])[:, lo:hi]
    got = folded(kind, csr, sliced, replace(drop, first_head=lo), [0, 4, 11], grad)
    assert_equal(got, want, **FLOAT64)


def test_several_blocks_equal_the_whole_in_float32(device, kind):
    csr = make_csr(DEGREES, 11).to(device)
    inputs, drop = inputs_of(kind, csr, 4, 16, dtype=torch.float32), draw_of(csr)
    want = with_gradients(attend_reference, kind, csr, inputs, drop=drop)
    assert_equal(folded(kind, csr, inputs, drop, [0, 4, 9, 11]), want, **FLOAT32)


def row_chunks(csr, cuts):
    """Yield the rows of each chunk, its edges, and their numbers."""
    for lo, hi in pairwise(cuts):
        first, last = int(csr.indptr[lo]), int(csr.indptr[hi])
        chunk = CSR(csr.indptr[lo : hi + 1] - first, csr.index[first:last], csr.num_cols)
        yield slice(lo, hi), chunk, slice(first, last)


def test_chunks_of_rows_share_the_gradients_of_sources(device, kind):
    """How callers bound the memory of edge terms: a chunk at a time, sources whole."""
    csr = make_csr(DEGREES, 11).to(device)
    inputs, drop = inputs_of(kind, csr, 3, 5, edge=True), draw_of(csr)
    want = with_gradients(attend_reference, kind, csr, inputs, drop=drop)
    values = detached(inputs)
    sources, rows, shared = (role(values, name) for name in ("sources", "rows", "shared"))
    got = {name: torch.zeros_like(value) for name, value in values.items()}
    got["out"] = torch.zeros_like(want["out"])
    grad = grad_like(got["out"])
    for part, chunk, edges in row_chunks(csr, [0, 3, 3, 5, 6, 10]):
        own, term = tuple(t[part] for t in rows), values["edge"][edges]
        draw = EdgeDraw(drop.key, drop.p, drop.ids_C, drop.ids_M[part])
        state = SoftmaxState.empty(chunk.num_rows, *sources[0].shape[1:], sources[0])
        fold_into(kind, chunk, sources, own, shared, state, edge=term, drop=draw)
        out, lse = finish(state)
        got["out"][part] = out
        delta = (grad[part] * out).sum(dim=2)
        made, made_edge = fold_backward(
            kind, chunk, sources, own, shared, lse, grad[part], delta,
            edge=term,
            drop=draw,
            into_sources=role(got, "sources"),
            into_rows=tuple(t[part] for t in role(got, "rows")),
            into_shared=role(got, "shared"),
        )  # fmt: skip
        assert made[0] is got["sources 0"]
        got["edge"][edges] = made_edge
    assert_equal({name: got[name] for name in want}, want, **FLOAT64)


def test_edge_gradient_is_left_out_on_request(device, kind):
    csr = make_csr([3, 0, 2], 4).to(device)
    inputs = detached(inputs_of(kind, csr, 2, 3, edge=True))
    sources, rows, shared = (role(inputs, name) for name in ("sources", "rows", "shared"))
    state = SoftmaxState.empty(3, 2, 3, sources[0])
    fold_into(kind, csr, sources, rows, shared, state, edge=inputs["edge"])
    out, lse = finish(state)
    grads = {}
    for wanted in (False, True):
        grads[wanted] = fold_backward(
            kind, csr, sources, rows, shared, lse, out, (out * out).sum(dim=2),
            edge=inputs["edge"],
            into_rows=tuple(torch.zeros_like(t) for t in rows),
            into_shared=tuple(torch.zeros_like(t) for t in shared),
            with_edge=wanted,
        )  # fmt: skip
    assert grads[False][1] is None
    assert grads[True][1].shape == inputs["edge"].shape
    torch.testing.assert_close(grads[False][0], grads[True][0], **FLOAT64)


@pytest.mark.parametrize(("num_rows", "num_cols"), [(0, 0), (0, 3), (3, 0), (3, 2)])
def test_blocks_without_edges_leave_the_state_alone(device, kind, num_rows, num_cols):
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
    csr = CSR(indptr, torch.zeros(0, dtype=torch.int32), num_cols).to(device)
    inputs = inputs_of(kind, csr, 2, 3, edge=True)
    got = folded(kind, csr, inputs, None, [0, num_cols])
    assert got["out"].shape == (num_rows, 2, 3)
    assert all((value == 0).all() for value in got.values())

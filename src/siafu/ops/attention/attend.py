"""Attention over edges, whole or a block at a time (SAR), without a tensor of edge size.

Blocks are folded into a running softmax; backward goes over them once more, in any order, with the
log-sum-exp and the output of the whole. The kinds, and what each reads, are in `attention.kinds`.

Shapes: M destination rows, C source columns of a block, E edges, H heads, D width of a head.
"""
# ruff: noqa: PLR0913 - attention has many inputs, and an op's schema is flat

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.ops.attention.kinds import (
    Attention,
    Tensors,
    check_added_to,
    check_inputs,
    check_state,
    check_summed,
    check_tensor,
    factor_of,
)
from siafu.ops.attention.softmax import (
    EdgeDraw,
    SoftmaxState,
    delta_of,
    finish,
    flat_drop,
    op_arguments,
)
from siafu.ops.compiler_guard import guarded_late
from siafu.ops.contract import (
    AttentionBlock,
    AttentionGrads,
    EdgeDrop,
    Kind,
    RowGrads,
    Transposed,
    sum_type,
)
from siafu.ops.csr.matrix import CSR
from siafu.ops.kernels import attention_kernels, widened


def fold_into(
    kind: Attention,
    csr: CSR,
    sources: Tensors,
    rows: Tensors,
    shared: Tensors,
    state: SoftmaxState,
    *,
    edge: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> None:
    """Fold one block of edges into `state`, in place; no gradient flows."""
    check_inputs(kind, csr, sources, rows, shared, edge=edge, drop=drop)
    check_state(state, csr.num_rows, sources[0])
    numbers = kind.name, factor_of(kind), _flat(drop)
    block = _block(csr.indptr, csr.index, sources, rows, shared, edge, *numbers)
    attention_kernels(csr.device).fold_into(block, state.flat())


def fold_backward(
    kind: Attention,
    csr: CSR,
    sources: Tensors,
    rows: Tensors,
    shared: Tensors,
    lse_MH: Tensor,
    grad_MHD: Tensor,
    delta_MH: Tensor,
    *,
    edge: Tensor | None = None,
    drop: EdgeDraw | None = None,
    into_rows: Tensors,
    into_shared: Tensors,
    into_sources: Tensors | None = None,
    with_edge: bool = True,
) -> tuple[Tensors, Tensor | None]:
    """Return one block's gradients of sources and of the edge term, None where there is none.

    lse_MH is what `finish` gave; delta_MH is `delta_of` the whole output.
    Gradients of rows and shared tensors are added to `into_rows` and `into_shared`. With
    `into_sources` those of sources are added there too: blocks that read the same columns then
    share one such tensor. `with_edge=False` leaves the edge term without a gradient.
    """
    check_inputs(kind, csr, sources, rows, shared, edge=edge, drop=drop)
    shape = (csr.num_rows, *sources[0].shape[1:])
    check_summed("lse_MH", lse_MH, sources[0], shape[:2])
    check_tensor("grad_MHD", grad_MHD, sources[0], shape)
    check_summed("delta_MH", delta_MH, sources[0], shape[:2])
    check_added_to("into_rows", into_rows, rows)
    check_added_to("into_shared", into_shared, shared)
    if into_sources is None:
        into_sources = _zeros(sources)
    else:
        check_added_to("into_sources", into_sources, sources)
    back = transposed(csr, with_order=edge is not None)
    numbers = kind.name, factor_of(kind), _flat(drop)
    block = _block(csr.indptr, csr.index, sources, rows, shared, edge, *numbers)
    given = into_sources, into_rows, into_shared
    made = _grad_into(block, back, (lse_MH, grad_MHD, delta_MH), given, with_edge=with_edge)
    return into_sources, None if made is None or edge is None else made.to(edge.dtype)


def _grad_into(
    block: AttentionBlock,
    back: Transposed,
    known: tuple[Tensor, Tensor, Tensor],
    into: tuple[Tensors, Tensors, Tensors],
    *,
    with_edge: bool,
) -> Tensor | None:
    """Add gradients, through wider tensors where kernels have no code for these; return edges'."""
    kernels = attention_kernels(block.index.device)
    rows = RowGrads(*(widened(kernels, t.detach()).contiguous() for t in known))
    made = torch.empty_like(block.edge) if with_edge and block.edge is not None else None
    sources, of_rows, shared = (tuple(widened(kernels, t) for t in group) for group in into)
    kernels.grad_into(block, back, rows, AttentionGrads(sources, of_rows, shared, made))
    for tensor, found in zip(sum(into, ()), (*sources, *of_rows, *shared), strict=True):
        if found is not tensor:
            tensor.copy_(found)
    return made


def attend(
    kind: Attention,
    csr: CSR,
    sources: Tensors,
    rows: Tensors,
    shared: Tensors = (),
    *,
    edge: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> Tensor:
    """Return out_MHD, differentiable in every tensor; rows without edges give 0.

    The only tensor of edge size that is made is the gradient of an edge term that needs one.
    """
    check_inputs(kind, csr, sources, rows, shared, edge=edge, drop=drop)
    given = (*sources, *rows, *shared, *(() if edge is None else (edge,)))
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    back = transposed(csr, with_order=edge is not None) if needs_grad else (None, None, None)
    numbers = kind.name, factor_of(kind)
    tensors = [*sources], [*rows], [*shared], edge
    inputs = csr.indptr, csr.index, *tensors, *numbers, *op_arguments(drop), *back
    if torch.compiler.is_compiling():
        return attention(*inputs)[0]
    if not needs_grad:
        return _attended(*inputs)[0]
    out_MHD: Tensor = _Attend.apply(inputs, *given)
    return out_MHD


def transposed(csr: CSR, *, with_order: bool) -> Transposed:
    """Return the transpose as kernels take it; `with_order` when edges carry data."""
    back = csr.transpose()
    return Transposed(back.indptr, back.index, csr.transpose_order() if with_order else None)


@guarded_late
@torch.library.custom_op("siafu::attention", mutates_args=())
def attention(
    indptr: Tensor,
    index: Tensor,
    sources: Sequence[Tensor],
    rows: Sequence[Tensor],
    shared: Sequence[Tensor],
    edge: Tensor | None,
    kind: str,
    factor: float,
    key0: int,
    key1: int,
    p: float,
    ids_C: Tensor | None,
    ids_M: Tensor | None,
    back_indptr: Tensor | None,
    back_index: Tensor | None,
    back_order: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return (out_MHD, lse_MH); the `back_` tensors are the transpose, for backward only."""
    return _attended(
        indptr, index, sources, rows, shared, edge, kind, factor, key0, key1, p, ids_C, ids_M
    )


def _attended(
    indptr: Tensor,
    index: Tensor,
    sources: Sequence[Tensor],
    rows: Sequence[Tensor],
    shared: Sequence[Tensor],
    edge: Tensor | None,
    kind: str,
    factor: float,
    key0: int,
    key1: int,
    p: float,
    ids_C: Tensor | None,
    ids_M: Tensor | None,
    *_: Tensor | None,
) -> tuple[Tensor, Tensor]:
    first, drop = sources[0], _drop(key0, key1, p, ids_C, ids_M)
    block = _block(indptr, index, sources, rows, shared, edge, Kind(kind), factor, drop)
    state = SoftmaxState.empty(len(rows[0]), first.size(1), first.size(2), first)
    attention_kernels(first.device).fold_into(block, state.flat())
    out_MHD, lse_MH = finish(state)
    return out_MHD.to(first.dtype), lse_MH


@attention.register_fake
def _(indptr: Any, index: Any, sources: list[Tensor], rows: list[Tensor], *rest: Any) -> Any:
    num_rows, (heads, width) = len(rows[0]), sources[0].shape[1:]
    lse_MH = rows[0].new_empty(num_rows, heads, dtype=sum_type(rows[0].dtype))
    return rows[0].new_empty(num_rows, heads, width), lse_MH


@guarded_late
@torch.library.custom_op("siafu::attention_grad", mutates_args=())
def attention_grad(
    indptr: Tensor,
    index: Tensor,
    sources: Sequence[Tensor],
    rows: Sequence[Tensor],
    shared: Sequence[Tensor],
    edge: Tensor | None,
    kind: str,
    factor: float,
    key0: int,
    key1: int,
    p: float,
    ids_C: Tensor | None,
    ids_M: Tensor | None,
    back_indptr: Tensor,
    back_index: Tensor,
    back_order: Tensor | None,
    lse: Tensor,
    grad: Tensor,
    delta: Tensor,
    with_edge: bool,
) -> list[Tensor]:
    """Return the gradients of sources, rows, shared tensors and, `with_edge`, the edge term."""
    inputs = (indptr, index, sources, rows, shared, edge, kind, factor, key0, key1, p, ids_C, ids_M)
    back = (back_indptr, back_index, back_order)
    return _gradients(*inputs, *back, lse, grad, delta, with_edge)


def _gradients(
    indptr: Tensor,
    index: Tensor,
    sources: Sequence[Tensor],
    rows: Sequence[Tensor],
    shared: Sequence[Tensor],
    edge: Tensor | None,
    kind: str,
    factor: float,
    key0: int,
    key1: int,
    p: float,
    ids_C: Tensor | None,
    ids_M: Tensor | None,
    back_indptr: Tensor,
    back_index: Tensor,
    back_order: Tensor | None,
    lse: Tensor,
    grad: Tensor,
    delta: Tensor,
    with_edge: bool,
) -> list[Tensor]:
    drop = _drop(key0, key1, p, ids_C, ids_M)
    block = _block(indptr, index, sources, rows, shared, edge, Kind(kind), factor, drop)
    into = _zeros(sources), _zeros(rows), _zeros(shared)
    back = Transposed(back_indptr, back_index, back_order)
    made = _grad_into(block, back, (lse, grad, delta), into, with_edge=with_edge)
    edges = () if made is None or edge is None else (made.to(edge.dtype),)
    return [*into[0], *into[1], *into[2], *edges]


@attention_grad.register_fake
def _(
    indptr: Any,
    index: Any,
    sources: list[Tensor],
    rows: list[Tensor],
    shared: list[Tensor],
    edge: Tensor | None,
    *rest: Any,
) -> list[Tensor]:
    wanted = [edge] if rest[-1] and edge is not None else []
    return [t.new_empty(t.shape) for t in (*sources, *rows, *shared, *wanted)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    indptr, index, sources, rows, shared, edge, *rest = inputs
    ctx.numbers, ctx.counts = rest[:5], (len(sources), len(rows), len(shared))
    ctx.with_edge = edge is not None and edge.requires_grad
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(indptr, index, edge, *rest[5:], *output, *sources, *rows, *shared)


class _Attend(torch.autograd.Function):
    """`attention` without torch's dispatcher (see `ops.quick`), whose operands come in lists.

    It is given the op's inputs as they are, then those of them that may need a gradient.
    """

    @staticmethod
    def forward(ctx: Any, inputs: tuple[Any, ...], *given: Tensor) -> Tensor:
        out_MHD, lse_MH = _attended(*inputs)
        _, _, sources, rows, shared, edge, *rest = inputs
        ctx.places, ctx.numbers, ctx.with_edge = (*inputs[:2], *rest[5:]), rest[:5], False
        ctx.counts, ctx.has_edge = (len(sources), len(rows), len(shared)), edge is not None
        ctx.with_edge = edge is not None and edge.requires_grad
        ctx.save_for_backward(out_MHD, lse_MH, *given)
        return out_MHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MHD: Tensor) -> Any:
        out_MHD, lse_MH, *given = ctx.saved_tensors
        edge = given.pop() if ctx.has_edge else None
        indptr, index, *places = ctx.places
        known = lse_MH, grad_MHD, delta_of(grad_MHD, out_MHD)
        operands: list[Any] = [*_split(given, ctx.counts), edge, *ctx.numbers, *places]
        every: list[Any] = [indptr, index, *operands, *known, ctx.with_edge]
        grads: list[Tensor | None] = [*_gradients(*every)]
        if ctx.has_edge and not ctx.with_edge:
            grads.append(None)
        return None, *grads


def _backward(ctx: Any, grad_MHD: Tensor, _: Any) -> tuple[Any, ...]:
    indptr, index, edge, *rest = ctx.saved_tensors
    places, (out_MHD, lse_MH), operands = rest[:5], rest[5:7], rest[7:]
    known = lse_MH, grad_MHD, delta_of(grad_MHD, out_MHD)
    grads = attention_grad(
        indptr,
        index,
        *_split(operands, ctx.counts),
        edge,
        *ctx.numbers,
        *places,
        *known,
        ctx.with_edge,
    )
    grad_edge = grads.pop() if ctx.with_edge else None
    return None, None, *_split(grads, ctx.counts), grad_edge, *(None,) * 10


attention.register_autograd(_backward, setup_context=_save)


def _split(flat: Sequence[Tensor], counts: tuple[int, int, int]) -> list[list[Tensor]]:
    """Return the tensors as sources, rows and shared."""
    first, second = counts[0], counts[0] + counts[1]
    return [list(flat[:first]), list(flat[first:second]), list(flat[second:])]


def _zeros(like: Sequence[Tensor]) -> Tensors:
    return tuple(torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in like)


def _drop(
    key0: int, key1: int, p: float, ids_C: Tensor | None, ids_M: Tensor | None
) -> EdgeDrop | None:
    if ids_C is None or ids_M is None:
        return None
    return flat_drop((key0, key1), p, ids_C, ids_M)


def _flat(drop: EdgeDraw | None) -> EdgeDrop | None:
    return None if drop is None or drop.p == 0 else drop.flat()


def _block(
    indptr: Tensor,
    index: Tensor,
    sources: Sequence[Tensor],
    rows: Sequence[Tensor],
    shared: Sequence[Tensor],
    edge: Tensor | None,
    kind: Kind,
    factor: float,
    drop: EdgeDrop | None,
) -> AttentionBlock:
    """Return what kernels take: tensors without gaps and without a history."""
    kernels = attention_kernels(index.device)
    near, own, common = (
        tuple(widened(kernels, t.detach()).contiguous() for t in group)
        for group in (sources, rows, shared)
    )
    term = None if edge is None else widened(kernels, edge.detach()).contiguous()
    return AttentionBlock(
        kind, indptr.contiguous(), index.contiguous(), near, own, common, term, factor, drop
    )

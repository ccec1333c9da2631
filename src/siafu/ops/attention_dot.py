"""Dot-product attention (Vaswani et al., 2017) over edges, whole or a block at a time (SAR).

    score_e = <query_i, key_j> / sqrt(D) [+ bias_e];  out_i = sum of softmax(score) value_j

Shapes: M destination rows, C source columns of a block, E edges, H heads, D width of a head.
"""
# ruff: noqa: PLR0913 - attention has many inputs, and an op's schema is flat

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.attention import (
    EdgeDraw,
    SoftmaxState,
    check_drop,
    check_tensors,
    finish,
    flat_drop,
    op_arguments,
    turned,
)
from siafu.ops.contract import DotBlock, DotGrads, EdgeDrop, RowGrads, Turned
from siafu.ops.csr import CSR
from siafu.ops.kernels import dot_kernels
from siafu.ops.random import dropout_pairs


def dot_reference(
    csr: CSR,
    query_MHD: Tensor,
    key_CHD: Tensor,
    value_CHD: Tensor,
    *,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> Tensor:
    """The definition, one destination at a time. Slow; used by tests alone."""
    rows = [value_CHD[:0]]
    for i, (lo, hi) in enumerate(pairwise(csr.indptr.tolist())):
        j = csr.index[lo:hi].long()
        score_EH = (query_MHD[i] * key_CHD[j]).sum(dim=2) / query_MHD.size(2) ** 0.5
        if bias_EH is not None:
            score_EH = score_EH + bias_EH[lo:hi]
        weight_EH = score_EH.softmax(dim=0)
        if drop is not None:
            ids = drop.ids_C[j], drop.ids_M[i].expand(hi - lo)
            weight_EH = dropout_pairs(weight_EH, *ids, drop.key, drop.p)
        rows.append((weight_EH[:, :, None] * value_CHD[j]).sum(dim=0, keepdim=True))
    return torch.cat(rows)


def dot_attend_into(
    csr: CSR,
    query_MHD: Tensor,
    key_CHD: Tensor,
    value_CHD: Tensor,
    state: SoftmaxState,
    *,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> None:
    """Fold one block of edges into `state`, in place; no gradient flows."""
    block = _block(csr, query_MHD, key_CHD, value_CHD, bias_EH, drop)
    num_rows, heads, width = query_MHD.shape
    check_tensors(
        value_CHD,
        {
            "state.top_MH": (state.top_MH, (num_rows, heads)),
            "state.weight_MH": (state.weight_MH, (num_rows, heads)),
            "state.total_MHD": (state.total_MHD, (num_rows, heads, width)),
        },
    )
    dot_kernels(value_CHD.device, value_CHD.dtype).attend_into(block, state.flat())


def dot_attend_backward(
    csr: CSR,
    query_MHD: Tensor,
    key_CHD: Tensor,
    value_CHD: Tensor,
    lse_MH: Tensor,
    grad_MHD: Tensor,
    delta_MH: Tensor,
    *,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
    grad_query_MHD: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return one block's (grad_key_CHD, grad_value_CHD, grad_bias_EH), adding to grad_query_MHD.

    delta_MH is the sum over D of grad * out, of the whole output; lse_MH is what `finish` gave.
    """
    block = _block(csr, query_MHD, key_CHD, value_CHD, bias_EH, drop)
    check_tensors(
        value_CHD,
        {
            "lse_MH": (lse_MH, query_MHD.shape[:2]),
            "grad_MHD": (grad_MHD, query_MHD.shape),
            "delta_MH": (delta_MH, query_MHD.shape[:2]),
            "grad_query_MHD": (grad_query_MHD, query_MHD.shape),
        },
    )
    if not grad_query_MHD.is_contiguous():
        raise PlanError(
            "grad_query_MHD is added to in place and must have no gaps.",
            seen=f"strides {grad_query_MHD.stride()}",
            fix="pass torch.zeros_like(query_MHD)",
        )
    back = turned(csr, with_order=bias_EH is not None)
    rows = RowGrads(lse_MH.contiguous(), grad_MHD.contiguous(), delta_MH.contiguous())
    grads = _grads(block, back, rows, grad_query_MHD)
    return grads.key_CHD, grads.value_CHD, grads.bias_EH


def dot_attention(
    csr: CSR,
    query_MHD: Tensor,
    key_CHD: Tensor,
    value_CHD: Tensor,
    *,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> Tensor:
    """Return out_MHD, differentiable in query, key, value and bias; rows without edges give 0.

    No tensor of edges x heads is made, except the gradient of a bias where there is one.
    """
    inputs = (query_MHD, key_CHD, value_CHD, bias_EH)
    _check(csr, *inputs, drop)
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    back = turned(csr, with_order=bias_EH is not None) if needs_grad else (None, None, None)
    return dot(csr.indptr, csr.index, *inputs, *op_arguments(drop), *back)[0]


@torch.library.custom_op("siafu::dot_attention", mutates_args=())
def dot(
    indptr: Tensor,
    index: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
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
    drop = _drop(key0, key1, p, ids_C, ids_M)
    block = _contiguous(
        DotBlock(indptr, index, query, key, value, bias, query.size(2) ** -0.5, drop)
    )
    state = SoftmaxState.empty(query.size(0), query.size(1), query.size(2), query)
    dot_kernels(value.device, value.dtype).attend_into(block, state.flat())
    return finish(state)


@dot.register_fake
def _(indptr: Tensor, index: Tensor, query: Tensor, *rest: Any) -> Any:
    return query.new_empty(query.shape), query.new_empty(query.shape[:2])


@torch.library.custom_op("siafu::dot_attention_grad", mutates_args=())
def dot_grad(
    indptr: Tensor,
    index: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and bias; the last is empty without a bias."""
    drop = _drop(key0, key1, p, ids_C, ids_M)
    block = _contiguous(
        DotBlock(indptr, index, query, key, value, bias, query.size(2) ** -0.5, drop)
    )
    rows = RowGrads(lse.contiguous(), grad.contiguous(), delta.contiguous())
    back = Turned(back_indptr, back_index, back_order)
    grads = _grads(block, back, rows, torch.zeros_like(block.query_MHD))
    no_bias = query.new_empty(0) if grads.bias_EH is None else grads.bias_EH
    return grads.query_MHD, grads.key_CHD, grads.value_CHD, no_bias


@dot_grad.register_fake
def _(
    indptr: Tensor,
    index: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> Any:
    no_bias = query.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        no_bias,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    out, lse = output
    ctx.numbers = inputs[6:9]
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*inputs[:6], *inputs[9:], out, lse)


def _backward(ctx: Any, grad_MHD: Tensor, _: Any) -> tuple[Any, ...]:
    *inputs, out_MHD, lse_MH = ctx.saved_tensors
    bias = inputs[5]
    delta_MH = torch.einsum("mhd,mhd->mh", grad_MHD, out_MHD)
    *grads, grad_bias = dot_grad(*inputs[:6], *ctx.numbers, *inputs[6:], lse_MH, grad_MHD, delta_MH)
    return None, None, *grads, None if bias is None else grad_bias, *(None,) * 8


dot.register_autograd(_backward, setup_context=_save)


def _grads(block: DotBlock, back: Turned, rows: RowGrads, grad_query_MHD: Tensor) -> DotGrads:
    bias = None if block.bias_EH is None else torch.empty_like(block.bias_EH)
    key_CHD, value_CHD = torch.empty_like(block.key_CHD), torch.empty_like(block.value_CHD)
    grads = DotGrads(grad_query_MHD, key_CHD, value_CHD, bias)
    dot_kernels(value_CHD.device, value_CHD.dtype).attend_grad_into(block, back, rows, grads)
    return grads


def _drop(
    key0: int, key1: int, p: float, ids_C: Tensor | None, ids_M: Tensor | None
) -> EdgeDrop | None:
    if ids_C is None or ids_M is None:
        return None
    return flat_drop((key0, key1), p, ids_C, ids_M)


def _block(
    csr: CSR,
    query_MHD: Tensor,
    key_CHD: Tensor,
    value_CHD: Tensor,
    bias_EH: Tensor | None,
    drop: EdgeDraw | None,
) -> DotBlock:
    _check(csr, query_MHD, key_CHD, value_CHD, bias_EH, drop)
    flat = None if drop is None or drop.p == 0 else drop.flat()
    return _contiguous(
        DotBlock(
            csr.indptr,
            csr.index,
            query_MHD,
            key_CHD,
            value_CHD,
            bias_EH,
            query_MHD.size(2) ** -0.5,
            flat,
        )
    )


def _contiguous(block: DotBlock) -> DotBlock:
    bias_EH = None if block.bias_EH is None else block.bias_EH.detach().contiguous()
    indptr, index, query_MHD, key_CHD, value_CHD = (t.detach().contiguous() for t in block[:5])
    return DotBlock(indptr, index, query_MHD, key_CHD, value_CHD, bias_EH, *block[6:])


def _check(
    csr: CSR,
    query_MHD: Tensor,
    key_CHD: Tensor,
    value_CHD: Tensor,
    bias_EH: Tensor | None,
    drop: EdgeDraw | None,
) -> None:
    """Raise unless every input fits the edges and value_CHD."""
    if value_CHD.dim() != 3 or len(value_CHD) != csr.num_cols or value_CHD.device != csr.device:
        raise PlanError(
            "value_CHD does not fit the edges.",
            seen=f"{tuple(value_CHD.shape)} on {value_CHD.device}; "
            f"{csr.num_cols} columns on {csr.device}",
            fix="pass [columns, heads, width], on the device of the edges",
        )
    heads, width = value_CHD.size(1), value_CHD.size(2)
    check_tensors(
        value_CHD,
        {
            "query_MHD": (query_MHD, (csr.num_rows, heads, width)),
            "key_CHD": (key_CHD, (csr.num_cols, heads, width)),
            "bias_EH": (bias_EH, (csr.num_edges, heads)),
        },
    )
    check_drop(csr, drop)

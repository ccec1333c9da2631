"""GAT's attention (Velickovic et al., 2018), whole or a block of edges at a time (SAR).

    score_e = leaky_relu(left_j + right_i [+ bias_e]);  out_i = sum over edges of softmax(score) z_j

Shapes: M destination rows, C source columns of a block, E edges, H heads, D width of a head.
"""
# ruff: noqa: PLR0913 - attention has many inputs, and an op's schema is flat

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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
from siafu.ops.contract import EdgeDrop, GatBlock, GatGrads, RowGrads, Turned
from siafu.ops.csr import CSR
from siafu.ops.kernels import gat_kernels
from siafu.ops.random import dropout_pairs


def gat_reference(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_MH: Tensor,
    *,
    slope: float,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> Tensor:
    """The definition, one destination at a time. Slow; used by tests alone."""
    rows = [z_CHD[:0]]
    for i, (lo, hi) in enumerate(pairwise(csr.indptr.tolist())):
        j = csr.index[lo:hi].long()
        sum_EH = left_CH[j] + right_MH[i]
        if bias_EH is not None:
            sum_EH = sum_EH + bias_EH[lo:hi]
        weight_EH = functional.leaky_relu(sum_EH, slope).softmax(dim=0)
        if drop is not None:
            ids = drop.ids_C[j], drop.ids_M[i].expand(hi - lo)
            weight_EH = dropout_pairs(weight_EH, *ids, drop.key, drop.p)
        rows.append((weight_EH[:, :, None] * z_CHD[j]).sum(dim=0, keepdim=True))
    return torch.cat(rows)


def attend_into(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_MH: Tensor,
    state: SoftmaxState,
    *,
    slope: float,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> None:
    """Fold one block of edges into `state`, in place; no gradient flows."""
    block = _block(csr, z_CHD, left_CH, right_MH, slope, bias_EH, drop)
    num_rows, heads = right_MH.shape
    check_tensors(
        z_CHD,
        {
            "state.top_MH": (state.top_MH, (num_rows, heads)),
            "state.weight_MH": (state.weight_MH, (num_rows, heads)),
            "state.total_MHD": (state.total_MHD, (num_rows, heads, z_CHD.size(2))),
        },
    )
    gat_kernels(z_CHD.device, z_CHD.dtype).attend_into(block, state.flat())


def attend_backward(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_MH: Tensor,
    lse_MH: Tensor,
    grad_MHD: Tensor,
    delta_MH: Tensor,
    *,
    slope: float,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
    grad_right_MH: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return one block's (grad_z_CHD, grad_left_CH, grad_bias_EH), adding to grad_right_MH.

    delta_MH is the sum over D of grad * out, of the whole output; lse_MH is what `finish` gave.
    """
    block = _block(csr, z_CHD, left_CH, right_MH, slope, bias_EH, drop)
    check_tensors(
        z_CHD,
        {
            "lse_MH": (lse_MH, right_MH.shape),
            "grad_MHD": (grad_MHD, (*right_MH.shape, z_CHD.size(2))),
            "delta_MH": (delta_MH, right_MH.shape),
            "grad_right_MH": (grad_right_MH, right_MH.shape),
        },
    )
    if not grad_right_MH.is_contiguous():
        raise PlanError(
            "grad_right_MH is added to in place and must have no gaps.",
            seen=f"strides {grad_right_MH.stride()}",
            fix="pass torch.zeros_like(right_MH)",
        )
    back = turned(csr, with_order=bias_EH is not None)
    rows = RowGrads(lse_MH.contiguous(), grad_MHD.contiguous(), delta_MH.contiguous())
    grads = _grads(block, back, rows, grad_right_MH)
    return grads.z_CHD, grads.left_CH, grads.bias_EH


def gat_attention(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_MH: Tensor,
    *,
    slope: float,
    bias_EH: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> Tensor:
    """Return out_MHD, differentiable in z, left, right and bias; rows without edges give 0.

    No tensor of edges x heads is made, except the gradient of a bias where there is one.
    """
    inputs = (z_CHD, left_CH, right_MH, bias_EH)
    _check(csr, *inputs, drop)
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    back = turned(csr, with_order=bias_EH is not None) if needs_grad else (None, None, None)
    return gat(csr.indptr, csr.index, *inputs, slope, *op_arguments(drop), *back)[0]


@torch.library.custom_op("siafu::gat", mutates_args=())
def gat(
    indptr: Tensor,
    index: Tensor,
    z: Tensor,
    left: Tensor,
    right: Tensor,
    bias: Tensor | None,
    slope: float,
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
    block = _contiguous(GatBlock(indptr, index, z, left, right, bias, slope, drop))
    state = SoftmaxState.empty(len(right), z.size(1), z.size(2), z)
    gat_kernels(z.device, z.dtype).attend_into(block, state.flat())
    return finish(state)


@gat.register_fake
def _(indptr: Tensor, index: Tensor, z: Tensor, left: Tensor, right: Tensor, *rest: Any) -> Any:
    return z.new_empty(*right.shape, z.size(2)), z.new_empty(right.shape)


@torch.library.custom_op("siafu::gat_grad", mutates_args=())
def gat_grad(
    indptr: Tensor,
    index: Tensor,
    z: Tensor,
    left: Tensor,
    right: Tensor,
    bias: Tensor | None,
    slope: float,
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
    """Return the gradients of z, left, right and bias; the last is empty where there is no bias."""
    drop = _drop(key0, key1, p, ids_C, ids_M)
    block = _contiguous(GatBlock(indptr, index, z, left, right, bias, slope, drop))
    rows = RowGrads(lse.contiguous(), grad.contiguous(), delta.contiguous())
    back = Turned(back_indptr, back_index, back_order)
    grads = _grads(block, back, rows, torch.zeros_like(block.right_MH))
    no_bias = z.new_empty(0) if grads.bias_EH is None else grads.bias_EH
    return grads.z_CHD, grads.left_CH, grads.right_MH, no_bias


@gat_grad.register_fake
def _(
    indptr: Tensor,
    index: Tensor,
    z: Tensor,
    left: Tensor,
    right: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> Any:
    no_bias = z.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return z.new_empty(z.shape), left.new_empty(left.shape), right.new_empty(right.shape), no_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    out, lse = output
    ctx.numbers = inputs[6:10]
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*inputs[:6], *inputs[10:], out, lse)


def _backward(ctx: Any, grad_MHD: Tensor, _: Any) -> tuple[Any, ...]:
    *inputs, out_MHD, lse_MH = ctx.saved_tensors
    bias = inputs[5]
    delta_MH = torch.einsum("mhd,mhd->mh", grad_MHD, out_MHD)
    *grads, grad_bias = gat_grad(*inputs[:6], *ctx.numbers, *inputs[6:], lse_MH, grad_MHD, delta_MH)
    return None, None, *grads, None if bias is None else grad_bias, *(None,) * 9


gat.register_autograd(_backward, setup_context=_save)


def _grads(block: GatBlock, back: Turned, rows: RowGrads, grad_right_MH: Tensor) -> GatGrads:
    bias = None if block.bias_EH is None else torch.empty_like(block.bias_EH)
    z_CHD, left_CH = torch.empty_like(block.z_CHD), torch.empty_like(block.left_CH)
    grads = GatGrads(z_CHD, left_CH, grad_right_MH, bias)
    gat_kernels(z_CHD.device, z_CHD.dtype).attend_grad_into(block, back, rows, grads)
    return grads


def _drop(
    key0: int, key1: int, p: float, ids_C: Tensor | None, ids_M: Tensor | None
) -> EdgeDrop | None:
    if ids_C is None or ids_M is None:
        return None
    return flat_drop((key0, key1), p, ids_C, ids_M)


def _block(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_MH: Tensor,
    slope: float,
    bias_EH: Tensor | None,
    drop: EdgeDraw | None,
) -> GatBlock:
    _check(csr, z_CHD, left_CH, right_MH, bias_EH, drop)
    flat = None if drop is None or drop.p == 0 else drop.flat()
    return _contiguous(
        GatBlock(csr.indptr, csr.index, z_CHD, left_CH, right_MH, bias_EH, slope, flat)
    )


def _contiguous(block: GatBlock) -> GatBlock:
    bias_EH = None if block.bias_EH is None else block.bias_EH.detach().contiguous()
    indptr, index, z_CHD, left_CH, right_MH = (t.detach().contiguous() for t in block[:5])
    return GatBlock(indptr, index, z_CHD, left_CH, right_MH, bias_EH, block.slope, block.drop)


def _check(
    csr: CSR,
    z_CHD: Tensor,
    left_CH: Tensor,
    right_MH: Tensor,
    bias_EH: Tensor | None,
    drop: EdgeDraw | None,
) -> None:
    """Raise unless every input fits the edges and z_CHD."""
    if z_CHD.dim() != 3 or len(z_CHD) != csr.num_cols or z_CHD.device != csr.device:
        raise PlanError(
            "z_CHD does not fit the edges.",
            seen=f"{tuple(z_CHD.shape)} on {z_CHD.device}; {csr.num_cols} columns on {csr.device}",
            fix="pass [columns, heads, width], on the device of the edges",
        )
    heads = z_CHD.size(1)
    check_tensors(
        z_CHD,
        {
            "left_CH": (left_CH, (csr.num_cols, heads)),
            "right_MH": (right_MH, (csr.num_rows, heads)),
            "bias_EH": (bias_EH, (csr.num_edges, heads)),
        },
    )
    check_drop(csr, drop)

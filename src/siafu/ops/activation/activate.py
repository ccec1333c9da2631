"""What a layer made, with its bias, ReLU and the next layer's dropout: one pass each way.

Forward keeps a bit for each entry. Backward of the neighbour sum that reads the rows is fused with
that of the activation: the gradient is masked, and the bias's summed, while it is in cache.

Shapes: N rows, M rows of a sum, C columns of a matrix (the N rows), D width, B words of a mask.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.errors import PlanError
from siafu.ops.contract import Draw, Edges
from siafu.ops.csr.matrix import CSR
from siafu.ops.csr.sum import sum_into
from siafu.ops.kernels import activation_kernels
from siafu.ops.random.draws import DrawKey

_WORD_BITS = 32


@dataclass(frozen=True, eq=False, slots=True)
class Activated:
    """Rows after bias, ReLU and dropout, and what their gradient is made with."""

    rows_ND: Tensor
    z_ND: Tensor
    """What the gradient goes to; its memory may hold the rows."""
    bias_D: Tensor
    mask_NB: Tensor
    scale: float


def can_activate(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether `activate_rows` takes such rows; others have passes of their own."""
    kernels = activation_kernels(device)
    return kernels is not None and dtype in kernels.DTYPES and not torch.compiler.is_compiling()


def activate_rows(
    z_ND: Tensor, bias_D: Tensor, ids_N: Tensor, key: DrawKey, p: float, *, overwrite: bool = False
) -> Activated:
    """Return dropout(relu(z + bias)), with the draws that `dropout_rows` has.

    With `overwrite` z's memory is used where it can be: nobody may read z afterwards. Autograd
    notices where a function has kept it.
    """
    kernels = activation_kernels(z_ND.device)
    assert kernels is not None, "asked before"
    if z_ND.dim() != 2 or bias_D.shape != z_ND.shape[1:] or ids_N.shape != z_ND.shape[:1]:
        raise PlanError(
            "An activation needs a bias for each column and an id for each row.",
            seen=f"z {tuple(z_ND.shape)}, bias {tuple(bias_D.shape)}, ids {tuple(ids_N.shape)}",
            fix="pass the bias of this layer and the ids of exactly these rows",
        )
    given_ND = z_ND.detach().contiguous()
    takes_over = overwrite and not z_ND.is_leaf and z_ND._base is None
    out_ND = given_ND if takes_over else torch.empty_like(given_ND)
    words = -(-z_ND.size(1) // _WORD_BITS)
    mask_NB = torch.empty(len(z_ND), words, dtype=torch.int32)
    scale = 1 / (1 - p)
    draw = Draw(key.row_words(), ids_N.contiguous())
    bias = bias_D.detach().contiguous()
    kernels.activate_into(
        draw, given_ND, bias, out_ND, mask_NB, threshold=round(p * 2**32), scale=scale
    )
    if takes_over:
        torch.autograd.graph.increment_version(z_ND)
    rows_ND = _Activation.apply(z_ND, bias_D, out_ND, mask_NB, scale)
    return Activated(rows_ND, z_ND, bias_D, mask_NB, scale)


def activated_own_and_sum(
    csr: CSR,
    activated: Activated,
    *,
    row_scale_M: Tensor | None = None,
    col_scale_C: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `own_and_sum` of the rows; gradients go past them to what they were made of."""
    edges = Edges(csr.indptr, csr.index, csr.weight, row_scale_M, col_scale_C).contiguous()
    own_MD, out_MD = _ActivatedSum.apply(activated.z_ND, activated.bias_D, activated, csr, edges)
    return own_MD, out_MD


class _Activation(torch.autograd.Function):
    """The rows are made already; this gives them their gradient."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, bias: Tensor, out: Tensor, mask: Tensor, scale: float
    ) -> Tensor:
        ctx.mask, ctx.scale = mask, scale
        return out.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        # Others may hold the gradient that comes in, so it is not written to.
        grad_ND = grad_ND.clone(memory_format=torch.contiguous_format)
        bias_D = grad_ND.new_empty(grad_ND.size(1))
        kernels = activation_kernels(grad_ND.device)
        assert kernels is not None, "forward had them"
        kernels.grad_into(ctx.mask, grad_ND, bias_D, scale=ctx.scale)
        return grad_ND, bias_D, None, None, None


class _ActivatedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, bias: Tensor, activated: Activated, csr: CSR, edges: Edges
    ) -> tuple[Tensor, Tensor]:
        rows_ND = activated.rows_ND.detach()
        out_MD = rows_ND.new_empty(csr.num_rows, rows_ND.size(1))
        row_scale, col_scale = edges[3:]
        sum_into(csr, rows_ND, out_MD, row_scale_M=row_scale, col_scale_C=col_scale)
        ctx.set_materialize_grads(False)
        ctx.csr, ctx.edges = csr, edges
        ctx.mask, ctx.scale = activated.mask_NB, activated.scale
        return rows_ND[: csr.num_rows], out_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        own_MD, out_MD = (None if grad is None else grad.contiguous() for grad in grads)
        given = own_MD if out_MD is None else out_MD
        if given is None:
            return None, None, None, None, None
        back, edges = ctx.csr.transpose(), ctx.edges
        kernels = activation_kernels(given.device)
        assert kernels is not None, "forward had them"
        grad_ND = given.new_empty(back.num_rows, given.size(1))
        bias_D = given.new_empty(given.size(1))
        if out_MD is None:
            grad_ND[: len(given)], grad_ND[len(given) :] = given, 0
            kernels.grad_into(ctx.mask, grad_ND, bias_D, scale=ctx.scale)
        else:
            turned = Edges(back.indptr, back.index, back.weight, *edges[:2:-1]).contiguous()
            kernels.sum_grad_into(
                turned, out_MD, own_MD, ctx.mask, grad_ND, bias_D, scale=ctx.scale
            )
        return grad_ND, bias_D, None, None, None

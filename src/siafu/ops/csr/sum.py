"""The neighbour sum: what a destination row receives from the source rows its edges read.

Shapes: M destination rows, C source columns, E edges, D width.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.errors import PlanError
from siafu.ops.compiler_guard import guarded_late
from siafu.ops.contract import Edges, LongRows, sum_type
from siafu.ops.csr.matrix import CSR
from siafu.ops.kernels import csr_kernels, widened
from siafu.ops.quick import needs_gradient, quick


def csr_sum_reference(
    csr: CSR,
    x_CD: Tensor,
    *,
    row_scale_M: Tensor | None = None,
    col_scale_C: Tensor | None = None,
) -> Tensor:
    """The definition, one destination at a time. Slow; used by tests alone."""
    if col_scale_C is not None:
        x_CD = col_scale_C[:, None] * x_CD
    message_ED = x_CD[csr.index.long()]
    if csr.weight is not None:
        message_ED = csr.weight[:, None] * message_ED
    rows = [message_ED[lo:hi].sum(dim=0) for lo, hi in pairwise(csr.indptr.tolist())]
    out_MD = torch.stack(rows) if rows else message_ED[:0]
    return out_MD if row_scale_M is None else row_scale_M[:, None] * out_MD


def sum_into(
    csr: CSR,
    x_CD: Tensor,
    out_MD: Tensor,
    *,
    accumulate: bool = False,
    row_scale_M: Tensor | None = None,
    col_scale_C: Tensor | None = None,
) -> None:
    """Write out[i] = row_scale[i] * sum of weight[e] * col_scale[index[e]] * x[index[e]].

    `accumulate` adds to `out_MD` instead, so blocks of edges add up without a temporary. Empty rows
    give 0, or stay. Of bfloat16 rows sums are float32, factors too, and `out_MD` may be either. No
    gradient flows: `neighbour_sum` is the differentiable form.
    """
    edges = Edges(csr.indptr, csr.index, csr.weight, row_scale_M, col_scale_C)
    _check(csr, x_CD, edges)
    types = x_CD.dtype, sum_type(x_CD.dtype)
    if out_MD.shape != (csr.num_rows, x_CD.size(1)) or out_MD.dtype not in types:
        raise PlanError(
            "The output does not fit the matrix and its input.",
            seen=f"out {tuple(out_MD.shape)} {out_MD.dtype}, x {tuple(x_CD.shape)} {x_CD.dtype}",
            fix=f"pass out of shape ({csr.num_rows}, {x_CD.size(1)}) and x's type",
        )
    _sum_into(edges, x_CD, out_MD, accumulate=accumulate, long_rows=csr.long_rows())


def neighbour_sum(
    csr: CSR,
    x_CD: Tensor,
    *,
    row_scale_M: Tensor | None = None,
    col_scale_C: Tensor | None = None,
) -> Tensor:
    """Return out_MD as `sum_into` defines it, differentiable in x.

    forward   out = diag(row_scale) A diag(col_scale) x
    backward  dx  = diag(col_scale) A^T diag(row_scale) dout, over the transpose: no atomics

    The mean is row_scale = 1 / degree; GCN's normalisation is both scales.
    """
    edges = Edges(csr.indptr, csr.index, csr.weight, row_scale_M, col_scale_C)
    _check(csr, x_CD, edges)
    if not (torch.is_grad_enabled() and x_CD.requires_grad):
        return _quick_sum(*edges, x_CD, None, None, None, csr.long_rows(), None)
    back = csr.transpose()
    turned = back.indptr, back.index, back.weight
    return _quick_sum(*edges, x_CD, *turned, csr.long_rows(), back.long_rows())


def own_and_sum(
    csr: CSR,
    x_CD: Tensor,
    *,
    row_scale_M: Tensor | None = None,
    col_scale_C: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x[:M] and the neighbour sum of x, for matrices whose rows are the first columns.

    Both give x their gradients in one tensor: none is filled with zeros and added.
    """
    scales = {"row_scale_M": row_scale_M, "col_scale_C": col_scale_C}
    if torch.compiler.is_compiling() or not needs_gradient((x_CD,)):
        return x_CD[: csr.num_rows], neighbour_sum(csr, x_CD, **scales)
    edges = Edges(csr.indptr, csr.index, csr.weight, row_scale_M, col_scale_C)
    _check(csr, x_CD, edges)
    own_MD, out_MD = _OwnAndSum.apply(x_CD, csr, edges)
    return own_MD, out_MD


class _OwnAndSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, csr: CSR, edges: Edges) -> tuple[Tensor, Tensor]:
        out_MD = x.new_empty(csr.num_rows, x.size(1))
        _sum_into(edges, x.detach(), out_MD, accumulate=False, long_rows=csr.long_rows())
        ctx.set_materialize_grads(False)
        ctx.csr, ctx.edges = csr, edges
        return x[: csr.num_rows], out_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        own_MD, out_MD = grads
        edges, back = ctx.edges, ctx.csr.transpose()
        given = own_MD if out_MD is None else out_MD
        if given is None:
            return None, None, None
        grad_CD = given.new_empty(back.num_rows, given.size(1))
        if out_MD is None:
            grad_CD.zero_()
        else:
            turned = Edges(back.indptr, back.index, back.weight, *edges[:2:-1])
            _sum_into(turned, out_MD, grad_CD, accumulate=False, long_rows=back.long_rows())
        if own_MD is not None:
            grad_CD[: len(own_MD)] += own_MD
        return grad_CD, None, None


def sum_with_own(
    csr: CSR,
    x_CD: Tensor,
    own_M: Tensor,
    *,
    row_scale_M: Tensor | None = None,
    col_scale_C: Tensor | None = None,
) -> Tensor:
    """Return `neighbour_sum` + own[i] * x[i], in one pass each way; rows are the first columns.

    GCN's loops are that: see `gcn_scales`.
    """
    edges = Edges(csr.indptr, csr.index, csr.weight, row_scale_M, col_scale_C)
    _check(csr, x_CD, edges)
    if own_M.shape != (csr.num_rows,) or csr.num_rows > csr.num_cols:
        raise PlanError(
            "Rows and their own weights do not fit.",
            seen=f"own {tuple(own_M.shape)}, matrix {csr.num_rows} x {csr.num_cols}",
            fix="pass a weight for each row; rows must be the first columns",
        )
    out_MD: Tensor = _SumWithOwn.apply(x_CD, own_M.contiguous(), csr, edges)
    return out_MD


class _SumWithOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor, csr: CSR, edges: Edges) -> Tensor:
        out_MD = x.new_empty(csr.num_rows, x.size(1))
        long_rows = csr.long_rows()
        _sum_into(edges, x.detach(), out_MD, accumulate=False, long_rows=long_rows, own_K=own)
        ctx.csr, ctx.edges, ctx.own = csr, edges, own
        return out_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None, None]:
        edges, back = ctx.edges, ctx.csr.transpose()
        grad_CD = grad_MD.new_empty(back.num_rows, grad_MD.size(1))
        turned = Edges(back.indptr, back.index, back.weight, *edges[:2:-1])
        long_rows = back.long_rows()
        _sum_into(turned, grad_MD, grad_CD, accumulate=False, long_rows=long_rows, own_K=ctx.own)
        return grad_CD, None, None, None


@guarded_late
@torch.library.custom_op("siafu::csr_sum", mutates_args=())
def csr_sum(  # noqa: PLR0913 - an op's schema is flat
    indptr: Tensor,
    index: Tensor,
    weight: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    x: Tensor,
    back_indptr: Tensor | None,
    back_index: Tensor | None,
    back_weight: Tensor | None,
) -> Tensor:
    """Return out_MD; the `back_` tensors are the transpose, for backward only."""
    return _summed(indptr, index, weight, row_scale, col_scale, x)


def _summed(
    indptr: Tensor,
    index: Tensor,
    weight: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    x: Tensor,
    *rest: Any,
) -> Tensor:
    """The rest: the transpose, which is for backward, and the long rows of both."""
    out_MD, long_rows = x.new_empty(len(indptr) - 1, x.size(1)), rest[3] if rest else None
    edges = Edges(indptr, index, weight, row_scale, col_scale)
    _sum_into(edges, x, out_MD, accumulate=False, long_rows=long_rows)
    return out_MD


@csr_sum.register_fake
def _(  # noqa: PLR0913 - as above
    indptr: Tensor,
    index: Tensor,
    weight: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    x: Tensor,
    back_indptr: Tensor | None,
    back_index: Tensor | None,
    back_weight: Tensor | None,
) -> Tensor:
    return x.new_empty(indptr.size(0) - 1, x.size(1))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    indptr, index, weight, row_scale, col_scale, _, *back = inputs
    ctx.save_for_backward(indptr, index, weight, row_scale, col_scale, *back)


def _save_all(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _save(ctx, inputs[:9], output)
    ctx.long_rows = inputs[9:]


def _backward(call: Callable[..., Tensor], ctx: Any, grad_MD: Tensor) -> tuple[Any, ...]:
    indptr, index, weight, row_scale, col_scale, *back = ctx.saved_tensors
    back_indptr, back_index, back_weight = back
    assert back_indptr is not None, "neighbour_sum passes the transpose whenever x needs a gradient"
    turned = back_indptr, back_index, back_weight, col_scale, row_scale
    # Of the quick one: the long rows, here and in the transpose.
    long_rows = getattr(ctx, "long_rows", ())[::-1]
    grad_CD = call(*turned, grad_MD, indptr, index, weight, *long_rows)
    return None, None, None, None, None, grad_CD, None, None, None, *(None for _ in long_rows)


csr_sum.register_autograd(partial(_backward, csr_sum), setup_context=_save)
_quick_sum = quick(lambda *inputs: csr_sum(*inputs[:9]), _summed, _save_all, _backward)


def _sum_into(
    edges: Edges,
    x_CD: Tensor,
    out_MD: Tensor,
    *,
    accumulate: bool,
    long_rows: LongRows | None = None,
    own_K: Tensor | None = None,
) -> None:
    kernels = csr_kernels(x_CD.device)
    edges, x_CD = edges.contiguous(), widened(kernels, x_CD).contiguous()
    more: dict[str, Any] = {"long_rows": long_rows, "own_K": own_K}
    if out_MD.is_contiguous() and out_MD.dtype in kernels.DTYPES:
        kernels.sum_into(edges, x_CD, out_MD, accumulate=accumulate, **more)
        return
    part_MD = torch.empty(out_MD.shape, dtype=x_CD.dtype, device=x_CD.device)
    kernels.sum_into(edges, x_CD, part_MD, accumulate=False, **more)
    if accumulate:
        out_MD += part_MD
    else:
        out_MD.copy_(part_MD)


def _check(csr: CSR, x_CD: Tensor, edges: Edges) -> None:
    """Raise unless x has a row for each column, and the factors fit it and need no gradient."""
    check_source(csr, x_CD)
    for name, factor, length in (
        ("weight", edges.weight_E, csr.num_edges),
        ("row_scale_M", edges.row_scale_M, csr.num_rows),
        ("col_scale_C", edges.col_scale_C, csr.num_cols),
    ):
        if factor is None:
            continue
        if factor.requires_grad:
            raise PlanError(
                "The neighbour sum has no gradient for its factors.",
                seen=f"{name}.requires_grad is True",
                fix=f"detach {name}, or multiply it into x before the sum",
            )
        wanted = (length,), sum_type(x_CD.dtype), x_CD.device
        if (factor.shape, factor.dtype, factor.device) != wanted:
            raise PlanError(
                f"{name} does not fit x.",
                seen=f"{tuple(factor.shape)} {factor.dtype} on {factor.device}",
                fix=f"pass {length} entries of {wanted[1]} on {x_CD.device}",
            )


def check_source(csr: CSR, x_CD: Tensor) -> None:
    """Raise unless x_CD has one row for each column of the matrix, on its device."""
    fits = x_CD.dim() == 2 and x_CD.size(0) == csr.num_cols and x_CD.device == csr.device
    if not (fits and x_CD.is_floating_point()):
        raise PlanError(
            "The input does not fit the matrix.",
            seen=f"x {tuple(x_CD.shape)} {x_CD.dtype} on {x_CD.device}; "
            f"{csr.num_cols} columns on {csr.device}",
            fix="pass one floating-point row for each column, on the matrix's device",
        )

"""The neighbour maximum, entry by entry, and which edge held it.

Shapes: M destination rows, C source columns, E edges, D width.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from siafu.ops.compiler_guard import guarded_late
from siafu.ops.contract import Edges, sum_type
from siafu.ops.csr.matrix import CSR, edge_dtype
from siafu.ops.csr.sum import check_source
from siafu.ops.kernels import csr_kernels, widened


def csr_max_reference(csr: CSR, x_CD: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, one destination at a time. Slow; used by tests alone.

    Its gradient goes to the first edge that holds the maximum, since the value is read from there.
    """
    out_MD = x_CD.new_zeros(csr.num_rows, x_CD.size(1))
    edge_MD = torch.full_like(out_MD, -1, dtype=edge_dtype(csr.num_edges))
    for row, (lo, hi) in enumerate(pairwise(csr.indptr.tolist())):
        for column in range(x_CD.size(1) if hi > lo else 0):
            values = x_CD[csr.index[lo:hi].long(), column]
            is_best = (values == values.max()) | values.isnan()
            edge_MD[row, column] = lo + int(is_best.nonzero()[0])
    best_M = csr.index.long()[edge_MD.clamp(min=0).long()] if csr.num_edges else edge_MD.long()
    if csr.num_edges:
        out_MD = torch.where(edge_MD >= 0, x_CD.gather(0, best_M), out_MD)
    return out_MD, edge_MD


def max_with_argument(csr: CSR, x_CD: Tensor) -> tuple[Tensor, Tensor]:
    """Return (out_MD, edge_MD): each row's maximum, and the first edge that holds it.

    Empty rows give 0 and -1. Edge numbers are int32 while they fit. No gradient flows.
    """
    check_source(csr, x_CD)
    out_MD, edge_MD = csr_max(csr.indptr, csr.index, x_CD.detach())
    return out_MD, edge_MD


def fold_max(
    csr: CSR,
    x_CD: Tensor,
    number_E: Tensor,
    value_MD: Tensor,
    edge_MD: Tensor,
    *,
    rows_M: Tensor | None = None,
) -> None:
    """Fold a block of edges into the largest values so far and the numbers of their edges.

    Begin with -infinity, in the type of sums, and the largest integer. NaN wins over all, and of
    equal values the lower number. `rows_M` tells which rows of the state the block's are; None: the
    same. In place.
    """
    check_source(csr, x_CD)
    edges = Edges(csr.indptr, csr.index).contiguous()
    kernels = csr_kernels(x_CD.device)
    rows_CD = widened(kernels, x_CD.detach()).contiguous()
    kernels.max_fold_into(edges, number_E.contiguous(), rows_M, rows_CD, value_MD, edge_MD)


def max_gradients(
    csr: CSR, place_MD: Tensor, grad_MD: Tensor, *, first: int = 0, rows_M: Tensor | None = None
) -> Tensor:
    """Return grad_CD: entries whose place is among a block's edges, added where these read.

    `first` is the place of the block's first edge, `rows_M` as in `fold_max`.
    """
    options = {"first": first, "rows_M": rows_M, "indptr": csr.indptr}
    return _max_grads(csr.index, place_MD, grad_MD, csr.num_cols, **options)


def _max_grads(
    index: Tensor, place_MD: Tensor, grad_MD: Tensor, num_cols: int, **options: Any
) -> Tensor:
    """Return gradients added up in the type of sums, whatever theirs is."""
    wide_MD = grad_MD.to(sum_type(grad_MD.dtype)).contiguous()
    grad_CD = wide_MD.new_zeros(num_cols, grad_MD.size(1))
    kernels = csr_kernels(grad_MD.device)
    kernels.max_grad_into(index.contiguous(), place_MD.contiguous(), wide_MD, grad_CD, **options)
    return grad_CD.to(grad_MD.dtype)


def neighbour_max(csr: CSR, x_CD: Tensor) -> Tensor:
    """Return out_MD, each row's maximum over its edges; empty rows give 0.

    Differentiable in x: of equal edges only the first receives the gradient. NaN wins over all.
    """
    check_source(csr, x_CD)
    out_MD, _ = csr_max(csr.indptr, csr.index, x_CD)
    return out_MD


@guarded_late
@torch.library.custom_op("siafu::csr_max", mutates_args=())
def csr_max(indptr: Tensor, index: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return out_MD and edge_MD as `max_with_argument` defines them."""
    kernels = csr_kernels(x.device)
    rows_CD = widened(kernels, x).contiguous()
    out_MD = rows_CD.new_empty(len(indptr) - 1, x.size(1))
    edge_MD = torch.empty_like(out_MD, dtype=edge_dtype(len(index)))
    kernels.max_into(Edges(indptr, index).contiguous(), rows_CD, out_MD, edge_MD)
    return out_MD.to(x.dtype), edge_MD


@csr_max.register_fake
def _(indptr: Tensor, index: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    out_MD = x.new_empty(indptr.size(0) - 1, x.size(1))
    return out_MD, torch.empty_like(out_MD, dtype=edge_dtype(index.size(0)))


@guarded_late
@torch.library.custom_op("siafu::csr_max_grad", mutates_args=())
def csr_max_grad(index: Tensor, edge: Tensor, grad: Tensor, num_cols: int) -> Tensor:
    """Return grad_CD: each entry of grad_MD added to the source row that its edge reads."""
    return _max_grads(index, edge, grad, num_cols)


@csr_max_grad.register_fake
def _(index: Tensor, edge: Tensor, grad: Tensor, num_cols: int) -> Tensor:
    return grad.new_empty(num_cols, grad.size(1))


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    _, index, x_CD = inputs
    ctx.save_for_backward(index, output[1])
    ctx.num_cols = x_CD.size(0)


def _backward(ctx: Any, grad_MD: Tensor, _: Tensor) -> tuple[None, None, Tensor]:
    index, edge_MD = ctx.saved_tensors
    return None, None, csr_max_grad(index, edge_MD, grad_MD, ctx.num_cols)


csr_max.register_autograd(_backward, setup_context=_save)

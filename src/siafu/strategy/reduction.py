"""A user's message function reduced over in-neighbours, a block and a piece of rows at a time.

Forward keeps the result and what its gradient needs of each row (`joins.py`). Backward calls the
function again on the same rows, with the same draws.

Shapes: M rows written, W width of a message.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.errors import PlanError
from siafu.ops import CSR, sum_into, sum_type
from siafu.strategy.blocks import Block
from siafu.strategy.joins import REDUCTIONS, Piece, Reduction, ReductionCall, pieces_of, wide
from siafu.strategy.rounding import Exchange
from siafu.strategy.walk import Homeward, Rows, begin_exchange, visit, visit_again, wide_zeros


class _Reduced(torch.autograd.Function):
    """Rows of sources, destinations and edges, and captured tensors in; out_MW back."""

    @staticmethod
    def forward(
        ctx: Any, call: ReductionCall, exchange: Exchange | None, *tensors: Tensor
    ) -> Tensor:
        src, dst, edge = call.split(tensors)
        like = call.reach.own.csr.indptr.new_empty(0, dtype=sum_type(call.function.dtype))
        reduction = REDUCTIONS[call.reduce](call, like)
        ctx.kept = []

        def fold(block: Block, arrived: Rows) -> None:
            for piece in pieces_of(call, block, (*src, *dst, *edge)):
                rows = piece.gather(arrived, dst, edge)
                reduction.fold(piece, wide(call.function(rows, piece.ends(call))))
            if call.keep and call.reach.keeps(block):
                ctx.kept.append(arrived)

        visit(call.reach, src, fold, exchange)
        out_MW = reduction.finish().to(call.function.dtype)
        ctx.call, ctx.reduction, ctx.exchange = call, reduction, exchange
        ctx.save_for_backward(*tensors, out_MW)
        return out_MW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MW: Tensor) -> tuple[Any, ...]:
        call, reduction = ctx.call, ctx.reduction
        *tensors, out_MW = ctx.saved_tensors
        src, dst, edge = call.split(tuple(tensors))
        reduction.prepare(*wide((out_MW, grad_MW.contiguous())))
        wanted = ctx.needs_input_grad[2:]
        into = {n: wide_zeros(t) for n, t in enumerate(tensors) if wanted[n]}
        sends = [n for n in range(len(src)) if wanted[n]]
        homeward = Homeward(call.reach, ctx.exchange, sends)
        own = tuple(into[n] for n in sends)

        def give_back(block: Block, arrived: Rows) -> None:
            totals = into
            if block is not call.reach.own:
                totals = into | {n: wide_zeros(arrived[n]) for n in sends}
            for piece in pieces_of(call, block, (*src, *dst, *edge)):
                _piece_grads(call, piece, (arrived, dst, edge), reduction, totals)
            if block is not call.reach.own and sends:
                homeward.send(block, tuple(totals[n].to(src[n].dtype) for n in sends), own)

        visit_again(call.reach, src, give_back, ctx.exchange, ctx.kept)
        homeward.settle(own)
        found = (into[n].to(t.dtype) if n in into else None for n, t in enumerate(tensors))
        return None, None, *found


def _piece_grads(
    call: ReductionCall,
    piece: Piece,
    operands: tuple[Rows, Rows, Rows],
    reduction: Reduction,
    totals: dict[int, Tensor],
) -> None:
    """Call the function once more on a piece and add the gradients of all it depends on."""
    rows = tuple(tensor.detach() for tensor in piece.gather(*operands))
    for n, tensor in enumerate(rows):
        tensor.requires_grad_(n in totals)
    given = call.function.stand_ins()
    with torch.enable_grad():
        results = call.function(rows, piece.ends(call), given)
    pairs = [
        (result, grad.view_as(result).to(result.dtype))
        for grad, result in zip(reduction.grads(piece, wide(results)), results, strict=True)
        if result.requires_grad
    ]
    inputs, places = [*rows, *given], sorted(totals)
    if not pairs or not places:
        return
    outputs, grads = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, [inputs[n] for n in places], grads, allow_unused=True)
    num_src, num_dst, num_edge = call.counts
    for n, grad in zip(places, found, strict=True):
        if grad is None:
            continue
        total = totals[n]
        if n < num_src:
            transposed = CSR(piece.csr.transpose().indptr, piece.csr.transpose_order(), len(grad))
            _add_rows(transposed, grad, total)
        elif n < num_src + num_dst:
            part = piece.pick(total)
            _add_rows(piece.messages, grad, part)
            piece.put(total, part)
        elif n < num_src + num_dst + num_edge:
            total.index_copy_(0, piece.numbers_S.long(), grad.to(total.dtype))
        else:
            total.add_(grad)


def _add_rows(csr: CSR, grad: Tensor, total: Tensor) -> None:
    width = math.prod(total.shape[1:])  # named, since -1 is ambiguous for no rows
    flat = total.view(total.size(0), width)
    sum_into(csr, grad.reshape(grad.size(0), width), flat, accumulate=True)


def staged_reduce(call: ReductionCall, tensors: Rows) -> Tensor:
    """Return the reduced messages of M rows, differentiable in all tensors and captured ones."""
    exchange = begin_exchange(call.reach, call.split(tensors)[0])
    out_MW: Tensor = _Reduced.apply(call, exchange, *tensors, *call.function.captured)
    if bool(out_MW.detach().isnan().any()):
        row = int(out_MW.detach().isnan().flatten(1).any(dim=1).nonzero()[0])
        raise PlanError(
            "A message function returned NaN.",
            seen=f"among the in-edges of node {int(call.row_ids[row])} (its number in the store)",
            fix="look for 0 / 0, a logarithm or root of a negative number, or NaN in the inputs",
        )
    return out_MW.view(out_MW.size(0), *call.function.shapes[-1])

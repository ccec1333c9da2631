"""Attention over in-neighbours, a block at a time, with a running softmax.

Backward needs the rows again. They are fetched a second time, or kept from forward where memory
allows; either way weights are computed anew from one log-sum-exp a row and head, and dropped by the
same draws. What edges themselves bring to the scores is made in pieces of rows and never whole.

Shapes: N owned rows, M rows written, K columns of a block, E edges, H heads, D width of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.errors import PlanError
from siafu.nn import EdgeFunction, EdgeRows
from siafu.ops import (
    CSR,
    Attention,
    DrawKey,
    EdgeDraw,
    HeldKey,
    SoftmaxState,
    delta_of,
    finish,
    fold_backward,
    fold_into,
)
from siafu.strategy.blocks import Block, Reach
from siafu.strategy.offload import again, kept
from siafu.strategy.rounding import Exchange
from siafu.strategy.walk import (
    Homeward,
    Rows,
    begin_exchange,
    graph_is_kept,
    visit,
    visit_again,
    zeros_like,
)


@dataclass(frozen=True, eq=False)
class EdgeDropout:
    """Which weights to drop: the draws of an epoch, and the ids of columns and rows."""

    key: DrawKey | HeldKey
    p: float
    column_ids: Tensor
    row_ids: Tensor
    first_head: int = 0

    def of(self, block: Block, span: slice) -> EdgeDraw:
        """Return the draws for some rows of a block."""
        ids_K = self.column_ids.index_select(0, block.columns_K)
        return EdgeDraw(self.key, self.p, ids_K, block.pick(self.row_ids, span), self.first_head)


@dataclass(frozen=True, eq=False)
class EdgeOperand:
    """What edges bring, made from their data a piece at a time."""

    function: EdgeFunction
    rows: EdgeRows
    loop_M: Tensor

    def __post_init__(self) -> None:
        if self.function.num_sites:
            raise PlanError(
                "What edges bring to an attention can't be dropped inside their function.",
                seen="dropout in the function of edges",
                fix="use the attention's own dropout, which drops its weights",
            )

    def make(self, numbers_E: Tensor, given: Rows | None = None) -> Tensor:
        """Return the operand of some edges, loops among them; `given` as in EdgeFunction."""
        data_E, count = self.rows.data_E, len(self.rows.data_E)
        picked = data_E.index_select(0, numbers_E.clamp(max=max(0, count - 1))) if count else None
        loops = self.loop_M.index_select(0, (numbers_E - count).clamp(min=0))
        if picked is not None:
            is_loop = (numbers_E >= count).view(-1, *(1,) * (data_E.dim() - 1))
            loops = torch.where(is_loop, loops, picked)
        none = torch.zeros(len(numbers_E), dtype=torch.int64, device=data_E.device)
        return self.function((loops,), (none, none), given)[0]


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention: what is computed, over which edges, what is dropped, what is kept."""

    kind: Attention
    reach: Reach
    counts: tuple[int, int, int, int]
    """How many tensors are sources, rows, shared, and captured by the edges' function."""
    keep: bool
    """Whether there is a backward, for which rows stay as `reach` says."""
    dropout: EdgeDropout | None = None
    edges: EdgeOperand | None = None

    def split(self, tensors: Rows) -> tuple[Rows, Rows, Rows, Rows]:
        """Return the tensors by sort."""
        ends = [sum(self.counts[:n]) for n in range(1, 5)]
        a, b, c, d = ends
        return tensors[:a], tensors[a:b], tensors[b:c], tensors[c:d]

    def pieces(self, block: Block) -> Iterator[tuple[slice, CSR, Tensor | None]]:
        """Yield rows, their edges and the numbers of these; one piece unless edges have data."""
        if self.edges is None:
            yield slice(0, block.csr.num_rows), block.csr, None
            return
        yield from block.pieces(self.edges.function.width)

    def drop(self, block: Block, span: slice) -> EdgeDraw | None:
        """Return the dropout of some rows of a block."""
        return None if self.dropout is None else self.dropout.of(block, span)


class _Attend(torch.autograd.Function):
    """Sources, rows, shared and captured tensors in; out_MHD back."""

    @staticmethod
    def forward(
        ctx: Any, call: AttentionCall, exchange: Exchange | None, *tensors: Tensor
    ) -> Tensor:
        sources, rows, shared, _ = call.split(tensors)
        num_rows, heads = call.reach.own.csr.num_rows, sources[0].size(1)
        state = SoftmaxState.empty(num_rows, heads, sources[0].size(2), sources[-1])
        ctx.kept = []

        def fold(block: Block, arrived: Rows) -> None:
            for span, csr, numbers in call.pieces(block):
                part = SoftmaxState(*(block.pick(tensor, span) for tensor in state.flat()))
                edge = None if numbers is None or call.edges is None else call.edges.make(numbers)
                ends = tuple(block.pick(tensor, span) for tensor in rows)
                drop = call.drop(block, span)
                fold_into(call.kind, csr, arrived, ends, shared, part, edge=edge, drop=drop)
                for tensor, changed in zip(state.flat(), part.flat(), strict=True):
                    block.put(tensor, span, changed)
            if call.keep and call.reach.keeps(block):
                ctx.kept.append(arrived)

        visit(call.reach, sources, fold, exchange)
        out_MHD, lse_MH = finish(state)
        out_MHD = out_MHD.to(sources[0].dtype)
        ctx.call, ctx.exchange = call, exchange
        # Not saved as others are: backward lets go of it before it fetches any rows.
        ctx.out_MHD = kept(out_MHD.detach())
        ctx.version = out_MHD._version
        ctx.save_for_backward(*tensors, lse_MH)
        return out_MHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MHD: Tensor) -> tuple[Any, ...]:
        call = ctx.call
        *tensors, lse_MH = ctx.saved_tensors
        is_here = isinstance(ctx.out_MHD, Tensor)
        unchanged = not is_here or ctx.out_MHD._version == ctx.version
        assert unchanged, "an attention's output was changed in place"
        sources, rows, shared, captured = call.split(tuple(tensors))
        grad_MHD = grad_MHD.contiguous()
        after = _After(lse_MH, grad_MHD, delta_of(grad_MHD, again(ctx.out_MHD)))
        if not graph_is_kept():
            ctx.out_MHD = None
        into = _Into(call.reach, rows, shared, captured)
        homeward = Homeward(call.reach, ctx.exchange)
        own: list[Tensor] = []

        def give_back(block: Block, arrived: Rows) -> None:
            grads = _block_grads(call, block, (arrived, rows, shared), after, into)
            if block is call.reach.own:
                own.extend(grads)
            else:
                home = (grad.to(tensor.dtype) for grad, tensor in zip(grads, arrived, strict=True))
                homeward.send(block, tuple(home), tuple(own))

        visit_again(call.reach, sources, give_back, ctx.exchange, ctx.kept)
        homeward.settle(tuple(own))
        grads = (*own, *into.rows, *into.shared, *into.captured)
        return None, None, *(g.to(t.dtype) for g, t in zip(grads, tensors, strict=True))


@dataclass(frozen=True)
class _After:
    """What backward knows of each row."""

    lse_MH: Tensor
    grad_MHD: Tensor
    delta_MH: Tensor


class _Into:
    """Gradients that all blocks add to."""

    def __init__(self, reach: Reach, rows: Rows, shared: Rows, captured: Rows) -> None:
        self.rows, self.shared, self.captured = (
            tuple(zeros_like(t, reach.sum_type(t.dtype)) for t in tensors)
            for tensors in (rows, shared, captured)
        )


def _block_grads(
    call: AttentionCall, block: Block, operands: tuple[Rows, Rows, Rows], after: _After, into: _Into
) -> Rows:
    """Return the gradients of a block's sources, adding those of rows, shared and captured."""
    arrived, rows, shared = operands
    total = tuple(zeros_like(t, call.reach.sum_type(t.dtype)) for t in arrived)
    for span, csr, numbers in call.pieces(block):
        edge = None
        given: Rows = ()
        if call.edges is not None and numbers is not None:
            given = call.edges.function.stand_ins()
            with torch.enable_grad():
                edge = call.edges.make(numbers, given)
        grads_rows = tuple(block.pick(tensor, span) for tensor in into.rows)
        _, edge_grad = fold_backward(
            call.kind,
            csr,
            arrived,
            tuple(block.pick(tensor, span) for tensor in rows),
            shared,
            block.pick(after.lse_MH, span),
            block.pick(after.grad_MHD, span),
            block.pick(after.delta_MH, span),
            edge=None if edge is None else edge.detach(),
            drop=call.drop(block, span),
            into_rows=grads_rows,
            into_shared=into.shared,
            into_sources=total,
            with_edge=bool(into.captured),
        )
        for tensor, changed in zip(into.rows, grads_rows, strict=True):
            block.put(tensor, span, changed)
        if edge is not None and into.captured:
            found = torch.autograd.grad(edge, given, edge_grad, allow_unused=True)
            for held, gained in zip(into.captured, found, strict=True):
                if gained is not None:
                    held.add_(gained)
    return total


def staged_attention(call: AttentionCall, tensors: Rows) -> Tensor:
    """Return out_MHD, differentiable in all tensors."""
    exchange = begin_exchange(call.reach, call.split(tensors)[0])
    out_MHD: Tensor = _Attend.apply(call, exchange, *tensors)
    return out_MHD

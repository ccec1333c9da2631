"""Sums and maxima over in-neighbours, a block at a time.

Neither needs the rows again: a sum's gradient is a sum over the transposes, and a maximum's goes to
the columns that held it, which are kept.

Shapes: N owned rows, M rows written, C columns of the whole, K columns of a block, D width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.ops import max_with_argument, sum_into
from siafu.ops.csr.maximum import csr_max_grad
from siafu.strategy.blocks import Block, Reach
from siafu.strategy.rounding import Exchange, square_sums
from siafu.strategy.walk import Homeward, Rows, begin_exchange, visit


@dataclass(frozen=True)
class Scales:
    """Factors of rows and columns around a sum; None is 1."""

    row_M: Tensor | None = None
    col_C: Tensor | None = None

    def of(self, block: Block) -> Tensor | None:
        """Return the factors of a block's columns."""
        return None if self.col_C is None else self.col_C.index_select(0, block.columns_K)


class _Sum(torch.autograd.Function):
    """out = rows * sum over blocks of (block @ (cols * x)), and its transpose."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, reach: Reach, scales: Scales, exchange: Exchange | None
    ) -> Tensor:
        ctx.reach, ctx.scales, ctx.exchange = reach, scales, exchange
        out_MD = x_ND.new_empty(reach.own.csr.num_rows, x_ND.size(1))

        def add(block: Block, rows: Rows) -> None:
            sum_into(
                block.csr,
                rows[0],
                out_MD,
                accumulate=block is not reach.own,
                row_scale_M=scales.row_M,
                col_scale_C=scales.of(block),
            )

        visit(reach, (x_ND,), add, exchange)
        return out_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None, None]:
        reach, scales = ctx.reach, ctx.scales
        grad_MD, homeward = grad_MD.contiguous(), Homeward(reach, ctx.exchange)

        def transposed(block: Block) -> Tensor:
            grad_KD = grad_MD.new_empty(block.csr.num_cols, grad_MD.size(1))
            back, factors = block.csr.transpose(), scales.of(block)
            sum_into(back, grad_MD, grad_KD, row_scale_M=factors, col_scale_C=scales.row_M)
            return grad_KD

        # The first stage's gradients travel while the owned ones are summed.
        stages = iter(reach.stages)
        if (first := next(stages, None)) is not None:
            homeward.send(first, (transposed(first),), ())
        grad_ND = transposed(reach.own)
        for block in stages:
            homeward.send(block, (transposed(block),), (grad_ND,))
        homeward.settle((grad_ND,))
        return grad_ND, None, None, None


def staged_sum(x_ND: Tensor, reach: Reach, scales: Scales) -> Tensor:
    """Return out_MD, differentiably; weights of the blocks are of x's type."""

    def squares(block: Block) -> Tensor:
        return square_sums(block.csr, scales.row_M, scales.of(block))

    out_MD: Tensor = _Sum.apply(x_ND, reach, scales, begin_exchange(reach, (x_ND,), squares))
    return out_MD


_NUMBERS_AT_ONCE = 1 << 20


class Best:
    """The largest value of each entry so far, and which edge and column held it.

    Of equal values the edge with the lowest number in the whole wins, however edges are cut up.
    """

    def __init__(self, num_rows: int, width: int, like: Tensor) -> None:
        self.value_MD = like.new_zeros(num_rows, width)
        self.edge_MD = torch.full((num_rows, width), -1, dtype=torch.int64, device=like.device)

    def fold(self, span: slice, value_MD: Tensor, edge_MD: Tensor) -> Tensor:
        """Take over where a block is better; return where that was. Edge -1 means none."""
        held, held_edge = self.value_MD[span], self.edge_MD[span]
        tied = (value_MD == held) | (value_MD.isnan() & held.isnan())
        above = (value_MD > held) | (value_MD.isnan() & ~held.isnan())
        wins = (held_edge < 0) | above | (tied & (edge_MD < held_edge))
        wins &= edge_MD >= 0
        self.value_MD[span] = torch.where(wins, value_MD, held)
        self.edge_MD[span] = torch.where(wins, edge_MD, held_edge)
        return wins


class _Max(torch.autograd.Function):
    """Keeps int32 [M, D], the column that held each maximum, instead of any rows."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, reach: Reach, exchange: Exchange | None) -> Tensor:
        num_rows, width = reach.own.csr.num_rows, x_ND.size(1)
        best = Best(num_rows, width, x_ND)
        column_MD = torch.full((num_rows, width), -1, dtype=torch.int32, device=x_ND.device)

        def fold(block: Block, rows: Rows) -> None:
            value_MD, place_MD = max_with_argument(block.csr, rows[0])
            if not block.csr.num_edges:
                return
            for span in _spans(num_rows, width):
                known_MD = place_MD[span].clamp(min=0).long()
                numbers_MD = block.edges_E[known_MD].long()
                number_MD = torch.where(place_MD[span] >= 0, numbers_MD, -1)
                wins = best.fold(span, value_MD[span], number_MD)
                held_MD = block.columns_K[block.csr.index[known_MD].long()].int()
                column_MD[span] = torch.where(wins, held_MD, column_MD[span])

        visit(reach, (x_ND,), fold, exchange)
        ctx.reach, ctx.exchange = reach, exchange
        ctx.save_for_backward(column_MD)
        return best.value_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None]:
        reach, (column_MD,) = ctx.reach, ctx.saved_tensors
        homeward = Homeward(reach, ctx.exchange)
        grad_ND = _given_back(reach.own, column_MD, grad_MD)
        for block in reach.stages:
            homeward.send(block, (_given_back(block, column_MD, grad_MD),), (grad_ND,))
        homeward.settle((grad_ND,))
        return grad_ND, None, None


def _given_back(block: Block, column_MD: Tensor, grad_MD: Tensor) -> Tensor:
    """Return grad_KD: each entry of the gradient added to the column that held it."""
    place_C, place_MD = block.places_C, torch.full_like(column_MD, -1)
    for span in _spans(*column_MD.shape):
        column = column_MD[span]
        place = place_C[column.clamp(min=0).long()] if len(place_C) else column
        place_MD[span] = torch.where(column >= 0, place, -1)
    numbers_K = torch.arange(block.csr.num_cols, dtype=torch.int32, device=grad_MD.device)
    return csr_max_grad(numbers_K, place_MD, grad_MD, len(numbers_K))


def _spans(num_rows: int, width: int) -> list[slice]:
    """Return spans of rows whose numbers of edges are small beside the rows themselves."""
    step = max(1, _NUMBERS_AT_ONCE // max(1, width))
    return [slice(low, min(low + step, num_rows)) for low in range(0, num_rows, step)]


def staged_max(x_ND: Tensor, reach: Reach) -> Tensor:
    """Return out_MD, differentiably: of equal edges the first receives the gradient."""
    out_MD: Tensor = _Max.apply(x_ND, reach, begin_exchange(reach, (x_ND,)))
    return out_MD

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

from siafu.ops import CSR, fold_max, max_gradients, max_with_argument, sum_into
from siafu.ops.csr.matrix import edge_dtype
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
            part_QD, every = block.pick(out_MD), slice(None)
            sum_into(
                block.csr,
                rows[0],
                part_QD,
                accumulate=block is not reach.own,
                row_scale_M=None if scales.row_M is None else block.pick(scales.row_M),
                col_scale_C=scales.of(block),
            )
            block.put(out_MD, every, part_QD)

        visit(reach, (x_ND,), add, exchange)
        return out_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None, None]:
        reach, scales = ctx.reach, ctx.scales
        grad_MD, homeward = grad_MD.contiguous(), Homeward(reach, ctx.exchange)

        def transposed(block: Block) -> Tensor:
            grad_KD = grad_MD.new_empty(block.csr.num_cols, grad_MD.size(1))
            factors = scales.of(block)
            sum_into(block.back, grad_MD, grad_KD, row_scale_M=factors, col_scale_C=scales.row_M)
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
        return square_sums(block.back, scales.row_M, scales.of(block))

    out_MD: Tensor = _Sum.apply(x_ND, reach, scales, begin_exchange(reach, (x_ND,), squares))
    return out_MD


_NUMBERS_AT_ONCE = 1 << 20


class Best:
    """The largest value of each entry so far, and the number of the edge that held it.

    Of equal values the edge with the lowest number in the whole wins, however edges are cut up.
    """

    def __init__(self, whole: CSR, width: int, like: Tensor) -> None:
        shape, kind = (whole.num_rows, width), edge_dtype(whole.num_edges + whole.num_rows)
        self.value_MD = like.new_full(shape, -torch.inf)
        self.edge_MD = torch.full(shape, torch.iinfo(kind).max, dtype=kind, device=like.device)
        self._is_empty_M1 = (whole.degree() == 0)[:, None]

    def finish(self) -> Tensor:
        """Return the values once all blocks are folded in: 0, held by edge -1, of no edges."""
        self.edge_MD.masked_fill_(self._is_empty_M1, -1)
        return self.value_MD.masked_fill_(self._is_empty_M1, 0)


class _Max(torch.autograd.Function):
    """Keeps [M, D], the place of the edge that held each maximum, instead of any rows."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, reach: Reach, exchange: Exchange | None) -> Tensor:
        ctx.reach, ctx.exchange = reach, exchange
        if not reach.stages:
            value_MD, place_MD = max_with_argument(reach.own.csr, x_ND)
            ctx.save_for_backward(place_MD)
            return value_MD
        best = Best(reach.own.whole, x_ND.size(1), x_ND)

        def fold(block: Block, rows: Rows) -> None:
            held = best.value_MD, best.edge_MD
            fold_max(block.csr, rows[0], block.edges_E, *held, rows_M=block.rows_Q)

        visit(reach, (x_ND,), fold, exchange)
        value_MD = best.finish()
        ctx.save_for_backward(_places(reach, best.edge_MD))
        return value_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None]:
        reach, (place_MD,) = ctx.reach, ctx.saved_tensors
        homeward = Homeward(reach, ctx.exchange)
        grad_MD = grad_MD.contiguous()

        def given_back(block: Block) -> Tensor:
            held = place_MD, grad_MD
            return max_gradients(block.csr, *held, first=block.first_edge, rows_M=block.rows_Q)

        grad_ND = given_back(reach.own)
        for block in reach.stages:
            homeward.send(block, (given_back(block),), (grad_ND,))
        homeward.settle((grad_ND,))
        return grad_ND, None, None


def _places(reach: Reach, edge_MD: Tensor) -> Tensor:
    """Replace numbers of edges by their places among the edges of all blocks, one after another."""
    cut = reach.own.cut
    assert cut is not None, "there are several blocks"
    place_E = torch.empty_like(cut.order_E)
    numbers = torch.arange(len(place_E), dtype=place_E.dtype, device=place_E.device)
    place_E.index_copy_(0, cut.order_E.long(), numbers)
    if len(place_E):
        for span in _spans(*edge_MD.shape):
            edge = edge_MD[span]
            place = place_E.index_select(0, edge.reshape(-1).clamp(min=0)).view_as(edge)
            edge_MD[span] = torch.where(edge >= 0, place, -1)
    return edge_MD


def _spans(num_rows: int, width: int) -> list[slice]:
    """Return spans of rows whose numbers of edges are small beside the rows themselves."""
    step = max(1, _NUMBERS_AT_ONCE // max(1, width))
    return [slice(low, min(low + step, num_rows)) for low in range(0, num_rows, step)]


def staged_max(x_ND: Tensor, reach: Reach) -> Tensor:
    """Return out_MD, differentiably: of equal edges the first receives the gradient."""
    out_MD: Tensor = _Max.apply(x_ND, reach, begin_exchange(reach, (x_ND,)))
    return out_MD

"""Sums and maxima over in-neighbours, a block at a time.

Neither needs the rows again: a sum's gradient is a sum over the transposes, and a maximum's goes to
the columns that held it, which are kept.

Shapes: N owned rows, M rows written, C columns of the whole, K columns of a block, D width.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm import PendingRows
from siafu.ops import (
    CSR,
    fold_max,
    linear,
    map_gradient,
    map_rows,
    max_gradients,
    max_with_argument,
    sum_into,
    sum_type,
)
from siafu.ops.csr.matrix import edge_dtype
from siafu.strategy.blocks import Block, Reach
from siafu.strategy.dropping import LateDropout
from siafu.strategy.rounding import Exchange, square_sums
from siafu.strategy.walk import Homeward, Rows, begin_exchange, start_stage, visit

_ROWS_AT_ONCE = 1 << 14
"""Rows that are mapped together where they are taken out of others, so that copies are small."""

Needed = tuple[Tensor, Tensor]
"""int64: owned rows that others need, and the rest."""


@dataclass(frozen=True)
class Scales:
    """Factors of rows and columns around a sum; None is 1."""

    row_M: Tensor | None = None
    col_C: Tensor | None = None

    def of(self, block: Block) -> Tensor | None:
        """Return the factors of a block's columns."""
        return None if self.col_C is None else self.col_C.index_select(0, block.columns_K)


class Departure:
    """An exchange that begins before its sum: rows are on their way out, later gradients home.

    Between what begins and what ends it, forward and backward, others compute.
    """

    def __init__(self, reach: Reach, scales: Scales, rows: Tensor) -> None:
        """`rows` tell of shape and kind, and whether they were dropped; they are sent later."""

        def squares(block: Block) -> Tensor:
            return square_sums(block.back, scales.row_M, scales.of(block))

        self.reach, self.scales = reach, scales
        self.exchange = begin_exchange(reach, (rows,), squares)
        self.begun: list[PendingRows] | None = None
        self.homeward: Homeward | None = None
        self._sent: weakref.ref[Tensor] | None = None

    def start(self, rows_ND: Tensor) -> None:
        """Send what others need of the rows first; the others need not be written yet."""
        self.begun = start_stage(self.reach, 0, (rows_ND,), self.exchange)

    def is_of(self, rows_ND: Tensor) -> bool:
        """Return whether these are the rows that were sent."""
        return self._sent is not None and self._sent() is rows_ND

    def note(self, rows_ND: Tensor) -> Tensor:
        """Return the rows, which its sum is going to be asked of."""
        self._sent = weakref.ref(rows_ND)
        return rows_ND

    def settle(self, grad_ND: Tensor) -> None:
        """Add what is on its way home to the gradients of the owned rows."""
        homeward, self.homeward = self.homeward, None
        if homeward is not None:
            homeward.settle((grad_ND,))


class _Depart(torch.autograd.Function):
    """x as it is; its rows leave, and their gradients come home."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        departure: Departure,
        needed: Needed | None,
        late: LateDropout | None,
    ) -> Tensor:
        ctx.departure = departure
        parts = needed if late is not None and needed is not None else ()
        for rows in parts[:1]:
            _write(late, rows)
        departure.start(x_ND.contiguous())
        for rows in parts[1:]:
            _write(late, rows)
        return x_ND.view_as(x_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None, None]:
        wide_ND = grad_ND.to(sum_type(grad_ND.dtype)).contiguous()
        ctx.departure.settle(wide_ND)
        return wide_ND.to(grad_ND.dtype), None, None, None


def _write(late: LateDropout | None, rows: Tensor) -> None:
    for some in rows.split(_ROWS_AT_ONCE):
        if late is not None:
            late.write(some)


class _MapAhead(torch.autograd.Function):
    """x W^T: rows that others need are mapped first and leave, and are last in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_OD: Tensor,
        departure: Departure,
        needed: Needed,
        late: LateDropout | None,
    ) -> Tensor:
        ctx.departure, ctx.needed = departure, needed
        ctx.save_for_backward(x_ND, weight_OD)
        out_NO = x_ND.new_empty(len(x_ND), len(weight_OD))
        for number, rows in enumerate(needed):
            for some in rows.split(_ROWS_AT_ONCE):
                x_SD = x_ND.index_select(0, some) if late is None else late.write(some)
                part_SO = linear(x_SD, weight_OD)
                out_NO.index_copy_(0, some, part_SO)
            if number == 0:
                departure.start(out_NO)
        return out_NO

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_NO: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x_ND, weight_OD = ctx.saved_tensors
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        kind, wide = weight_OD.dtype, sum_type(weight_OD.dtype)
        grad_NO = grad_NO.to(wide).contiguous()
        grad_ND = torch.empty_like(x_ND) if needs_x else None
        grad_OD = torch.zeros_like(weight_OD, dtype=wide) if needs_weight else None
        for number, rows in enumerate(reversed(ctx.needed)):
            if number == 1:
                ctx.departure.settle(grad_NO)
            for some in rows.split(_ROWS_AT_ONCE):
                part_SO = grad_NO.index_select(0, some).to(kind)
                if grad_ND is not None:
                    grad_ND.index_copy_(0, some, map_rows(part_SO, weight_OD.t()))
                if grad_OD is not None:
                    grad_OD += map_gradient(part_SO, x_ND.index_select(0, some))
        return grad_ND, None if grad_OD is None else grad_OD.to(kind), None, None, None


def depart(
    x_ND: Tensor,
    weight_OD: Tensor | None,
    needed: Needed | None,
    departure: Departure,
    late: LateDropout | None = None,
) -> Tensor:
    """Return x W^T, or x, the rows of the first stage being on their way.

    `needed` are the rows that others need, and the rest; None maps all rows at once. With `late`
    the rows of x are not written yet.
    """
    if late is not None and needed is None:
        late.finish()
        late = None
    if weight_OD is not None and needed is not None:
        mapped_NO: Tensor = _MapAhead.apply(x_ND, weight_OD, departure, needed, late)
        return departure.note(mapped_NO)
    rows_ND = x_ND if weight_OD is None else linear(x_ND, weight_OD)
    sent_ND: Tensor = _Depart.apply(rows_ND, departure, needed, late)
    return departure.note(sent_ND)


class _Sum(torch.autograd.Function):
    """out = rows * sum over blocks of (block @ (cols * x)), and its transpose."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, departure: Departure) -> Tensor:
        ctx.departure, reach, scales = departure, departure.reach, departure.scales
        ctx.is_begun = departure.begun is not None
        out_MD = x_ND.new_empty(
            reach.own.csr.num_rows, x_ND.size(1), dtype=reach.sum_type(x_ND.dtype)
        )

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

        begun, departure.begun = departure.begun, None
        visit(reach, (x_ND,), add, departure.exchange, begun=begun)
        return out_MD.to(x_ND.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None]:
        departure: Departure = ctx.departure
        reach, scales = departure.reach, departure.scales
        grad_MD, homeward = grad_MD.contiguous(), Homeward(reach, departure.exchange)
        kind = reach.sum_type(grad_MD.dtype)

        def transposed(block: Block) -> Tensor:
            # what travels is rounded once, what others add to is not
            dtype = kind if block is reach.own else grad_MD.dtype
            grad_KD = grad_MD.new_empty(block.csr.num_cols, grad_MD.size(1), dtype=dtype)
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
        if ctx.is_begun:
            departure.homeward = homeward  # who began it waits
        else:
            homeward.settle((grad_ND,))
        return grad_ND.to(grad_MD.dtype), None


def staged_sum(x_ND: Tensor, departure: Departure) -> Tensor:
    """Return out_MD, differentiably; weights of the blocks are of x's type."""
    out_MD: Tensor = _Sum.apply(x_ND, departure)
    return out_MD


_NUMBERS_AT_ONCE = 1 << 20


class Best:
    """The largest value of each entry so far, and the number of the edge that held it.

    Of equal values the edge with the lowest number in the whole wins, however edges are cut up.
    """

    def __init__(self, whole: CSR, width: int, like: Tensor) -> None:
        shape, kind = (whole.num_rows, width), edge_dtype(whole.num_edges + whole.num_rows)
        self.value_MD = like.new_full(shape, -torch.inf, dtype=sum_type(like.dtype))
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
        return value_MD.to(x_ND.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None]:
        reach, (place_MD,) = ctx.reach, ctx.saved_tensors
        homeward = Homeward(reach, ctx.exchange)
        grad_MD = grad_MD.contiguous()

        def given_back(block: Block) -> Tensor:
            held = place_MD, grad_MD
            return max_gradients(block.csr, *held, first=block.first_edge, rows_M=block.rows_Q)

        # As in sums: the first stage's gradients travel while the owned ones are found.
        stages = iter(reach.stages)
        if (first := next(stages, None)) is not None:
            homeward.send(first, (given_back(first),), ())
        grad_ND = given_back(reach.own).to(reach.sum_type(grad_MD.dtype))
        for block in stages:
            homeward.send(block, (given_back(block),), (grad_ND,))
        homeward.settle((grad_ND,))
        return grad_ND.to(grad_MD.dtype), None, None


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

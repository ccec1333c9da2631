"""Sums over edge types, each with a map of its own (R-GCN), a block at a time.

    out_i = sum over types t of mean over in-edges of type t of (W_t x_j)

Rows are averaged before they are mapped, type by type, so no tensor of types x rows is made. The
maps' gradients need the averages again, so the rows are fetched a second time or kept.

Shapes: N owned rows, M rows written, K columns of a block, T types, D width in, O width out, Q rows
of a block that have edges of one type.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.ops import CSR, sum_into, sum_type
from siafu.strategy.blocks import Block, Reach
from siafu.strategy.rounding import Exchange
from siafu.strategy.walk import Homeward, Rows, begin_exchange, visit, visit_again


@dataclass(frozen=True, eq=False)
class Typed:
    """The edges of one type in one block, without the rows that have none."""

    type: int
    rows_Q: Tensor
    csr: CSR
    """Q x K."""
    scale_Q: Tensor
    """1 / number of the row's edges of this type in all blocks."""


@dataclass(frozen=True, eq=False)
class TypedReach:
    """A rank's blocks with the edges of each sorted by type."""

    reach: Reach
    by_block: dict[Block, list[Typed]]

    @classmethod
    def build(cls, reach: Reach, type_E: Tensor, num_types: int) -> "TypedReach":
        """Return the blocks' edges by type; `type_E` is in the order of the whole's edges."""
        by_block: dict[Block, list[Typed]] = {block: [] for block in reach.blocks}
        rows = {block: _rows(block) for block in reach.blocks}
        for t in range(num_types):
            picked = {block: type_E.index_select(0, block.edges_E) == t for block in reach.blocks}
            count_M = torch.zeros(reach.own.csr.num_rows, dtype=torch.int64, device=type_E.device)
            for block, keep in picked.items():
                count_M += torch.bincount(rows[block][keep], minlength=len(count_M))
            for block, keep in picked.items():
                if bool(keep.any()):
                    by_block[block].append(_typed(t, block.csr, rows[block][keep], keep, count_M))
        return cls(reach, by_block)


def _rows(block: Block) -> Tensor:
    """Return the row of the whole that each edge of a block ends at."""
    numbers = torch.arange(block.whole.num_rows, device=block.csr.device)
    return block.pick(numbers).repeat_interleave(block.csr.degree())


def _typed(t: int, csr: CSR, row_E: Tensor, keep: Tensor, count_M: Tensor) -> Typed:
    rows_Q, degree_Q = row_E.unique_consecutive(return_counts=True)
    indptr = torch.zeros(len(rows_Q) + 1, dtype=torch.int64, device=csr.device)
    indptr[1:] = degree_Q.cumsum(0)
    return Typed(
        t, rows_Q, CSR(indptr, csr.index[keep], csr.num_cols), 1.0 / count_M[rows_Q].double()
    )


class _Relations(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        map_TDO: Tensor,
        typed: TypedReach,
        keep: bool,
        exchange: Exchange | None,
    ) -> Tensor:
        kind, num_rows = sum_type(x_ND.dtype), typed.reach.own.csr.num_rows
        out_MO = x_ND.new_zeros(num_rows, map_TDO.size(2), dtype=kind)
        ctx.typed, ctx.kept, ctx.exchange = typed, [], exchange

        def add(block: Block, arrived: Rows) -> None:
            for part in typed.by_block[block]:
                mean_QD = _mean(part, arrived[0])
                # Rows of one type are distinct, so adding to them has one order.
                out_MO.index_add_(0, part.rows_Q, (mean_QD @ map_TDO[part.type]).to(kind))
            if keep and typed.reach.keeps(block):
                ctx.kept.append(arrived)

        visit(typed.reach, (x_ND,), add, exchange)
        ctx.save_for_backward(x_ND, map_TDO)
        return out_MO.to(x_ND.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MO: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        typed, (x_ND, map_TDO) = ctx.typed, ctx.saved_tensors
        needs_rows = ctx.needs_input_grad[0]
        kind, homeward = sum_type(x_ND.dtype), Homeward(typed.reach, ctx.exchange)
        map_grad_TDO = torch.zeros_like(map_TDO, dtype=kind)
        own: list[Tensor] = []

        def give_back(block: Block, arrived: Rows) -> None:
            grad_KD = arrived[0].new_zeros(arrived[0].shape, dtype=kind) if needs_rows else None
            for part in typed.by_block[block]:
                grad_QO = grad_MO.index_select(0, part.rows_Q)
                map_grad_TDO[part.type] += _mean(part, arrived[0]).t() @ grad_QO
                if grad_KD is not None:
                    grad_QD = grad_QO @ map_TDO[part.type].t()
                    scale_Q = part.scale_Q.to(kind)
                    back = part.csr.transpose()
                    sum_into(back, grad_QD, grad_KD, accumulate=True, col_scale_C=scale_Q)
            if grad_KD is None:
                return
            if block is typed.reach.own:
                own.append(grad_KD)
            else:
                homeward.send(block, (grad_KD.to(x_ND.dtype),), tuple(own))

        visit_again(typed.reach, (x_ND,), give_back, ctx.exchange, ctx.kept)
        homeward.settle(tuple(own))
        grad_ND = own[0].to(x_ND.dtype) if own else None
        return grad_ND, map_grad_TDO.to(map_TDO.dtype), None, None, None


def _mean(part: Typed, x_KD: Tensor) -> Tensor:
    out_QD = x_KD.new_empty(len(part.rows_Q), x_KD.size(1))
    sum_into(part.csr, x_KD, out_QD, row_scale_M=part.scale_Q.to(sum_type(x_KD.dtype)))
    return out_QD


def staged_relations(x_ND: Tensor, map_TDO: Tensor, typed: TypedReach, *, keep: bool) -> Tensor:
    """Return out_MO, differentiable in rows and maps."""
    exchange = begin_exchange(typed.reach, (x_ND,))
    out_MO: Tensor = _Relations.apply(x_ND, map_TDO, typed, keep, exchange)
    return out_MO

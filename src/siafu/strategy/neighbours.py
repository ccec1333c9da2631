"""Neighbours over many ranks: what a layer asks is done block by block, exactly.

Shapes: N owned rows read, M rows written, C columns (owned, then halo rows), D columns of a row, H
heads, T edge types, O width after a map.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu.comm import HaloPlan, StageRows, exchange_halo, stage_plans, sum_over_ranks
from siafu.comm.once import ComputedOnce
from siafu.errors import ConfigError, PlanError
from siafu.nn import Draws, Dropout, EdgeFunction, EdgeRows, Reduce, Summing, mapped
from siafu.nn.neighbours import as_tuple
from siafu.nn.normalisation import inverse_count, inverse_root, loop_data
from siafu.nn.precision import as_rows
from siafu.ops import (
    Attention,
    DrawKey,
    HeldKey,
    adds_own,
    dropout_rows,
    sum_type,
    sum_with_own,
)
from siafu.shard import Shard
from siafu.strategy import attention as staged
from siafu.strategy.blocks import Reach, build_reach
from siafu.strategy.dropping import Dropping
from siafu.strategy.joins import Joining, ReductionCall
from siafu.strategy.reduction import staged_reduce
from siafu.strategy.relations import TypedReach, staged_relations
from siafu.strategy.rounding import Rounding, WidthBook
from siafu.strategy.strategy import Strategy
from siafu.strategy.sums import Departure, Needed, Scales, depart, staged_max, staged_sum
from siafu.strategy.view import View, whole_view
from siafu.strategy.walk import Rows

_MOST_NEEDED = 0.7
"""Share of rows that others need above which taking these apart gains nothing."""


class BlockNeighbours:
    """Exact neighbours of a shard: every rank calls the same operations in the same order."""

    def __init__(
        self,
        shard: Shard,
        draws: Draws,
        strategy: Strategy | None = None,
        *,
        view: View | None = None,
        book: WidthBook | None = None,
    ) -> None:
        """`book` has the widths of rows; layers with views of their own share one."""
        self.shard, self.draws = shard, draws
        self.strategy = strategy or Strategy()
        self.view = view or whole_view(shard)
        self.book = book or WidthBook(self.strategy, shard.world, draws.seed)
        is_rounded = shard.world.size > 1 and self.strategy.codes_rows
        self._rounding = Rounding(shard, self.view, draws, self.book) if is_rounded else None
        self._by_dtype: dict[tuple[str, torch.dtype], Any] = {}
        self._departure: Departure | None = None
        """An exchange that has begun, until its sum is asked for."""
        self._dropping = Dropping()

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.shard.num_nodes

    @property
    def edge_attr(self) -> Tensor | None:
        """Features of the in-edges of the rows that are written."""
        return self._of_edges(self.shard.edge_attr)

    @ComputedOnce
    def edge_type(self) -> Tensor | None:
        """The type of each in-edge of the rows that are written."""
        return self._of_edges(self.shard.edge_type)

    def _of_edges(self, data: Tensor | None) -> Tensor | None:
        if data is None or self.view.edges_E is None:
            return data
        return data.index_select(0, self.view.edges_E)

    def maps_first(self, in_width: int, out_width: int) -> bool:
        """Return True where narrower rows travel so; of equal ones, those whose changes are less.

        Before a map rows travel as they were before dropout, and drops are no changes.
        """
        if self._rounding is not None and self.strategy.keeps_rows and self.draws.training:
            return out_width < in_width
        return out_width <= in_width

    def own(self, x_ND: Tensor) -> Tensor:
        """Return the rows that are written, of those that are read."""
        rows = self.view.own_rows_M
        return x_ND if rows is None else x_ND.index_select(0, rows)

    def extended(self, x_ND: Tensor) -> Tensor:
        """Return x_CD: the owned rows, then all halo rows at once, differentiably."""
        x_ND = as_rows(x_ND) if x_ND.dim() > 1 else x_ND  # a number per row is no row
        plan, rounding = self._plan_of_all, self._rounding
        codings = None if rounding is None else rounding.codings_of_all(x_ND, plan)
        if codings is not None:
            self._check_lot("a model of your own")
        return torch.cat([x_ND, exchange_halo(x_ND, plan, self.view.world, codings)])

    @property
    def _shared_ids(self) -> Tensor | None:
        """Numbers of the halo rows, where ranks of a host share them."""
        is_shared = self.strategy.once_per_host and self.view.world.has_hosts
        return self.view.column_ids[self.view.num_read :] if is_shared else None

    @ComputedOnce
    def _plan_of_all(self) -> HaloPlan:
        """How all halo rows are fetched at once."""
        plan, world, ids_R = self.view.plan, self.view.world, self._shared_ids
        if ids_R is None:
            return plan
        read, sent = (
            torch.arange(len(rows), device=rows.device) for rows in (ids_R, plan.send_rows)
        )
        every = StageRows(read, plan.recv_counts, sent, plan.send_counts)
        return stage_plans(plan, [every], world, ids_R)[0]

    @ComputedOnce
    def reach(self) -> Reach:
        """The blocks, cut once."""
        view = self.view
        stages = self.strategy.stages_of(view.world.size)
        reach = build_reach(view.csr, view.plan, view.world, stages, self._shared_ids)
        num_kept = self.strategy.kept_stages(len(reach.stages))
        overlap = self.strategy.overlap
        return replace(reach, rounding=self._rounding, overlap=overlap, num_kept=num_kept)

    @ComputedOnce
    def _looped(self) -> Reach:
        return replace(self.reach, own=self.reach.own.with_loops(self.view.own_rows_M))

    @ComputedOnce
    def _typed(self) -> TypedReach:
        assert self.edge_type is not None, "layers with relations are made for typed graphs"
        return TypedReach.build(self.reach, self.edge_type, self.shard.num_edge_types)

    def _cached(self, name: str, dtype: torch.dtype, make: Callable[[], Any]) -> Any:
        if (name, dtype) not in self._by_dtype:
            self._by_dtype[name, dtype] = make()
        return self._by_dtype[name, dtype]

    def _weighted(self, dtype: torch.dtype) -> Reach:
        make = partial(self.reach.with_weight_type, sum_type(dtype))
        reach: Reach = self._cached("reach", dtype, make)
        return reach

    def _gcn(self, dtype: torch.dtype) -> tuple[Scales, Tensor]:
        def make() -> tuple[Scales, Tensor]:
            with torch.no_grad():  # degrees travel as they are
                root_C = inverse_root(self.extended(self.view.degree_N.unsqueeze(1)).squeeze(1))
            root_M = self.own(root_C[: self.view.num_read])
            own_M1 = (root_M.square() * self.view.loop_M).unsqueeze(1)
            scales = Scales(*(root.to(sum_type(dtype)) for root in (root_M, root_C)))
            return scales, own_M1.to(dtype)

        made: tuple[Scales, Tensor] = self._cached("gcn", dtype, make)
        return made

    def _scales(self, how: Summing, dtype: torch.dtype) -> Scales:
        if how == "normalised_sum":
            return self._gcn(dtype)[0]
        if how == "sum":
            return Scales()
        made: Scales = self._cached(
            "mean", dtype, lambda: Scales(inverse_count(self.view.csr).to(sum_type(dtype)))
        )
        return made

    @ComputedOnce
    def _needed(self) -> Needed | None:
        """Rows that others need and the rest; None where they are most of all, or none."""
        is_needed = torch.zeros(self.view.num_read, dtype=torch.bool, device=self.view.csr.device)
        is_needed[self.view.plan.send_rows] = True
        share = float(is_needed.float().mean()) if len(is_needed) else 0.0
        if not 0 < share < _MOST_NEEDED:
            return None
        return is_needed.nonzero()[:, 0], (~is_needed).nonzero()[:, 0]

    @property
    def _leaves_early(self) -> bool:
        """Whether rows that others need are worked on before the rest."""
        reach = self.reach
        is_plain = self._rounding is None and bool(reach.stages) and reach.overlap
        return is_plain and self._needed is not None

    def depart(self, x_ND: Tensor, weight_OD: Tensor | None, how: Summing) -> Tensor:
        """Return x W^T, or x, rows that others need being on their way."""
        late = self._dropping.take(x_ND)
        if late is not None and as_rows(x_ND) is not x_ND:
            late.finish()
            late = None
        x_ND, reach = as_rows(x_ND), self._weighted(as_rows(x_ND).dtype)
        if not reach.stages or not reach.overlap:
            return mapped(x_ND, weight_OD)
        like = x_ND
        if weight_OD is not None:
            weight_OD = weight_OD.to(x_ND.dtype)
            like = x_ND.new_empty(1, device="meta").expand(len(x_ND), len(weight_OD))
        self._departure = Departure(reach, self._scales(how, x_ND.dtype), like)
        return depart(x_ND, weight_OD, self._needed, self._departure, late)

    def _summed(self, x_ND: Tensor, how: Summing) -> Tensor:
        x_ND, (departure, self._departure) = as_rows(x_ND), (self._departure, None)
        if departure is None or not departure.is_of(x_ND):
            reach = self._weighted(x_ND.dtype)
            departure = Departure(reach, self._scales(how, x_ND.dtype), x_ND)
        return staged_sum(x_ND, departure)

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the weighted sum of in-neighbours' rows."""
        return self._summed(x_ND, "sum")

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges."""
        return self._summed(x_ND, "mean")

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return GCN's normalised sum, with degrees of the whole graph."""
        x_ND = as_rows(x_ND)
        reach, (scales, own_M1) = self.reach, self._gcn(x_ND.dtype)
        if not reach.stages and self.view.own_rows_M is None and adds_own(x_ND.device):
            csr, self._departure = self._weighted(x_ND.dtype).own.csr, None
            by = {"row_scale_M": scales.row_M, "col_scale_C": scales.of(reach.own)}
            return sum_with_own(csr, x_ND, own_M1[:, 0], **by)
        total_MD = self._summed(x_ND, "normalised_sum")
        return torch.addcmul(total_MD, own_M1, self.own(x_ND))

    def max(self, x_ND: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows."""
        self._check_lot("a maximum")
        return staged_max(as_rows(x_ND), self.reach)

    def attend(
        self,
        attention: Attention,
        sources: tuple[Tensor, ...],
        rows: tuple[Tensor, ...],
        shared: tuple[Tensor, ...] = (),
        *,
        dropout: Dropout,
        edges: EdgeRows | None = None,
        loops: bool = True,
    ) -> Tensor:
        """Return the attention's weighted sum over in-neighbours."""
        operand = None if edges is None else self._edge_operand(edges)
        drops = self.draws.training and dropout.p > 0
        return self.attend_over(
            self._looped if loops else self.reach,
            attention,
            (sources, rows, shared),
            drop=(self.draws.any_key(dropout.site), dropout.p) if drops else None,
            edges=operand,
            first_head=dropout.first_head,
        )

    def attend_over(
        self,
        reach: Reach,
        attention: Attention,
        operands: tuple[Rows, Rows, Rows],
        *,
        drop: tuple[DrawKey | HeldKey, float] | None,
        edges: staged.EdgeOperand | None,
        first_head: int = 0,
    ) -> Tensor:
        """Return an attention over given edges; `operands` are sources, rows and shared."""
        self._check_lot("attention")
        sources, rows = (tuple(map(as_rows, group)) for group in operands[:2])
        shared = operands[2]
        captured = () if edges is None else edges.function.captured
        dropout = None
        if drop is not None:
            ids = self.view.column_ids, self.view.out_ids
            dropout = staged.EdgeDropout(*drop, *ids, first_head)
        call = staged.AttentionCall(
            attention,
            reach,
            (len(sources), len(rows), len(shared), len(captured)),
            keep=torch.is_grad_enabled(),
            dropout=dropout,
            edges=edges,
        )
        return staged.staged_attention(call, (*sources, *rows, *shared, *captured))

    def _edge_operand(self, edges: EdgeRows) -> staged.EdgeOperand:
        function = EdgeFunction.watch(edges.make, (edges.data_E,), self.draws)
        loop_M = edges.loops_of(self.view.csr.num_rows)
        if loop_M is None:
            loop_M = loop_data(self.view.csr, edges.data_E, self.view.own_rows_M)
        return staged.EdgeOperand(function, edges, loop_M)

    def reduce(
        self,
        message: Callable[..., Any],
        x_src: Tensor | tuple[Tensor, ...],
        x_dst: Tensor | tuple[Tensor, ...] = (),
        edge_attr: Tensor | tuple[Tensor, ...] = (),
        *,
        reduce: Reduce = "sum",
    ) -> Tensor:
        """Return a function of edges, joined over each row's in-edges."""
        src, dst, edge = tuple(map(as_rows, as_tuple(x_src))), as_tuple(x_dst), as_tuple(edge_attr)
        self._check_rows(src, dst, edge)
        function = EdgeFunction.watch(message, (*src, *dst, *edge), self.draws)
        return self.reduce_over(self.reach, function, (src, dst, edge), reduce)

    def reduce_over(
        self, reach: Reach, function: EdgeFunction, rows: tuple[Rows, Rows, Rows], reduce: Joining
    ) -> Tensor:
        """Return a function joined over given edges; `rows` are of sources, rows and edges."""
        self._check_lot("a function of edges")
        src, dst, edge = rows
        call = ReductionCall(
            function,
            reduce,
            reach,
            (len(src), len(dst), len(edge)),
            keep=torch.is_grad_enabled(),
            column_ids=self.view.column_ids,
            row_ids=self.view.out_ids,
        )
        return staged_reduce(call, (*src, *dst, *edge))

    def _check_rows(self, src: Rows, dst: Rows, edge: Rows) -> None:
        wanted = {
            "a row for each node that is read": (src, self.view.num_read),
            "a row for each node that is written": (dst, self.view.csr.num_rows),
            "a row for each in-edge": (edge, self.view.csr.num_edges),
        }
        for what, (tensors, count) in wanted.items():
            for tensor in tensors:
                if tensor.dim() == 0 or len(tensor) != count:
                    raise PlanError(
                        f"A message function is given {what}.",
                        seen=f"shape {tuple(tensor.shape)}, {count} rows wanted",
                        fix="see Neighbours.reduce for the order of its arguments",
                    )

    def _check_lot(self, what: str) -> None:
        """Raise where rows that were not drawn would count as rows of 0."""
        if self.strategy.boundary < 1:
            raise ConfigError(
                "Only sums of neighbours are right on average where rows are drawn.",
                seen=f"--boundary {self.strategy.boundary:g} with {what}",
                fix="use a model that adds rows up (gcn, sage, gin, rgcn), or leave --boundary out",
            )

    def relations(self, x_ND: Tensor, map_TDO: Tensor) -> Tensor:
        """Return the sum over edge types of the mapped mean over their in-edges."""
        x_ND = as_rows(x_ND)
        return staged_relations(
            x_ND, map_TDO.to(x_ND.dtype), self._typed, keep=torch.is_grad_enabled()
        )

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries dropped while training."""
        relu = dropout.relu
        if relu and not (self.draws.training and self._rounding is None):
            # Rounding may send rows as they are before they are dropped.
            x_ND, relu = torch.relu(x_ND), False
        if not self.draws.training:
            return x_ND
        key = self.draws.any_key(dropout.site)
        # Rows that leave for the host's memory do so when they are saved, so they are whole then.
        departs = dropout.departs and not self.strategy.offload
        if departs and dropout.p > 0 and self._leaves_early:
            return self._dropping.begin(x_ND, self.view.in_ids, key, dropout.p, relu=relu)
        dropped_ND = dropout_rows(x_ND, self.view.in_ids, key, dropout.p, relu=relu)
        if self._rounding is not None and dropout.p > 0:
            self._rounding.note_dropped(dropped_ND, x_ND, self.draws.key(dropout.site), dropout.p)
        return dropped_ND

    def total(self, x_ND: Tensor) -> Tensor:
        """Return the column sums over the nodes of all ranks."""
        total_D = x_ND.sum(dim=0, dtype=sum_type(x_ND.dtype))
        return sum_over_ranks(total_D, self.view.world, "norm")

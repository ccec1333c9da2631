"""Neighbours in one process that holds all rows it reads: a whole graph, or a minibatch's own.

Plain calls of differentiable operations, nothing cut up and nothing computed twice: the truth that
strategies are compared with.

Shapes: N rows read, M rows written, the first of those read (all of a whole graph), E edges, D
columns of a row, H heads, T edge types, O width after a map.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from siafu.nn.draws import Draws, Dropout
from siafu.nn.messages import EdgeFunction
from siafu.nn.neighbours import EdgeRows, Reduce, Summing, as_tuple, mapped
from siafu.nn.normalisation import (
    GcnScales,
    added_loop,
    gcn_scales,
    inverse_count,
    inverse_root,
    loop_data,
    owned_degree,
    with_self_loops,
)
from siafu.nn.precision import as_rows
from siafu.ops import (
    CSR,
    Activated,
    Attention,
    Gat,
    activate_rows,
    activated_own_and_sum,
    adds_own,
    attend,
    can_activate,
    dropout_rows,
    neighbour_max,
    neighbour_sum,
    own_and_sum,
    sum_type,
    sum_with_own,
)
from siafu.ops import gcn_scales as scales_of_edges


@dataclass(frozen=True, eq=False)
class Sampled:
    """What the whole graph has of nodes whose in-edges are here only in part."""

    share_M: Tensor
    """float64: what the sum of the edges here is multiplied by, to be that of all on average."""
    count_M: Tensor
    """float64: in-edges of each row."""
    degree_N: Tensor | None = None
    """float64: weighted in-degrees with GCN's loop."""
    loop_N: Tensor | None = None
    """float64: 1 where GCN adds a loop."""


@dataclass(frozen=True, eq=False)
class AtHand:
    """What would be derived of the edges, where someone has it already."""

    inverse_count: Callable[[torch.dtype], Tensor] | None = None
    """Gives 1 / the in-edges of each row, 1 where there are none."""
    looped: CSR | None = None
    """The edges without loops, and then one for each row."""
    may_map: bool = True
    """Whether rows may be mapped before they are summed: then they have gradients, and the sum is
    turned round for those."""
    has_loops: bool | None = None
    """Whether an edge starts and ends at one node; where that is known, edges are normalised
    without the host waiting for the device."""


class LocalNeighbours:
    """One process that holds every row a layer reads.

    Of sampled in-edges, sums are scaled up to what all in-edges would give on average.
    """

    def __init__(
        self,
        csr: CSR,
        ids_N: Tensor,
        draws: Draws,
        *,
        edge_attr: Tensor | None = None,
        edge_type: Tensor | None = None,
        sampled: Sampled | None = None,
        at_hand: AtHand | None = None,
    ) -> None:
        self.sampled, self._at_hand = sampled, at_hand or AtHand()
        self.csr, self.ids_N, self.draws = csr, ids_N, draws
        self.edge_attr, self.edge_type = edge_attr, edge_type
        self._gcn_by_dtype: dict[torch.dtype, GcnScales] = {}
        self._departed: tuple[Tensor, Summing] | None = None
        """Rows whose sum is asked for next."""
        self._summed: tuple[Tensor, Summing, Tensor] | None = None
        """Rows whose own were asked for before, how they are summed, and their sum."""
        self._activated: Activated | None = None
        """Rows that were made last, whose sum may take their gradient along."""

    @property
    def num_nodes(self) -> int:
        """Nodes that are written: those of the whole graph, or of a minibatch."""
        return self.csr.num_rows

    def maps_first(self, in_width: int, out_width: int) -> bool:
        """Return True where fewer numbers come out so; a minibatch writes far fewer rows."""
        is_less = self.csr.num_cols * out_width <= self.csr.num_rows * in_width
        return is_less and self._at_hand.may_map

    def depart(self, x_ND: Tensor, weight_OD: Tensor | None, how: Summing) -> Tensor:
        """Return x W^T, or x: nothing travels ahead here."""
        rows_NO = mapped(x_ND, weight_OD)
        if weight_OD is not None:
            self._activated = None
        self._departed = (rows_NO, how) if torch.is_grad_enabled() else None
        return rows_NO

    def own(self, x_ND: Tensor) -> Tensor:
        """Return the rows that are written, the first of those read."""
        departed, self._departed = self._departed, None
        if departed is None or departed[0] is not x_ND or departed[1] == "normalised_sum":
            self._activated = None
            return x_ND[: self.csr.num_rows]
        # Their sum comes next: together, rows get one gradient instead of two that are added.
        scale_M = self._sum_scale(x_ND.dtype, departed[1])
        own_MD, total_MD = self._own_and_sum(self._csr(x_ND.dtype), x_ND, scale_M)
        self._summed = x_ND, departed[1], total_MD
        return own_MD

    def _own_and_sum(
        self, csr: CSR, x_ND: Tensor, row_scale_M: Tensor | None, col_scale_C: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return both; where x was activated last, backward of that is part of theirs."""
        activated, self._activated = self._activated, None
        scales = {"row_scale_M": row_scale_M, "col_scale_C": col_scale_C}
        if activated is not None and activated.rows_ND is x_ND:
            return activated_own_and_sum(csr, activated, **scales)
        return own_and_sum(csr, x_ND, **scales)

    def _sum_scale(self, dtype: torch.dtype, how: Summing) -> Tensor | None:
        """Return what sums or means of rows are multiplied by."""
        if how == "sum":
            return self._scaled_up(None, dtype)
        if self.sampled is None:
            return self._inverse_count(dtype)
        scale_M = self.sampled.share_M / self.sampled.count_M.clamp(min=1)
        return scale_M.to(sum_type(dtype))

    def _sum(self, x_ND: Tensor, how: Summing) -> Tensor:
        summed, self._summed, self._departed = self._summed, None, None
        if summed is not None and summed[0] is x_ND and summed[1] == how:
            return summed[2]
        scale_M = self._sum_scale(x_ND.dtype, how)
        return neighbour_sum(self._csr(x_ND.dtype), x_ND, row_scale_M=scale_M)

    def _csr(self, dtype: torch.dtype) -> CSR:
        dtype = sum_type(dtype)
        if self.csr.weight is not None and self.csr.weight.dtype != dtype:
            self.csr = self.csr.with_weight(self.csr.weight.to(dtype))
        return self.csr

    @cached_property
    def _inverse_count_N(self) -> Tensor:
        return inverse_count(self.csr)

    def _inverse_count(self, dtype: torch.dtype) -> Tensor:
        if self._at_hand.inverse_count is not None:
            return self._at_hand.inverse_count(sum_type(dtype))
        return self._inverse_count_N.to(sum_type(dtype))

    def _gcn(self, dtype: torch.dtype) -> GcnScales:
        has_loops = self._at_hand.has_loops
        if dtype not in self._gcn_by_dtype and has_loops is not None:
            root_N, own_N = scales_of_edges(self.csr, loops=has_loops)
            wide = sum_type(dtype)
            self._gcn_by_dtype[dtype] = GcnScales(root_N.to(wide), own_N.to(wide)[:, None])
        elif dtype not in self._gcn_by_dtype:
            degree_N, loop_N = self._degrees()
            self._gcn_by_dtype[dtype] = gcn_scales(
                inverse_root(degree_N), loop_N[: self.csr.num_rows], sum_type(dtype)
            )
        return self._gcn_by_dtype[dtype]

    def _degrees(self) -> tuple[Tensor, Tensor]:
        if self.sampled is None:
            return owned_degree(self.csr), added_loop(self.csr)
        degree_N, loop_N = self.sampled.degree_N, self.sampled.loop_N
        assert degree_N is not None, "degrees of the whole graph come with the rows"
        assert loop_N is not None, "degrees of the whole graph come with the rows"
        return degree_N, loop_N

    def _scaled_up(self, scale_M: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if self.sampled is None:
            return scale_M
        share_M = self.sampled.share_M.to(sum_type(dtype))
        return share_M if scale_M is None else share_M * scale_M

    @cached_property
    def _looped(self) -> tuple[CSR, Tensor]:
        return with_self_loops(self.csr)

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the weighted sum of in-neighbours' rows."""
        return self._sum(as_rows(x_ND), "sum")

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges."""
        return self._sum(as_rows(x_ND), "mean")

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return GCN's normalised sum."""
        x_ND = as_rows(x_ND)
        csr, scales = self._csr(x_ND.dtype), self._gcn(x_ND.dtype)
        root_N = scales.root_C
        scale_M = self._scaled_up(root_N[: csr.num_rows], x_ND.dtype)
        if adds_own(x_ND.device):
            own_M, by = scales.own_N1[:, 0], {"row_scale_M": scale_M, "col_scale_C": root_N}
            return sum_with_own(csr, x_ND, own_M, **by)
        own_MD, total_MD = self._own_and_sum(csr, x_ND, scale_M, root_N)
        return torch.addcmul(total_MD, scales.own_N1, own_MD)

    def max(self, x_ND: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows."""
        return neighbour_max(self.csr, as_rows(x_ND))

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
        sources, rows = tuple(map(as_rows, sources)), tuple(map(as_rows, rows))
        csr, numbers_E = self._edges_of(loops=loops, numbered=edges is not None)
        drop = self.draws.on_edges(dropout, self.ids_N, self.own(self.ids_N))
        operand = None
        if edges is not None:
            data = edges.data_E
            if numbers_E is not None:
                told_M = edges.loops_of(self.csr.num_rows)
                loop_M = loop_data(self.csr, data) if told_M is None else told_M
                data = torch.cat([data, loop_M])[numbers_E]
            operand = edges.make(data)
        return attend(attention, csr, sources, rows, shared, edge=operand, drop=drop)

    def _edges_of(self, *, loops: bool, numbered: bool) -> tuple[CSR, Tensor | None]:
        """Return the edges, with loops or without, and with those where each comes from."""
        if not loops:
            return self.csr, None
        prepared = self._at_hand.looped
        return self._looped if prepared is None or numbered else (prepared, None)

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
        src, dst, edge = as_tuple(x_src), as_tuple(x_dst), as_tuple(edge_attr)
        function = EdgeFunction.watch(message, (*src, *dst, *edge), self.draws)
        src_E, dst_E = self.csr.index.long(), self.csr.rows()
        rows = (*(t[src_E] for t in src), *(t[dst_E] for t in dst), *edge)
        results = function(rows, (self.ids_N[src_E], self.ids_N[dst_E]))
        numbers = torch.arange(self.csr.num_edges, device=self.csr.device)
        each = CSR(self.csr.indptr, numbers, self.csr.num_edges)
        if reduce == "softmax":
            score_EH = results[0].reshape(each.num_edges, -1)
            value_EHD = results[1].reshape(*score_EH.shape, -1).to(score_EH.dtype)
            zero_NH = score_EH.new_zeros(self.csr.num_rows, score_EH.size(1))
            out = attend(Gat(slope=1.0), each, (value_EHD, score_EH), (zero_NH,))
        elif reduce == "mul":
            factor_EW = results[0].flatten(1)
            one_NW = factor_EW.new_ones(self.csr.num_rows, factor_EW.size(1))
            row_EW = dst_E[:, None].expand_as(factor_EW)
            out = one_NW.scatter_reduce(0, row_EW, factor_EW, "prod")
        elif reduce in ("max", "min"):
            sign = 1 if reduce == "max" else -1
            out = sign * neighbour_max(each, sign * results[0].flatten(1))
        else:
            scale_N = self._inverse_count(results[0].dtype) if reduce == "mean" else None
            out = neighbour_sum(each, results[0].flatten(1), row_scale_M=scale_N)
        return out.reshape(self.csr.num_rows, *function.shapes[-1])

    def relations(self, x_ND: Tensor, map_TDO: Tensor) -> Tensor:
        """Return the sum over edge types of the mapped mean over their in-edges."""
        assert self.edge_type is not None, "layers with relations are made for typed graphs"
        x_ND = as_rows(x_ND)
        kind = sum_type(x_ND.dtype)
        out_NO = x_ND.new_zeros(self.csr.num_rows, map_TDO.size(2), dtype=kind)
        for t, map_DO in enumerate(map_TDO):
            keep_E = self.edge_type == t
            indptr = torch.zeros_like(self.csr.indptr)
            indptr[1:] = torch.bincount(
                self.csr.rows()[keep_E], minlength=self.csr.num_rows
            ).cumsum(0)
            typed = CSR(indptr, self.csr.index[keep_E], self.csr.num_cols)
            scale_N = inverse_count(typed).to(kind)
            out_NO = out_NO + neighbour_sum(typed, x_ND, row_scale_M=scale_N) @ map_DO
        return out_NO.to(x_ND.dtype)

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries dropped while training."""
        if not self.draws.training:
            return torch.relu(x_ND) if dropout.relu else x_ND
        key = self.draws.any_key(dropout.site)
        return dropout_rows(x_ND, self.ids_N, key, dropout.p, relu=dropout.relu)

    def activates(self, x: Tensor) -> bool:
        """Return whether `activate` takes what is made of such rows."""
        is_cast = torch.is_autocast_enabled(x.device.type)
        is_known = self.draws.training and self.draws.held is None and not is_cast
        return is_known and torch.is_grad_enabled() and can_activate(x.device, x.dtype)

    def activate(self, z_ND: Tensor, bias_D: Tensor, dropout: Dropout) -> Tensor:
        """Return what `dropout` makes of max(z + bias, 0); z is used up."""
        key = self.draws.key(dropout.site)
        self._activated = activate_rows(z_ND, bias_D, self.ids_N, key, dropout.p, overwrite=True)
        return self._activated.rows_ND

    def total(self, x_ND: Tensor) -> Tensor:
        """Return the column sums."""
        return x_ND.sum(dim=0)

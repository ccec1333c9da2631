"""Neighbours over many ranks: halo rows are fetched whole, and owned work goes on meanwhile.

Shapes: N owned rows, R halo rows, C = N + R columns, D columns of a row, H heads.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from siafu.comm import (
    HaloPlan,
    World,
    add_returned,
    exchange_halo,
    start_fetch,
    start_return,
    sum_over_ranks,
)
from siafu.nn import Draws, Dropout, LocalNeighbours, Neighbours
from siafu.nn.loops import with_self_loops
from siafu.nn.neighbours import added_loop, gcn_scales, inverse_root, owned_degree
from siafu.ops import CSR, dropout_rows, gat_attention, neighbour_max, sum_into
from siafu.shard import Shard
from siafu.strategy.blocks import split_columns


@dataclass(frozen=True)
class Reach:
    """The edges of a shard in two blocks, and how the second block's rows are reached."""

    own: CSR
    """N x N: edges whose source is owned."""
    halo: CSR
    """N x R: edges whose source is a halo row."""
    plan: HaloPlan
    world: World


@dataclass(frozen=True)
class Scales:
    """Factors of rows and columns around a sum; None is 1."""

    row_N: Tensor | None = None
    col_N: Tensor | None = None
    col_R: Tensor | None = None


class _HaloSum(torch.autograd.Function):
    """out = rows * (own @ (cols * x) + halo @ (cols * fetched x)), and its transpose.

    Halo rows travel while owned edges are summed, in both directions. Nothing but the scales is
    kept for backward: a sum's gradient needs no rows.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, reach: Reach, scales: Scales) -> Tensor:
        ctx.reach, ctx.scales = reach, scales
        x_ND = x_ND.contiguous()
        pending = start_fetch(x_ND, reach.plan, reach.world, "halo_forward")
        out_ND = x_ND.new_empty(reach.own.num_rows, x_ND.size(1))
        sum_into(reach.own, x_ND, out_ND, row_scale_M=scales.row_N, col_scale_C=scales.col_N)
        halo_RD = pending.wait(reach.world, "fetching halo rows")
        sum_into(
            reach.halo,
            halo_RD,
            out_ND,
            accumulate=True,
            row_scale_M=scales.row_N,
            col_scale_C=scales.col_R,
        )
        return out_ND

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None]:
        reach, scales = ctx.reach, ctx.scales
        grad_ND = grad_ND.contiguous()
        halo_RD = grad_ND.new_empty(reach.halo.num_cols, grad_ND.size(1))
        back, own_back = reach.halo.transpose(), reach.own.transpose()
        sum_into(back, grad_ND, halo_RD, row_scale_M=scales.col_R, col_scale_C=scales.row_N)
        pending = start_return(halo_RD, reach.plan, reach.world, "halo_backward")
        out_ND = torch.empty_like(grad_ND)
        sum_into(own_back, grad_ND, out_ND, row_scale_M=scales.col_N, col_scale_C=scales.row_N)
        add_returned(pending.wait(reach.world, "returning halo gradients"), reach.plan, out_ND)
        return out_ND, None, None


class HaloNeighbours:
    """Exact neighbours of a shard: every rank calls the same operations in the same order."""

    def __init__(self, shard: Shard, draws: Draws) -> None:
        self.shard, self.draws = shard, draws
        self._by_dtype: dict[tuple[str, torch.dtype], Any] = {}

    @property
    def num_vertices(self) -> int:
        """Vertices of the whole graph."""
        return self.shard.num_vertices

    def extended(self, x_ND: Tensor) -> Tensor:
        """Return x_CD: the owned rows, then the halo rows, differentiably."""
        halo_RD = exchange_halo(x_ND, self.shard.plan, self.shard.world)
        return torch.cat([x_ND, halo_RD])

    def _reach(self, dtype: torch.dtype) -> Reach:
        key = ("reach", dtype)
        if key not in self._by_dtype:
            own, halo = split_columns(self.shard.csr, self.shard.num_owned, dtype)
            self._by_dtype[key] = Reach(own, halo, self.shard.plan, self.shard.world)
        reach: Reach = self._by_dtype[key]
        return reach

    def _gcn(self, dtype: torch.dtype) -> tuple[Scales, Tensor]:
        key = ("gcn", dtype)
        if key not in self._by_dtype:
            degree_C1 = self.extended(owned_degree(self.shard.csr).unsqueeze(1))
            scales = gcn_scales(
                inverse_root(degree_C1.squeeze(1)), added_loop(self.shard.csr), dtype
            )
            root_N, root_R = scales.root_C.split([self.shard.num_owned, self.shard.num_halo])
            self._by_dtype[key] = Scales(root_N, root_N, root_R), scales.own_N1
        cached: tuple[Scales, Tensor] = self._by_dtype[key]
        return cached

    @cached_property
    def _looped(self) -> CSR:
        return with_self_loops(self.shard.csr)

    @cached_property
    def _inverse_count_N(self) -> Tensor:
        return 1.0 / self.shard.csr.indptr.diff().clamp(min=1).double()

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the weighted sum of in-neighbours' rows."""
        return _HaloSum.apply(x_ND, self._reach(x_ND.dtype), Scales())

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges."""
        scales = Scales(row_N=self._inverse_count_N.to(x_ND.dtype))
        return _HaloSum.apply(x_ND, self._reach(x_ND.dtype), scales)

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return GCN's normalised sum, with degrees of the whole graph."""
        scales, own_N1 = self._gcn(x_ND.dtype)
        total_ND = _HaloSum.apply(x_ND, self._reach(x_ND.dtype), scales)
        return torch.addcmul(total_ND, own_N1, x_ND)

    def max(self, x_ND: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows."""
        return neighbour_max(self.shard.csr, self.extended(x_ND))

    def attend(
        self, z_NHD: Tensor, left_NH: Tensor, right_NH: Tensor, *, slope: float, dropout: Dropout
    ) -> Tensor:
        """Return GAT's weighted sum; rows and their logits travel side by side."""
        heads = z_NHD.size(1)
        both = self.extended(torch.cat([z_NHD.flatten(1), left_NH], dim=1))
        z_CHD = both[:, :-heads].unflatten(1, (heads, -1))
        left_CH = both[:, -heads:]
        drop = self.draws.on_edges(dropout, self.shard.column_ids, self.shard.row_ids)
        return gat_attention(self._looped, z_CHD, left_CH, right_NH, slope=slope, drop=drop)

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries dropped while training."""
        if not self.draws.training:
            return x_ND
        return dropout_rows(x_ND, self.shard.row_ids, self.draws.key(dropout.site), dropout.p)

    def total(self, x_ND: Tensor) -> Tensor:
        """Return the column sums over the vertices of all ranks."""
        return sum_over_ranks(x_ND.sum(dim=0), self.shard.world, "norm")


def neighbours_of(shard: Shard, draws: Draws) -> Neighbours:
    """Return the simplest neighbours that serve the shard: local ones when nothing is elsewhere."""
    if shard.world.size == 1:
        return LocalNeighbours(shard.csr, shard.row_ids, draws)
    return HaloNeighbours(shard, draws)

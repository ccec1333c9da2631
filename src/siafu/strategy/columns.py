"""Neighbours by columns: each rank works on all nodes, and on a slice of their columns.

An aggregation that treats columns alike needs no cut of the graph. The owned rows are turned into a
slice of the columns of all rows (one all-to-all), the whole graph's edges are walked over for these
columns alone, and the result is turned back into owned rows (another). Gradients go the same ways.
Attention is cut by heads: ranks without one only take part in the turns. NeutronTP (2024) and
Plexus (2025) train so where graphs cut badly.

What a layer costs, with N nodes over P ranks that own N / P each, numbers of `item` bytes, D
columns that an aggregation takes in and O that it gives back (all operands that have a row per node
count: GAT takes O + 2 H, GATv2 2 O, dot products 3 O, relations of T types T O):

    bytes sent by all ranks, forward      item (D + O) N (P - 1) / P
    the same again in backward            unless the aggregated input is constant
    edges walked by each rank             all E, for 1 / P of the columns
    bytes held by each rank               all edges: 4 E (8 E with the transposes) and 48 N of
                                          pointers, however many ranks there are

A halo exchange sends item D R forward, with R halo rows of all ranks together. By columns it is
less where R > 2 N (P - 1) / P: where a node is read by two other ranks or more on average.

Shapes: n owned rows read of N, m owned rows written of M, E edges of the whole graph, F columns of
a row, H heads, T edge types, O width after a map.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu.comm import HaloPlan, Turn, World, exchange_halo, share_rows, to_columns, to_rows
from siafu.comm.once import ComputedOnce
from siafu.errors import PlanError
from siafu.nn import Draws, Dropout, EdgeRows, Reduce, Summing, mapped
from siafu.nn.precision import as_rows
from siafu.ops import CSR, Attention, neighbour_sum, sum_type
from siafu.shard import Shard
from siafu.strategy.neighbours import BlockNeighbours
from siafu.strategy.rounding import WidthBook
from siafu.strategy.strategy import Strategy
from siafu.strategy.view import View


class ColumnNeighbours:
    """Exact neighbours of a shard, by columns: every rank calls the same in the same order."""

    def __init__(
        self,
        shard: Shard,
        draws: Draws,
        strategy: Strategy,
        *,
        view: View | None = None,
        book: WidthBook | None = None,
    ) -> None:
        self._rows = BlockNeighbours(shard, draws, strategy, view=view, book=book)
        self.view, self.book, self._world = self._rows.view, self._rows.book, shard.world
        figures = [float(self.view.num_read), float(self.view.csr.num_rows)]
        table = self._world.gather_numbers(figures)
        self._read = tuple(int(row[0]) for row in table)
        self._written = tuple(int(row[1]) for row in table)
        self._whole = self._gathered()
        self._typed: dict[torch.dtype, CSR] = {}

    def _gathered(self) -> BlockNeighbours:
        """Return all edges on this rank, between the rows of all ranks in their order."""
        view, mine, share = self.view, self._world.rank, self._share
        first = sum(self._read[:mine])
        places = torch.arange(first, first + view.num_read, device=view.csr.device)
        places_C = torch.cat([places, exchange_halo(places, view.plan, self._world)])
        degrees = share(view.csr.degree())
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        kind = torch.int32 if sum(self._read) < 2**31 else torch.int64
        index = share(places_C.index_select(0, view.csr.index).to(kind))
        csr = CSR(indptr, index, sum(self._read), self._shared(view.csr.weight))
        own_rows_M = None if view.own_rows_M is None else share(view.own_rows_M + first)
        alone = World(device=self._world.device)
        nothing = HaloPlan.build(places[:0], [0], [0], sum(self._read))
        whole = View(
            csr,
            nothing,
            alone,
            ids := share(view.in_ids),
            ids if own_rows_M is None else share(view.out_ids),
            share(view.degree_N),
            share(view.loop_M),
            own_rows_M=own_rows_M,
        )
        shard = replace(
            self._rows.shard,
            world=alone,
            csr=csr,
            plan=nothing,
            row_ids=whole.in_ids,
            edge_attr=None,
            edge_type=None,
        )
        return BlockNeighbours(shard, self._rows.draws, view=whole)

    def _share(self, x: Tensor) -> Tensor:
        return share_rows(x, self._world)

    def _shared(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else self._share(x)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self._rows.num_nodes

    @ComputedOnce
    def edge_attr(self) -> Tensor | None:
        """Features of all edges, fetched where a layer asks for them, by every rank together."""
        return self._shared(self._rows.edge_attr)

    @ComputedOnce
    def edge_type(self) -> Tensor | None:
        """The type of all edges, likewise."""
        return self._shared(self._rows.edge_type)

    def maps_first(self, in_width: int, out_width: int) -> bool:
        """Return True where narrower rows travel so."""
        return out_width <= in_width

    def depart(self, x_ND: Tensor, weight_OD: Tensor | None, how: Summing) -> Tensor:
        """Return x W^T, or x: nothing travels ahead here."""
        return mapped(x_ND, weight_OD)

    def own(self, x_nF: Tensor) -> Tensor:
        """Return the rows that are written, of those that are read."""
        return self._rows.own(x_nF)

    def dropout(self, x_nF: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries dropped while training."""
        return self._rows.dropout(x_nF, replace(dropout, departs=False))

    def total(self, x_nF: Tensor) -> Tensor:
        """Return the column sums over the nodes of all ranks."""
        return self._rows.total(x_nF)

    def sum(self, x_nF: Tensor) -> Tensor:
        """Return the weighted sum of in-neighbours' rows."""
        return self._by_columns(x_nF, self._whole.sum)

    def mean(self, x_nF: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges."""
        return self._by_columns(x_nF, self._whole.mean)

    def normalised_sum(self, x_nF: Tensor) -> Tensor:
        """Return GCN's normalised sum, with degrees of the whole graph."""
        return self._by_columns(x_nF, self._whole.normalised_sum)

    def max(self, x_nF: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows."""
        return self._by_columns(x_nF, self._whole.max)

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
        """Return the attention's weighted sum over in-neighbours, each rank for some heads."""
        sources, rows = tuple(map(as_rows, sources)), tuple(map(as_rows, rows))
        heads = sources[0].size(1)
        read, written = Turn.even(self._read, heads), Turn.even(self._written, heads)
        span = read.span(self._world.rank)
        turns = (*(read for _ in sources), *(written for _ in rows))
        turned = to_columns(turns, self._world, (*sources, *rows))
        if span.start == span.stop:
            return to_rows(written, self._world, self._nothing(turned, sources[0].size(2)))
        out_Mhd = self._whole.attend(
            attention,
            turned[: len(sources)],
            turned[len(sources) :],
            tuple(tensor[span] for tensor in shared),
            dropout=replace(dropout, first_head=span.start),
            edges=None if edges is None else _of_heads(edges, span),
            loops=loops,
        )
        return to_rows(written, self._world, out_Mhd)

    def reduce(
        self,
        message: Callable[..., Any],
        x_src: Tensor | tuple[Tensor, ...],
        x_dst: Tensor | tuple[Tensor, ...] = (),
        edge_attr: Tensor | tuple[Tensor, ...] = (),
        *,
        reduce: Reduce = "sum",
    ) -> Tensor:
        """Refuse: what a function of edges makes of some columns is not known."""
        raise PlanError(
            "A message function reads whole rows, and by columns no rank has them.",
            seen=f"Neighbours.reduce({getattr(message, '__name__', 'message')}) by columns",
            fix="use another strategy than columns, or a sum, a mean, a maximum or an attention",
        )

    def relations(self, x_nF: Tensor, map_TFO: Tensor) -> Tensor:
        """Return the sum over edge types of the mapped mean over their in-edges."""
        types, width, out_width = map_TFO.shape
        type_E = self.edge_type
        assert type_E is not None, "layers with relations are made for typed graphs"
        # Mapped first, since a map reads all columns: what is cut is the output.
        x_nF = as_rows(x_nF)
        map_FO = map_TFO.to(x_nF.dtype).permute(1, 2, 0).reshape(width, -1)
        mapped_nOT = (x_nF @ map_FO).unflatten(1, (out_width, types))
        turn = Turn.even(self._read, out_width)
        (z_NoT,) = to_columns((turn,), self._world, (mapped_nOT,))
        written = Turn.even(self._written, out_width)
        if not z_NoT.size(1):
            return to_rows(written, self._world, self._nothing((z_NoT,)))
        rows = z_NoT.transpose(1, 2).reshape(len(z_NoT) * types, -1)
        typed = self._by_type(type_E, types, sum_type(rows.dtype))
        return to_rows(written, self._world, neighbour_sum(typed, rows))

    def _by_type(self, type_E: Tensor, types: int, dtype: torch.dtype) -> CSR:
        """Return M x (N T): a column is a node as edges of one type read it, weights make means."""
        if dtype not in self._typed:
            csr = self._whole.view.csr
            kind = torch.int32 if csr.num_cols * types < 2**31 else torch.int64
            index = (csr.index.to(kind) * types).add_(type_E)
            _, number_E, count = torch.unique(
                csr.rows() * types + type_E, return_inverse=True, return_counts=True
            )
            weight = count.to(dtype).reciprocal_().index_select(0, number_E)
            self._typed[dtype] = CSR(csr.indptr, index, csr.num_cols * types, weight)
        return self._typed[dtype]

    def _by_columns(self, x_nF: Tensor, aggregate: Callable[[Tensor], Tensor]) -> Tensor:
        turn, x_nF = Turn.even(self._read, x_nF.size(1)), as_rows(x_nF)
        (x_Nf,) = to_columns((turn,), self._world, (x_nF,))
        out_Mf = aggregate(x_Nf) if x_Nf.size(1) else self._nothing((x_Nf,))
        del x_Nf  # before the result travels
        return to_rows(Turn.even(self._written, x_nF.size(1)), self._world, out_Mf)

    def _nothing(self, turned: tuple[Tensor, ...], *tail: int) -> Tensor:
        """Return a result without columns, that backward passes through on its way all the same."""
        out = turned[0].new_zeros(sum(self._written), 0, *tail)
        for tensor in turned:
            out = out + tensor.sum()
        return out


def _of_heads(edges: EdgeRows, heads: slice) -> EdgeRows:
    """Return what edges bring to some heads."""
    assert edges.loop_M is None or len(edges.loop_M) == 1, "rows of loops are on their ranks"
    return EdgeRows(lambda data_S: edges.make(data_S)[:, heads], edges.data_E, edges.loop_M)


def neighbours_of(
    shard: Shard,
    draws: Draws,
    strategy: Strategy,
    *,
    view: View | None = None,
    book: WidthBook | None = None,
) -> BlockNeighbours | ColumnNeighbours:
    """Return the neighbours that carry out a strategy on this rank; every rank calls it."""
    by_columns = strategy.by_columns and shard.world.size > 1
    kind = ColumnNeighbours if by_columns else BlockNeighbours
    return kind(shard, draws, strategy, view=view, book=book)

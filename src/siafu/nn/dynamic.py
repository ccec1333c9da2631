"""Models of dynamic graphs: spatial layers, each inside one snapshot, temporal ones between, and
heads that turn embeddings into answers about nodes or pairs of them.

Shapes: T snapshots in a row, N nodes, E pairs, D input width, O output width, F features of an
edge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from siafu.nn.draws import Dropout
from siafu.nn.layers import GCNLayer, Linear, mapped_sum
from siafu.nn.neighbours import Neighbours
from siafu.nn.sparse import CachedRows, Rows, dense
from siafu.nn.temporal import (
    BandedMean,
    EvolvingGCN,
    LookingBack,
    NodeGRU,
    NodeLSTM,
    TemporalLayer,
    edge_map,
    with_edges,
)


def _alone(found: Tensor) -> Tensor:
    return found


@dataclass(frozen=True, eq=False)
class StepGraph:
    """One snapshot as layers see it."""

    neighbours: Neighbours
    find_active: Callable[[], Tensor]
    gather: Callable[[Tensor], Tensor] = _alone
    """Joins what the ranks that share the snapshot have found, each in its own nodes."""
    edge_sum_NF: Tensor | None = None
    """Features of the edges that each node sums over, times what those are normalised to, added up;
    averaged over the band as the adjacencies are, on the scale of the training snapshots. None
    where features of edges are not read."""

    @cached_property
    def active_N(self) -> Tensor:
        """bool: nodes with an edge in this snapshot; found when asked for, over all edges."""
        return self.find_active()


class SpatialLayer(Protocol):
    """A layer inside one snapshot: rows and neighbours in, rows out. Any layer of siafu is one.

    One whose `reads_edges` is true is given `StepGraph.edge_sum_NF` as a third argument.
    """

    def __call__(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        """Return out_NO."""
        ...


def run_spatial(part: nn.Module, x: Rows, at: StepGraph) -> Tensor:
    """Return what a spatial layer makes of one snapshot."""
    if getattr(part, "reads_edges", False):
        return part(x, at.neighbours, at.edge_sum_NF)
    return part(x, at.neighbours)


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicSpec:
    """Everything that shapes a built-in dynamic model."""

    name: str
    in_width: int
    hidden: int = 16
    layers: int = 2
    band: int = 20
    """Snapshots that TM-GCN averages over."""
    dropout: float = 0.0
    edge_width: int = 0
    """F, where every spatial layer reads the features of edges."""


class SnapshotGCN(nn.Module):
    """GCN in each snapshot: act(A_t X_t W + b), or [X_t | act(A_t X_t W + b)] with `skip`.

    With features of edges messages are W x_j + V e_ij, so that S_t V is added, S_t being the sum of
    a node's e_ij times the entries of A_t.
    """

    input_aggregation = "normalised_sum"

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        skip: bool = False,
        dropout: Dropout | None = None,
        edge_width: int = 0,
    ) -> None:
        super().__init__()
        self.gcn = GCNLayer(in_width, out_width)
        self.edges, self.reads_edges = edge_map(edge_width, out_width), edge_width > 0
        self.skip, self.dropout = skip, dropout or Dropout(0.0, 0)
        self.out_width = out_width + (in_width if skip else 0)

    def forward(self, x: Rows, neighbours: Neighbours, edge_sum_NF: Tensor | None = None) -> Tensor:
        """Return out_NO."""
        if not isinstance(x, CachedRows):
            x = neighbours.dropout(dense(x), self.dropout)
        out_NO = torch.relu(with_edges(self.gcn(x, neighbours), self.edges, edge_sum_NF))
        return torch.cat([dense(x), out_NO], dim=1) if self.skip else out_NO


class TransformedGCN(nn.Module):
    """TM-GCN's facewise product: act(A~_t X~_t W), A~ the banded mean of normalised adjacencies.

    With features of edges act(A~_t X~_t W + S~_t V), S~ the banded mean of their sums.
    """

    input_aggregation = "sum"

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        bend: bool,
        dropout: Dropout | None = None,
        edge_width: int = 0,
    ) -> None:
        super().__init__()
        self.linear = Linear(in_width, out_width, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.edges, self.reads_edges = edge_map(edge_width, out_width), edge_width > 0
        self.out_width, self.bend, self.dropout = out_width, bend, dropout or Dropout(0.0, 0)

    def forward(self, x: Rows, neighbours: Neighbours, edge_sum_NF: Tensor | None = None) -> Tensor:
        """Return out_NO; `neighbours` sums with the entries of A~ as edge weights."""
        if not isinstance(x, CachedRows):
            x = neighbours.dropout(dense(x), self.dropout)
        out_NO = mapped_sum(x, self.linear.weight, neighbours, "sum")(None)
        out_NO = with_edges(out_NO, self.edges, edge_sum_NF)
        return torch.selu(out_NO) if self.bend else out_NO


class DynamicGNN(nn.Module):
    """Parts one after another; the rows of the last are the nodes' embeddings at each step.

    A part is a `TemporalLayer`, an `EvolvingGCN`, or any module called with (rows, neighbours). For
    a model of one's own, list a spatial and a temporal part per layer.
    """

    def __init__(self, parts: Sequence[nn.Module], *, out_width: int, band: int = 0) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.out_width = out_width
        self.band = band
        """Not 0: adjacencies are averaged over so many snapshots, as TM-GCN's M-transform does."""

    def forward(self, inputs: Sequence[Rows], graphs: Sequence[StepGraph]) -> Tensor:
        """Return out_TNO for a whole sequence, snapshot after snapshot, in one process."""
        rows: Sequence[Rows] = inputs
        for part in self.parts:
            if isinstance(part, TemporalLayer):
                stacked = torch.stack([dense(x) for x in rows])
                rows = part(stacked, part.begin(stacked[0]))[0].unbind()
            elif isinstance(part, EvolvingGCN):
                summary = summaries(part, rows, graphs)
                weights, _ = part.evolve(summary, part.begin(), len(rows))
                triples = zip(rows, graphs, weights, strict=True)
                rows = [
                    part.apply_weight(x, at.neighbours, q_DO, at.edge_sum_NF)
                    for x, at, q_DO in triples
                ]
            else:
                rows = [run_spatial(part, x, at) for x, at in zip(rows, graphs, strict=True)]
        return torch.stack([dense(x) for x in rows])


def look_back(model: DynamicGNN, history: int) -> None:
    """Have the model's recurrences begin anew `history` snapshots before each snapshot.

    Means over a band have a reach of their own.
    """
    for number, part in enumerate(model.parts):
        if isinstance(part, EvolvingGCN):
            part.history = history
        elif isinstance(part, TemporalLayer) and not isinstance(part, BandedMean):
            model.parts[number] = LookingBack(part, history)


def summaries(
    part: EvolvingGCN, rows: Sequence[Rows], graphs: Sequence[StepGraph]
) -> Tensor | None:
    """Return what the weight's recurrence takes from these snapshots; None for the variant o."""
    if part.variant == "o":
        return None
    shape = (0, part.in_width, part.out_width)
    found = [
        part.summarise(at.gather(part.nominate(x, at.active_N)))
        for x, at in zip(rows, graphs, strict=True)
    ]
    return torch.stack(found) if found else part.first.new_empty(shape)


def _recurrent(
    spec: DynamicSpec, temporal: Callable[[int, int], TemporalLayer], *, skip: bool
) -> list[nn.Module]:
    parts: list[nn.Module] = []
    width = spec.in_width
    for number in range(spec.layers):
        drop = Dropout(spec.dropout, 2 * number)
        spatial = SnapshotGCN(
            width, spec.hidden, skip=skip, dropout=drop, edge_width=spec.edge_width
        )
        parts += [spatial, temporal(spatial.out_width, spec.hidden)]
        width = spec.hidden
    return parts


def _tm_gcn(spec: DynamicSpec) -> list[nn.Module]:
    parts: list[nn.Module] = []
    width = spec.in_width
    for number in range(spec.layers):
        drop, bend = Dropout(spec.dropout, 2 * number), number < spec.layers - 1
        spatial = TransformedGCN(
            width, spec.hidden, bend=bend, dropout=drop, edge_width=spec.edge_width
        )
        parts += [BandedMean(width, spec.band), spatial]
        width = spec.hidden
    return parts


def _evolving(spec: DynamicSpec, variant: Literal["o", "h"]) -> list[nn.Module]:
    widths = [spec.in_width, *[spec.hidden] * spec.layers]
    return [EvolvingGCN(a, b, variant, spec.edge_width) for a, b in pairwise(widths)]


@dataclass(frozen=True, kw_only=True)
class DynamicCard:
    """All that is known of a built-in dynamic model: how it is made, and its defaults."""

    name: str
    parts: Callable[[DynamicSpec], list[nn.Module]]
    hidden: int = 16
    lr: float = 0.01
    dropout: float = 0.0
    weight_decay: float = 0.0
    aggregate: Literal["in", "out"] = "in"
    averages_band: bool = False
    """Adjacencies and rows are averaged over a band of snapshots."""
    only_weights_evolve: bool = False
    """No rows travel along time, and nothing is dropped."""
    edge_head: Literal["linear", "mlp"] = "mlp"
    """What judges the classes of edges, unless asked otherwise."""

    @property
    def defaults(self) -> dict[str, Any]:
        """What it is trained with unless asked otherwise, by setting."""
        names = ("hidden", "lr", "dropout", "weight_decay", "aggregate")
        return {name: getattr(self, name) for name in names}


_DYNAMIC_CARDS = (
    # Malik et al., 2021, who also classify edges by a linear map.
    DynamicCard(
        name="tm-gcn", parts=_tm_gcn, aggregate="out", averages_band=True, edge_head="linear"
    ),
    # Manessi et al., 2020: GCN and LSTM, with the input beside, and without.
    DynamicCard(name="cd-gcn", parts=lambda spec: _recurrent(spec, NodeLSTM, skip=True)),
    DynamicCard(name="wd-gcn", parts=lambda spec: _recurrent(spec, NodeLSTM, skip=False)),
    # Pareja et al., 2020.
    DynamicCard(
        name="evolvegcn-o",
        parts=lambda spec: _evolving(spec, "o"),
        hidden=32,
        lr=0.005,
        only_weights_evolve=True,
    ),
    DynamicCard(
        name="evolvegcn-h",
        parts=lambda spec: _evolving(spec, "h"),
        hidden=32,
        lr=0.005,
        only_weights_evolve=True,
    ),
    # Seo et al., 2018, the first form; T-GCN of Zhao et al., 2020, is this with one layer.
    DynamicCard(name="gcrn", parts=lambda spec: _recurrent(spec, NodeGRU, skip=False)),
)
DYNAMIC_CARDS: dict[str, DynamicCard] = {card.name: card for card in _DYNAMIC_CARDS}


def build_dynamic(spec: DynamicSpec) -> DynamicGNN:
    """Return the built-in model of that name."""
    card = DYNAMIC_CARDS[spec.name]
    band = spec.band if card.averages_band else 0
    return DynamicGNN(card.parts(spec), out_width=spec.hidden, band=band)


class NodeHead(nn.Module):
    """out = W x + b for each node."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.linear = Linear(width, out_width)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return out_NO."""
        return self.linear(x_ND)


class PairHead(nn.Module):
    """out = W [x_u | x_v] for each pair, or a hidden layer between: W' relu(W [x_u | x_v] + b).

    The two halves of W are applied to nodes, so that pairs cost additions alone. Without a
    hidden layer there is no b: it would learn how frequent classes were while trained on, which
    changes over time. What is `known` of pairs beside their ends' rows, so many numbers each, is
    mapped and added to the sum of the halves.
    """

    def __init__(self, width: int, out_width: int, hidden: int = 0, known: int = 0) -> None:
        super().__init__()
        self.source = nn.Linear(width, hidden or out_width, bias=hidden > 0)
        self.target = nn.Linear(width, hidden or out_width, bias=False)
        self.last = nn.Linear(hidden, out_width) if hidden else None
        self.known = nn.Linear(known, hidden or out_width, bias=False) if known else None

    def forward(
        self, x_ND: Tensor, source_E: Tensor, target_E: Tensor, known_EP: Tensor | None = None
    ) -> Tensor:
        """Return out_EO."""
        return self.joined(self.source(x_ND)[source_E] + self.target(x_ND)[target_E], known_EP)

    def joined(self, sum_EH: Tensor, known_EP: Tensor | None = None) -> Tensor:
        """Return out_EO of the pairs whose halves have been added up; None: all known is 0."""
        if known_EP is not None:
            assert self.known is not None, "a head that was made for pairs with known numbers"
            sum_EH = sum_EH + self.known(known_EP)
        return sum_EH if self.last is None else self.last(torch.relu(sum_EH))

"""The built-in models, one card each: how a layer is made, and all that others must know of it.

A new model is a layer (`layers.py`, `attention.py`) and a card here. Settings take its defaults
from the card, minibatches how sampled sums are scaled, the planner what is kept and what travels,
the checks of settings what has a meaning for it. A card without one of these can't be made.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from siafu.errors import ConfigError
from siafu.nn.attention import GATLayer, GATv2Layer, Heads, TransformerLayer
from siafu.nn.draws import Dropout
from siafu.nn.layers import MOST_BASES, GCNLayer, GINLayer, RGCNLayer, SAGELayer

Norm = Literal["none", "batch", "layer"]
InputAggregation = Literal["normalised_sum", "mean", "sum"]
"""What may be asked of a constant input once: no weight takes part in it."""
Aggregation = Literal["normalised_sum", "mean", "sum", "max", "attention", "relations"]
"""What a layer asks of its neighbours: the methods of `Neighbours`."""
_SCALED_WHEN_SAMPLED: dict[Aggregation, bool] = {
    "normalised_sum": True,
    "sum": True,
    "mean": False,
    "max": False,
    "attention": False,
    "relations": False,
}
"""Whether sampled edges give the right result on average only when scaled by true degrees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Everything that shapes a built-in model."""

    name: str
    in_width: int
    out_width: int
    hidden: int = 64
    layers: int = 2
    heads: int = 8
    dropout: float = 0.5
    input_dropout: float | None = None
    """Dropout of the first layer's input; None: as elsewhere."""
    norm: Norm = "none"
    residual: bool = False
    jk: Literal["none", "cat", "max"] = "none"
    edge_width: int = 0
    """Features of an edge that attention uses; 0 for none."""
    num_types: int = 0
    """Types of edges."""

    @property
    def card(self) -> "ModelCard":
        """What is known of the model."""
        return CARDS[self.name]

    @property
    def cached_width(self) -> int:
        """Columns of a row that the first layer's constant input is aggregated to: by type, all."""
        return self.in_width * (self.num_types if self.card.aggregation == "relations" else 1)

    @property
    def drops_with_relu(self) -> bool:
        """Whether nothing but the next layer's dropout reads what the activation makes."""
        is_alone = self.jk == "none" and not self.residual
        return is_alone and self.dropout > 0 and self.card.activation is torch.relu

    @property
    def maps_ahead(self) -> bool:
        """Whether rows before the last layer, a sum, are narrower once its maps were applied."""
        is_narrower = self.card.maps_first == "narrower" and self.out_width < self.hidden
        return is_narrower and self.layers > 1 and self.jk == "none"


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where in a model a layer stands."""

    number: int
    in_width: int
    out_width: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class LayerWidths:
    """Columns of a layer's input and output (heads side by side), and its heads."""

    into: int
    out: int
    heads: int
    types: int = 0
    """Of edges."""

    @property
    def narrow(self) -> int:
        """The narrower side: a linear map is done there."""
        return min(self.into, self.out)

    @property
    def summed(self) -> int:
        """What rows are added up to before they are mapped; 0 where they are mapped first."""
        return self.into if self.into < self.out else 0

    @property
    def mapped(self) -> int:
        """What rows are mapped to before they travel; 0 where they are added up first."""
        return 0 if self.into < self.out else self.out


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """All that is known of a built-in model."""

    name: str
    layer: Callable[[ModelSpec, LayerPlace], nn.Module]
    aggregation: Aggregation
    keeps: Callable[[LayerWidths], int]
    """Columns of owned rows that a layer keeps for backward beside its input and its output."""
    lets_go: Callable[[LayerWidths], int]
    """Of these, columns that backward has let go of before gradients of others' rows travel: what
    was made of what was aggregated, and an attention's result."""
    stands: Callable[[LayerWidths], int]
    """Columns of owned rows that are there beside all that is kept while rows travel in forward:
    the row's own term, rows that were mapped, and what they are added up to."""
    returns: Callable[[LayerWidths], int]
    """Columns of gradients of owned rows that are there while those of others' rows travel, beside
    those that these are added to: of the result, and of the row's own term."""
    sends: Callable[[LayerWidths], int]
    """Columns of a row that travels."""
    maps: Callable[[LayerWidths], int]
    """Multiplications per owned row in a layer's linear maps."""
    maps_first: Literal["narrower", "always", "never"]
    """Whether rows are mapped before they are gathered on minibatches: where that is narrower, in
    any case, or not counted on."""
    lr: float
    dropout: float = 0.5
    hidden: int = 64
    weight_decay: float = 5e-4
    norm: Norm = "none"
    activation: Callable[[Tensor], Tensor] = torch.relu
    reads_own_row: bool = True
    """A row of the output depends on the input's own row beside what is aggregated."""
    adds_loops: bool = False
    """Each node is one of its own neighbours, by an edge that is added."""
    takes_edge_features: bool = False
    needs_types: bool = False
    numbers_edges: bool = False
    """Edges are read by number: each block tells the number of its edges, and where columns are."""

    def __post_init__(self) -> None:
        if self.aggregation not in _SCALED_WHEN_SAMPLED:
            raise ConfigError(
                "How sums of sampled edges are scaled is not known of this aggregation.",
                seen=f"{self.aggregation} on the card of {self.name}",
                fix=f"use one of: {', '.join(_SCALED_WHEN_SAMPLED)}",
            )

    @property
    def scales_sampled(self) -> bool:
        """Whether sampled neighbours are scaled up to all of them by true degrees."""
        return _SCALED_WHEN_SAMPLED[self.aggregation]

    @property
    def reads_weights(self) -> bool:
        """Whether messages are multiplied by the weights of edges."""
        return self.aggregation in ("normalised_sum", "mean", "sum")

    @property
    def adds_up(self) -> bool:
        """Whether what neighbours give is a sum, up to factors that do not depend on rows."""
        return self.aggregation in ("normalised_sum", "mean", "sum", "relations")

    @property
    def attends(self) -> bool:
        """Whether neighbours are weighed by attention."""
        return self.aggregation == "attention"

    @property
    def refetches(self) -> bool:
        """Whether gradients need the rows of others again."""
        return self.aggregation in ("attention", "relations")

    @property
    def input_aggregation(self) -> InputAggregation | None:
        """What the first layer asks of its constant input; None where its weights take part."""
        found = self.aggregation
        return found if found in get_args(InputAggregation) else None  # type: ignore[return-value]

    @property
    def defaults(self) -> dict[str, Any]:
        """What it is trained with unless asked otherwise, by setting."""
        names = ("hidden", "lr", "dropout", "weight_decay", "norm")
        return {name: getattr(self, name) for name in names}


def _attention(
    spec: ModelSpec, place: LayerPlace, layer: Callable[[int, int, Heads], nn.Module]
) -> nn.Module:
    count = 1 if place.is_last else spec.heads
    if place.out_width % count:
        raise ConfigError(
            "The hidden width must be a multiple of the heads.",
            seen=f"hidden={place.out_width}, heads={spec.heads}",
            fix=f"use --hidden {spec.heads * max(1, place.out_width // spec.heads)}",
        )
    heads = Heads(
        count=count,
        concat=not place.is_last,
        dropout=Dropout(spec.dropout, 2 * place.number + 1),
        edge_width=spec.edge_width,
    )
    return layer(place.in_width, place.out_width // count, heads)


def _typed_gat(spec: ModelSpec, place: LayerPlace) -> nn.Module:
    layer = partial(GATLayer, num_types=_types(spec))
    return _attention(replace(spec, edge_width=0), place, layer)


def _types(spec: ModelSpec) -> int:
    if not spec.num_types:
        raise ConfigError(
            "The model needs types of edges, and the graph has none.",
            seen=f"--model {spec.name}",
            fix="give the edges a type (`siafu ingest --help`), or use gcn, sage or gat",
        )
    return spec.num_types


_GAT = ModelCard(
    name="gat",
    layer=lambda spec, at: _attention(spec, at, GATLayer),
    aggregation="attention",
    keeps=lambda width: 2 * width.out + 3 * width.heads,
    lets_go=lambda width: width.out,
    stands=lambda width: width.out + width.heads,
    returns=lambda width: width.out + width.heads,
    sends=lambda width: width.out + width.heads,
    maps=lambda width: width.into * width.out + 2 * width.out,
    maps_first="always",
    lr=0.005,
    dropout=0.6,
    activation=nn.functional.elu,
    adds_loops=True,
    takes_edge_features=True,
)
_SAGE = ModelCard(
    name="sage",
    layer=lambda spec, at: SAGELayer(at.in_width, at.out_width),
    aggregation="mean",
    keeps=lambda width: width.summed,
    lets_go=lambda width: width.summed,
    stands=lambda width: width.out + width.mapped + width.narrow,
    returns=lambda width: width.out + max(width.into, width.summed),
    sends=lambda width: width.narrow,
    maps=lambda width: 2 * width.into * width.out,
    maps_first="narrower",
    lr=0.01,
)
_CARDS = (
    ModelCard(
        name="gcn",
        layer=lambda spec, at: GCNLayer(at.in_width, at.out_width),
        aggregation="normalised_sum",
        # Where it aggregates first, its gradient reads the sums.
        keeps=lambda width: width.summed,
        lets_go=lambda width: width.summed,
        stands=lambda width: width.mapped + width.narrow,
        returns=lambda width: 2 * width.narrow,
        sends=lambda width: width.narrow,
        maps=lambda width: width.into * width.out,
        maps_first="narrower",
        lr=0.01,
        reads_own_row=False,
    ),
    _SAGE,
    replace(
        _SAGE,
        name="sage-max",
        layer=lambda spec, at: SAGELayer(at.in_width, at.out_width, aggregation="max"),
        aggregation="max",
        keeps=lambda width: 3 * width.out,  # rows that were mapped, who held it, the maximum
        lets_go=lambda width: width.out,
        stands=lambda width: 2 * width.out,
        returns=lambda width: 2 * width.out,
        sends=lambda width: width.out,
        maps=lambda width: 2 * width.into * width.out + width.out * width.out,
        maps_first="always",
        numbers_edges=True,
    ),
    ModelCard(
        name="gin",
        layer=lambda spec, at: GINLayer(at.in_width, at.out_width),
        aggregation="sum",
        keeps=lambda width: width.narrow + width.out,
        lets_go=lambda width: width.summed + width.out,
        stands=lambda width: 2 * width.narrow,
        # The own term is multiplied by a weight, so it has two gradients.
        returns=lambda width: width.narrow + 2 * width.narrow,
        sends=lambda width: width.narrow,
        maps=lambda width: width.into * width.out + width.out * width.out,
        maps_first="never",
        lr=0.005,
        norm="batch",
    ),
    _GAT,
    replace(
        _GAT,
        name="gatv2",
        layer=lambda spec, at: _attention(spec, at, GATv2Layer),
        keeps=lambda width: 3 * width.out + width.heads,
        stands=lambda width: width.out,
        returns=lambda width: 2 * width.out,
        sends=lambda width: width.out,
        maps=lambda width: 2 * width.into * width.out,
    ),
    replace(
        _GAT,
        name="transformer",
        layer=lambda spec, at: _attention(spec, at, TransformerLayer),
        keeps=lambda width: 4 * width.out + width.heads,
        stands=lambda width: width.out,
        returns=lambda width: 2 * width.out + width.into,
        sends=lambda width: 2 * width.out,
        maps=lambda width: 4 * width.into * width.out,
        dropout=0.5,
        activation=torch.relu,
        adds_loops=False,
    ),
    ModelCard(
        name="rgcn",
        layer=lambda spec, at: RGCNLayer(at.in_width, at.out_width, num_types=_types(spec)),
        aggregation="relations",
        keeps=lambda width: 0,
        lets_go=lambda width: 0,
        stands=lambda width: 2 * width.out,
        returns=lambda width: width.out,
        sends=lambda width: min(width.into, min(width.types or MOST_BASES, MOST_BASES) * width.out),
        maps=lambda width: 4 * width.into * width.out,
        maps_first="never",
        lr=0.01,
        needs_types=True,
        numbers_edges=True,
    ),
    replace(
        _GAT,
        name="typed-gat",
        layer=_typed_gat,
        dropout=0.5,
        takes_edge_features=False,
        needs_types=True,
        numbers_edges=True,
    ),
)
CARDS: dict[str, ModelCard] = {card.name: card for card in _CARDS}


def cards_that(has: Callable[[ModelCard], bool]) -> list[str]:
    """Return the names of the models whose card has a trait."""
    return [name for name, card in CARDS.items() if has(card)]


def layer_widths(spec: ModelSpec, number: int) -> LayerWidths:
    """Return the widths of a layer."""
    is_last = number == spec.layers - 1 and spec.jk == "none"
    width_in = spec.in_width if number == 0 else spec.hidden
    return LayerWidths(
        width_in,
        spec.out_width if is_last else spec.hidden,
        1 if is_last else spec.heads,
        spec.num_types,
    )

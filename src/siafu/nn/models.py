"""The built-in models: a table of layers, stacked with norm, residual and jumping knowledge.

Shapes: N owned rows, D hidden width, O classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from siafu.errors import ConfigError
from siafu.nn.attention import GATLayer, GATv2Layer, Heads, TransformerLayer
from siafu.nn.draws import Draws, Dropout
from siafu.nn.layers import GCNLayer, GINLayer, RGCNLayer, SAGELayer
from siafu.nn.neighbours import Neighbours
from siafu.nn.norm import GraphBatchNorm
from siafu.nn.sparse import CachedRows, Rows, SparseRows


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
    norm: Literal["none", "batch", "layer"] = "none"
    residual: bool = False
    jk: Literal["none", "cat", "max"] = "none"
    edge_width: int = 0
    """Features of an edge that attention uses; 0 for none."""
    num_types: int = 0
    """Types of edges."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a model a layer stands."""

    number: int
    in_width: int
    out_width: int
    is_last: bool


def _attention(
    spec: ModelSpec, place: Place, layer: Callable[[int, int, Heads], nn.Module]
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


def _typed_gat(spec: ModelSpec, place: Place) -> nn.Module:
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


LAYERS: dict[str, Callable[[ModelSpec, Place], nn.Module]] = {
    "gcn": lambda spec, at: GCNLayer(at.in_width, at.out_width),
    "sage": lambda spec, at: SAGELayer(at.in_width, at.out_width),
    "sage-max": lambda spec, at: SAGELayer(at.in_width, at.out_width, aggregation="max"),
    "gin": lambda spec, at: GINLayer(at.in_width, at.out_width),
    "gat": lambda spec, at: _attention(spec, at, GATLayer),
    "gatv2": lambda spec, at: _attention(spec, at, GATv2Layer),
    "transformer": lambda spec, at: _attention(spec, at, TransformerLayer),
    "rgcn": lambda spec, at: RGCNLayer(at.in_width, at.out_width, num_types=_types(spec)),
    "typed-gat": _typed_gat,
}

InputAggregation = Literal["normalised_sum", "mean", "sum"]

INPUT_AGGREGATIONS: dict[str, InputAggregation] = {
    "gcn": "normalised_sum",
    "sage": "mean",
    "gin": "sum",
}
"""What a first layer asks of its constant input, by model; absent where its weights take part."""

TYPED = frozenset({"rgcn", "typed-gat"})
"""Models that need types of edges."""

_BENT_BY_ELU = frozenset({"gat", "gatv2", "typed-gat"})


def layer_widths(spec: ModelSpec, number: int) -> tuple[int, int, int]:
    """Return input width, output width (heads side by side) and heads of a layer."""
    is_last = number == spec.layers - 1 and spec.jk == "none"
    width_in = spec.in_width if number == 0 else spec.hidden
    return width_in, spec.out_width if is_last else spec.hidden, 1 if is_last else spec.heads


class GNN(nn.Module):
    """Dropout, layer, norm, activation, repeated; the last layer's rows are the logits."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden_layers = spec.layers if spec.jk != "none" else spec.layers - 1
        make = LAYERS[spec.name]
        self.layers = nn.ModuleList(
            make(spec, Place(number, *layer_widths(spec, number)[:2], number == hidden_layers))
            for number in range(spec.layers)
        )
        self.norms = nn.ModuleList(_norm(spec) for _ in range(hidden_layers))
        jk_width = spec.hidden * (hidden_layers if spec.jk == "cat" else 1)
        self.readout = None if spec.jk == "none" else nn.Linear(jk_width, spec.out_width)
        self.activation: Callable[[Tensor], Tensor] = (
            nn.functional.elu if spec.name in _BENT_BY_ELU else torch.relu
        )

    def forward(self, x: Rows, neighbours: Neighbours | list[Neighbours], draws: Draws) -> Tensor:
        """Return logits_MO; a list has the neighbours of each layer."""
        rows: Rows = x
        hidden: list[Tensor] = []
        for number in range(len(self.layers)):
            at = neighbours[number] if isinstance(neighbours, list) else neighbours
            out_MD = self.run_layer(number, rows, at, draws)
            if self.readout is not None:
                hidden = [*(at.own(rows_ND) for rows_ND in hidden), out_MD]
            rows = out_MD
        if self.readout is None:
            assert isinstance(rows, Tensor)
            return rows
        return self.read_out(hidden)

    def run_layer(self, number: int, x: Rows, neighbours: Neighbours, draws: Draws) -> Tensor:
        """Return what one layer makes of its input: dropout, layer, norm and activation."""
        out_MD: Tensor = self.layers[number](self._drop(x, number, neighbours, draws), neighbours)
        return self._finish(out_MD, x, number, neighbours) if number < len(self.norms) else out_MD

    def read_out(self, hidden: list[Tensor]) -> Tensor:
        """Return logits_MO from the rows of all layers (jumping knowledge)."""
        assert self.readout is not None, "without jumping knowledge the last layer's rows are it"
        joined = torch.cat(hidden, 1) if self.spec.jk == "cat" else torch.stack(hidden).amax(0)
        return self.readout(joined)

    def embed(self, x: Rows, neighbours: Neighbours, draws: Draws) -> Tensor:
        """Return the hidden rows before the last layer; the logits when there is only one."""
        if not len(self.norms):
            return self.forward(x, neighbours, draws)
        rows = x
        for number in range(len(self.norms)):
            rows = self.run_layer(number, rows, neighbours, draws)
        assert isinstance(rows, Tensor)
        return rows

    def _drop(self, x: Rows, number: int, neighbours: Neighbours, draws: Draws) -> Rows:
        p = self.spec.input_dropout if number == 0 else None
        dropout = Dropout(self.spec.dropout if p is None else p, 2 * number)
        if isinstance(x, SparseRows):
            return x.dropped(draws, dropout)
        if isinstance(x, CachedRows):
            assert dropout.p == 0.0, "a cached input is constant"
            return x
        return neighbours.dropout(x, dropout)

    def _finish(self, out_ND: Tensor, x: Rows, number: int, neighbours: Neighbours) -> Tensor:
        norm = self.norms[number]
        out_ND = norm(out_ND, neighbours) if isinstance(norm, GraphBatchNorm) else norm(out_ND)
        out_ND = self.activation(out_ND)
        rows = x.rows if isinstance(x, CachedRows) else x
        if self.spec.residual and isinstance(rows, Tensor) and rows.size(1) == out_ND.size(1):
            return out_ND + neighbours.own(rows)
        return out_ND


def _norm(spec: ModelSpec) -> nn.Module:
    if spec.norm == "batch":
        return GraphBatchNorm(nn.BatchNorm1d(spec.hidden))
    return nn.LayerNorm(spec.hidden) if spec.norm == "layer" else nn.Identity()

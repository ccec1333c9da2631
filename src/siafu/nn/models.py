"""The built-in models: a table of layers, stacked with norm, residual and jumping knowledge.

Shapes: N owned rows, D hidden width, O classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from siafu.errors import ConfigError
from siafu.nn.layers import GATLayer, GCNLayer, GINLayer, SAGELayer
from siafu.nn.neighbours import Draws, Dropout, Neighbours
from siafu.nn.norm import GraphBatchNorm
from siafu.nn.sparse import Rows, SparseRows


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
    norm: Literal["none", "batch", "layer"] = "none"
    residual: bool = False
    jk: Literal["none", "cat", "max"] = "none"


def _gat(spec: ModelSpec, number: int, in_width: int, out_width: int, last: bool) -> nn.Module:
    dropout = Dropout(spec.dropout, 2 * number + 1)
    if last:
        return GATLayer(in_width, out_width, heads=1, concat=False, dropout=dropout)
    if out_width % spec.heads:
        raise ConfigError(
            "The hidden width must be a multiple of the heads.",
            seen=f"hidden={out_width}, heads={spec.heads}",
            fix=f"use --hidden {spec.heads * max(1, out_width // spec.heads)}",
        )
    width = out_width // spec.heads
    return GATLayer(in_width, width, heads=spec.heads, concat=True, dropout=dropout)


MakeLayer = Callable[[ModelSpec, int, int, int, bool], nn.Module]
"""spec, layer number, input width, output width, whether it is the last."""

LAYERS: dict[str, MakeLayer] = {
    "gcn": lambda spec, number, i, o, last: GCNLayer(i, o),
    "sage": lambda spec, number, i, o, last: SAGELayer(i, o),
    "sage-max": lambda spec, number, i, o, last: SAGELayer(i, o, aggregation="max"),
    "gin": lambda spec, number, i, o, last: GINLayer(i, o),
    "gat": _gat,
}


class GNN(nn.Module):
    """Dropout, layer, norm, activation, repeated; the last layer's rows are the logits."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden_layers = spec.layers if spec.jk != "none" else spec.layers - 1
        widths = [spec.in_width] + [spec.hidden] * hidden_layers
        if spec.jk == "none":
            widths.append(spec.out_width)
        last = len(widths) - 2 if spec.jk == "none" else -1
        make = LAYERS[spec.name]
        self.layers = nn.ModuleList(
            make(spec, number, widths[number], widths[number + 1], number == last)
            for number in range(spec.layers)
        )
        self.norms = nn.ModuleList(_norm(spec) for _ in range(hidden_layers))
        jk_width = spec.hidden * (hidden_layers if spec.jk == "cat" else 1)
        self.readout = None if spec.jk == "none" else nn.Linear(jk_width, spec.out_width)
        self.activation: Callable[[Tensor], Tensor] = (
            nn.functional.elu if spec.name == "gat" else torch.relu
        )

    def forward(self, x: Rows, neighbours: Neighbours, draws: Draws) -> Tensor:
        """Return logits_NO."""
        hidden = []
        for number, layer in enumerate(self.layers):
            out_ND = layer(self._drop(x, number, neighbours, draws), neighbours)
            if number < len(self.norms):
                out_ND = self._finish(out_ND, x, number, neighbours)
                hidden.append(out_ND)
            x = out_ND
        if self.readout is None:
            assert isinstance(x, Tensor)
            return x
        joined = torch.cat(hidden, 1) if self.spec.jk == "cat" else torch.stack(hidden).amax(0)
        return self.readout(joined)

    def embed(self, x: Rows, neighbours: Neighbours, draws: Draws) -> Tensor:
        """Return the hidden rows before the last layer; the logits when there is only one."""
        if not len(self.norms):
            return self.forward(x, neighbours, draws)
        rows = x
        for number in range(len(self.norms)):
            out_ND = self.layers[number](self._drop(rows, number, neighbours, draws), neighbours)
            rows = self._finish(out_ND, rows, number, neighbours)
        assert isinstance(rows, Tensor)
        return rows

    def _drop(self, x: Rows, number: int, neighbours: Neighbours, draws: Draws) -> Rows:
        dropout = Dropout(self.spec.dropout, 2 * number)
        if isinstance(x, SparseRows):
            return x.dropped(draws, dropout)
        return neighbours.dropout(x, dropout)

    def _finish(self, out_ND: Tensor, x: Rows, number: int, neighbours: Neighbours) -> Tensor:
        norm = self.norms[number]
        out_ND = norm(out_ND, neighbours) if isinstance(norm, GraphBatchNorm) else norm(out_ND)
        out_ND = self.activation(out_ND)
        if self.spec.residual and isinstance(x, Tensor) and x.shape == out_ND.shape:
            return out_ND + x
        return out_ND


def _norm(spec: ModelSpec) -> nn.Module:
    if spec.norm == "batch":
        return GraphBatchNorm(nn.BatchNorm1d(spec.hidden))
    return nn.LayerNorm(spec.hidden) if spec.norm == "layer" else nn.Identity()

"""The built-in models: layers stacked with norm, residual and jumping knowledge.

Shapes: N owned rows, D hidden width, O classes.
"""

import torch
from torch import Tensor, nn

from siafu.nn.cards import LayerPlace, ModelSpec, layer_widths
from siafu.nn.draws import Draws, Dropout
from siafu.nn.layers import EndsWithBias, Linear, MapsAhead
from siafu.nn.neighbours import Activating, Neighbours
from siafu.nn.norm import GraphBatchNorm
from siafu.nn.precision import as_rows
from siafu.nn.sparse import CachedRows, MappedRows, Rows, SparseRows


class GNN(nn.Module):
    """Dropout, layer, norm, activation, repeated; the last layer's rows are the logits."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden_layers = spec.layers if spec.jk != "none" else spec.layers - 1
        widths = [layer_widths(spec, number) for number in range(spec.layers)]
        self.layers = nn.ModuleList(
            spec.card.layer(spec, LayerPlace(number, at.into, at.out, number == hidden_layers))
            for number, at in enumerate(widths)
        )
        self.norms = nn.ModuleList(_norm(spec) for _ in range(hidden_layers))
        jk_width = spec.hidden * (hidden_layers if spec.jk == "cat" else 1)
        self.readout = None if spec.jk == "none" else Linear(jk_width, spec.out_width)
        self.activation = spec.card.activation

    def forward(self, x: Rows, neighbours: Neighbours | list[Neighbours], draws: Draws) -> Tensor:
        """Return logits_MO; a list has the neighbours of each layer."""
        every = neighbours if isinstance(neighbours, list) else [neighbours] * len(self.layers)
        if draws.training and self.spec.drops_with_relu:
            return self._forward_in_one_pass(x, every, draws)
        rows: Rows = x
        hidden: list[Tensor] = []
        for number, at in enumerate(every):
            dropped = self._drop(rows, number, at, draws)
            # What was dropped stays until backward; what it was before need not.
            rows = rows if self.spec.residual else dropped
            rows = self._run(number, dropped, rows, at)
            if self.readout is not None:
                hidden = [*(at.own(rows_ND) for rows_ND in hidden), rows]
        if self.readout is None:
            assert isinstance(rows, Tensor)
            return rows
        return self.read_out(hidden)

    def _forward_in_one_pass(self, x: Rows, every: list[Neighbours], draws: Draws) -> Tensor:
        """Return the same, each activation in one pass with the dropout that follows it.

        And with the bias before it, where the next layer's neighbours do that.
        """
        dropped = self._drop(x, 0, every[0], draws)
        for number in range(len(every) - 1):
            dropped = self._dropped_after(number, dropped, every, draws)
        logits: Tensor = self.layers[-1](dropped, every[-1])
        return logits

    def _dropped_after(
        self, number: int, dropped: Rows, every: list[Neighbours], draws: Draws
    ) -> Rows:
        """Return the next layer's input; what it is made of stays with nobody."""
        layer: object = self.layers[number]
        at, after = every[number], every[number + 1]
        if (
            self.spec.norm == "none"
            and isinstance(layer, EndsWithBias)
            and isinstance(after, Activating)
            and after.activates(layer.last_bias)
        ):
            dropout = Dropout(self.spec.dropout, 2 * (number + 1))
            z_MD = layer.before_bias(dropped, at)
            return after.activate(z_MD, layer.last_bias, dropout)
        out_MD = self._normed(self.layers[number](dropped, at), number, at)
        return self._drop(out_MD, number + 1, after, draws, relu=True)

    def run_layer(self, number: int, x: Rows, neighbours: Neighbours, draws: Draws) -> Tensor:
        """Return what one layer makes of its input: dropout, layer, norm and activation."""
        return self._run(number, self._drop(x, number, neighbours, draws), x, neighbours)

    def _run(self, number: int, dropped: Rows, x: Rows, neighbours: Neighbours) -> Tensor:
        out_MD: Tensor = self.layers[number](dropped, neighbours)
        return self._finish(out_MD, x, number, neighbours) if number < len(self.norms) else out_MD

    def map_ahead(self, hidden_ND: Tensor) -> MappedRows:
        """Return what the last layer takes in place of hidden rows."""
        last = self.layers[-1]
        assert isinstance(last, MapsAhead), "where `spec.maps_ahead`"
        return last.map_ahead(as_rows(hidden_ND))

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

    def _drop(
        self, x: Rows, number: int, neighbours: Neighbours, draws: Draws, *, relu: bool = False
    ) -> Rows:
        draws.layer = number
        p = self.spec.input_dropout if number == 0 else None
        departs = self.spec.card.input_aggregation is not None  # sums depart first of all
        p = self.spec.dropout if p is None else p
        dropout = Dropout(p, 2 * number, relu=relu, departs=departs)
        if isinstance(x, Tensor):
            return neighbours.dropout(as_rows(x), dropout)
        if isinstance(x, SparseRows):
            return x.dropped(draws, dropout)
        if isinstance(x, MappedRows):
            assert not draws.training, "rows are dropped before they are mapped"
            return x
        assert dropout.p == 0.0, "a cached input is constant"
        return x

    def _normed(self, out_ND: Tensor, number: int, neighbours: Neighbours) -> Tensor:
        norm = self.norms[number]
        normed_ND: Tensor = (
            norm(out_ND, neighbours) if isinstance(norm, GraphBatchNorm) else norm(out_ND)
        )
        return normed_ND

    def _finish(self, out_ND: Tensor, x: Rows, number: int, neighbours: Neighbours) -> Tensor:
        out_ND = self.activation(self._normed(out_ND, number, neighbours))
        rows = x.rows if isinstance(x, CachedRows) else x
        if self.spec.residual and isinstance(rows, Tensor) and rows.size(1) == out_ND.size(1):
            return out_ND + neighbours.own(rows)
        return out_ND


def _norm(spec: ModelSpec) -> nn.Module:
    if spec.norm == "batch":
        return GraphBatchNorm(nn.BatchNorm1d(spec.hidden))
    return nn.LayerNorm(spec.hidden) if spec.norm == "layer" else nn.Identity()

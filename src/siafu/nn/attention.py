"""Graph layers that attend to in-neighbours, written as if one device held the graph.

Shapes: N rows read, M rows written, D width of a head, H heads, F edge features, S edges at a time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.nn.draws import Dropout
from siafu.nn.layers import Linear, own_map
from siafu.nn.neighbours import EdgeRows, Neighbours
from siafu.nn.sparse import Rows, project
from siafu.ops import DotProduct, Gat, GatV2

_SLOPE = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Heads:
    """What shapes an attention layer besides its widths."""

    count: int
    concat: bool
    """Heads side by side, or their mean."""
    dropout: Dropout
    """Of attention weights."""
    edge_width: int = 0
    """Features of an edge; 0 for none."""


class _AttentionLayer(nn.Module):
    """What attention layers share: heads side by side or averaged, and what edges bring."""

    def __init__(self, out_width: int, heads: Heads) -> None:
        super().__init__()
        self.heads = heads
        self.out_width = heads.count * out_width if heads.concat else out_width

    def split(self, rows: Tensor) -> Tensor:
        """Return [.., H, D]."""
        return rows.unflatten(1, (self.heads.count, -1))

    def join(self, out_MHD: Tensor) -> Tensor:
        """Return the heads side by side, or their mean."""
        return out_MHD.flatten(1) if self.heads.concat else out_MHD.mean(dim=1)

    def edge_vectors(self, neighbours: Neighbours, linear: nn.Linear | None) -> EdgeRows | None:
        """Return the mapped edge features, [S, H, D] of S edges at a time."""
        if linear is None:
            return None
        data_EF = edge_features(neighbours, linear)
        return EdgeRows(lambda data_SF: self.split(linear(data_SF)), data_EF)


def edge_features(neighbours: Neighbours, linear: nn.Linear) -> Tensor:
    """Return the edges' features in the type of the weights."""
    assert neighbours.edge_attr is not None, "made for graphs with edge features"
    return neighbours.edge_attr.to(linear.weight.dtype)


def _edge_linear(edge_width: int, out_width: int) -> nn.Linear | None:
    return nn.Linear(edge_width, out_width, bias=False) if edge_width else None


class GATLayer(_AttentionLayer):
    """Velickovic et al., 2018: attention over in-neighbours and the node itself.

    Edges may add to a score: by their features, or by a number for each type of edge and head (and
    one for the node itself), as in Lv et al., 2021.
    """

    def __init__(self, in_width: int, out_width: int, heads: Heads, *, num_types: int = 0) -> None:
        super().__init__(out_width, heads)
        self.linear = Linear(in_width, heads.count * out_width, bias=False)
        self.left = nn.Parameter(torch.empty(heads.count, out_width))
        self.right = nn.Parameter(torch.empty(heads.count, out_width))
        self.bias = nn.Parameter(torch.zeros(self.out_width))
        self.edge = _edge_linear(heads.edge_width, heads.count)
        self.types = nn.Parameter(torch.zeros(num_types + 1, heads.count)) if num_types else None
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.xavier_uniform_(self.left)
        nn.init.xavier_uniform_(self.right)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO, heads side by side or averaged."""
        z_NHD = self.split(project(x, self.linear.weight))
        # <a, W x> as <W^T a, x>: one narrow product instead of a pass over z, there and back.
        left_NH = project(x, self._through(self.left))
        right_MH = own_map(x, neighbours, self._through(self.right))
        out_MHD = neighbours.attend(
            Gat(slope=_SLOPE),
            (z_NHD, left_NH),
            (right_MH,),
            dropout=self.heads.dropout,
            edges=self._edges(neighbours),
        )
        return self.join(out_MHD) + self.bias.to(out_MHD.dtype)

    def _through(self, score_HD: Tensor) -> Tensor:
        """Return the map [H, in] from inputs to the scores' halves."""
        map_HDI = self.linear.weight.unflatten(0, (self.heads.count, -1))
        return torch.einsum("hd,hdi->hi", score_HD, map_HDI)

    def _edges(self, neighbours: Neighbours) -> EdgeRows | None:
        if self.types is not None:
            types, type_E = self.types, neighbours.edge_type
            assert type_E is not None, "made for typed graphs"
            loop = type_E.new_full((1,), len(types) - 1)  # a type of its own
            return EdgeRows(lambda type_S: functional.embedding(type_S, types), type_E, loop)
        if self.edge is None:
            return None
        return EdgeRows(self.edge, edge_features(neighbours, self.edge))


class GATv2Layer(_AttentionLayer):
    """Brody et al., 2022: attention whose ranking of neighbours differs from node to node."""

    def __init__(self, in_width: int, out_width: int, heads: Heads) -> None:
        super().__init__(out_width, heads)
        self.source = Linear(in_width, heads.count * out_width)
        self.target = Linear(in_width, heads.count * out_width)
        self.score = nn.Parameter(torch.empty(heads.count, out_width))
        self.bias = nn.Parameter(torch.zeros(self.out_width))
        self.edge = _edge_linear(heads.edge_width, heads.count * out_width)
        for weight in (self.source.weight, self.target.weight, self.score):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO, heads side by side or averaged."""
        source_NHD = self.split(project(x, self.source.weight, self.source.bias))
        target_MHD = self.split(own_map(x, neighbours, self.target.weight, self.target.bias))
        out_MHD = neighbours.attend(
            GatV2(slope=_SLOPE),
            (source_NHD,),
            (target_MHD,),
            (self.score,),
            dropout=self.heads.dropout,
            edges=self.edge_vectors(neighbours, self.edge),
        )
        return self.join(out_MHD) + self.bias.to(out_MHD.dtype)


class TransformerLayer(_AttentionLayer):
    """Shi et al., 2021: dot-product attention over in-neighbours, beside the node itself."""

    def __init__(self, in_width: int, out_width: int, heads: Heads) -> None:
        super().__init__(out_width, heads)
        self.query = Linear(in_width, heads.count * out_width)
        self.key = Linear(in_width, heads.count * out_width)
        self.value = Linear(in_width, heads.count * out_width)
        self.own = Linear(in_width, self.out_width)
        self.edge = _edge_linear(heads.edge_width, heads.count * out_width)
        self.scale = out_width**-0.5

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO, heads side by side or averaged."""
        out_MHD = neighbours.attend(
            DotProduct(scale=self.scale),
            (
                self.split(project(x, self.key.weight, self.key.bias)),
                self.split(project(x, self.value.weight, self.value.bias)),
            ),
            (self.split(own_map(x, neighbours, self.query.weight, self.query.bias)),),
            dropout=self.heads.dropout,
            edges=self.edge_vectors(neighbours, self.edge),
            loops=False,
        )
        return self.join(out_MHD) + own_map(x, neighbours, self.own.weight, self.own.bias)

"""PyG models as their users write them; nothing here knows of siafu."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree, dropout_edge, softmax

DEGREES = torch.bincount(torch.arange(45) % 9)


def _mlp(width_in: int, width_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))


def _pna(i: int, o: int) -> nn.Module:
    scalers = ["identity", "amplification", "attenuation"]
    return pyg.PNAConv(i, o, ["mean", "min", "max", "std"], scalers, deg=DEGREES, towers=2)


CONVS = {
    "GCNConv": lambda i, o: pyg.GCNConv(i, o),
    "GCNConv-improved-cached": lambda i, o: pyg.GCNConv(i, o, improved=True, cached=True),
    "SAGEConv-mean": lambda i, o: pyg.SAGEConv(i, o),
    "SAGEConv-max": lambda i, o: pyg.SAGEConv(i, o, aggr="max", project=True),
    "GATConv": lambda i, o: pyg.GATConv(i, o // 2, heads=2),
    "GATv2Conv": lambda i, o: pyg.GATv2Conv(i, o // 2, heads=2),
    "GINConv": lambda i, o: pyg.GINConv(_mlp(i, o), train_eps=True),
    "TransformerConv": lambda i, o: pyg.TransformerConv(i, o // 2, heads=2, beta=True),
    "GraphConv": lambda i, o: pyg.GraphConv(i, o),
    "TAGConv": lambda i, o: pyg.TAGConv(i, o, K=2),
    "SGConv": lambda i, o: pyg.SGConv(i, o, K=2),
    "SSGConv": lambda i, o: pyg.SSGConv(i, o, alpha=0.1, K=2),
    "PNAConv": _pna,
    "EdgeConv": lambda i, o: pyg.EdgeConv(_mlp(2 * i, o)),
    "EdgeConv-normed": lambda i, o: pyg.EdgeConv(pyg.MLP([2 * i, 8, o])),
    "ResGatedGraphConv": lambda i, o: pyg.ResGatedGraphConv(i, o),
    "ARMAConv": lambda i, o: pyg.ARMAConv(i, o),
    "GENConv": lambda i, o: pyg.GENConv(i, o),
    "LEConv": lambda i, o: pyg.LEConv(i, o),
    "MFConv": lambda i, o: pyg.MFConv(i, o),
    "FeaStConv": lambda i, o: pyg.FeaStConv(i, o, heads=2),
    "ClusterGCNConv": lambda i, o: pyg.ClusterGCNConv(i, o),
    "GeneralConv": lambda i, o: pyg.GeneralConv(i, o),
    "FiLMConv": lambda i, o: pyg.FiLMConv(i, o),
}

FEW = ["GCNConv", "SAGEConv-max", "GATConv", "EdgeConv"]
"""One for each way that rows are joined: a plain sum, a maximum, an attention, a message."""

EDGE_CONVS = {
    "GATConv-edges": lambda i, o: pyg.GATConv(
        i, o // 2, heads=2, edge_dim=2, residual=True, negative_slope=0.1
    ),
    "GATConv-edges-no-loops": lambda i, o: pyg.GATConv(
        i, o, heads=3, concat=False, edge_dim=2, add_self_loops=False, bias=False
    ),
    "GATConv-edges-filled": lambda i, o: pyg.GATConv(i, o, edge_dim=2, fill_value=0.5),
    "GATv2Conv-edges": lambda i, o: pyg.GATv2Conv(
        i, o // 2, heads=2, edge_dim=2, residual=True, share_weights=True
    ),
    "GATv2Conv-edges-no-loops": lambda i, o: pyg.GATv2Conv(
        i, o, heads=3, concat=False, edge_dim=2, add_self_loops=False, bias=False
    ),
    "GATv2Conv-edges-filled": lambda i, o: pyg.GATv2Conv(
        i, o, edge_dim=2, fill_value=torch.tensor([0.5, -1.0], dtype=torch.float64)
    ),
    "TransformerConv-edges": lambda i, o: pyg.TransformerConv(
        i, o // 2, heads=2, edge_dim=2, beta=True
    ),
    "TransformerConv-edges-mean": lambda i, o: pyg.TransformerConv(
        i, o, heads=2, concat=False, edge_dim=2, bias=False, root_weight=False
    ),
    "GINEConv": lambda i, o: pyg.GINEConv(_mlp(i, o), edge_dim=2),
    "NNConv": lambda i, o: pyg.NNConv(i, o, nn.Linear(2, i * o), aggr="mean"),
    "CGConv-min": lambda i, o: _Widened(pyg.CGConv(i, dim=2, aggr="min"), i, o),
    "PNAConv-edges": lambda i, o: pyg.PNAConv(
        i, o, ["sum", "var"], ["linear", "inverse_linear"], deg=DEGREES, edge_dim=2
    ),
    "GENConv-learnt": lambda i, o: pyg.GENConv(i, o, learn_t=True, edge_dim=2),
    "ResGatedGraphConv-edges": lambda i, o: pyg.ResGatedGraphConv(i, o, edge_dim=2),
}
"""Convolutions that take edge features."""


class _Widened(nn.Module):
    """A convolution that keeps its width, and a map after it."""

    def __init__(self, conv: nn.Module, width: int, out: int) -> None:
        super().__init__()
        self.conv, self.map = conv, nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.map(self.conv(x, edge_index, edge_attr))


class TwoEdgeLayers(nn.Module):
    """Two convolutions, of edge features as they are and of learnt ones; learnt edge weights."""

    def __init__(self, conv: str, width: int, classes: int) -> None:
        super().__init__()
        self.encode = nn.Linear(2, 2)
        self.first = EDGE_CONVS[conv](width, 8)
        self.second = EDGE_CONVS[conv](8, 2 * classes)
        self.last = pyg.GCNConv(2 * classes, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        learnt = self.encode(edge_attr).tanh()
        x = torch.relu(self.first(x, edge_index, edge_attr))
        x = torch.relu(self.second(x, edge_index, learnt))
        return self.last(x, edge_index, learnt[:, 0].exp())


class TwoLayers(nn.Module):
    """Two convolutions with batch norm and dropout between them."""

    def __init__(self, conv: str, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = CONVS[conv](width, 8)
        self.norm = pyg.BatchNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.second = CONVS[conv](8, 2 * classes)
        self.last = nn.Linear(2 * classes, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x, edge_index)))
        return self.last(torch.relu(self.second(self.dropout(x), edge_index)))


class AttentionDropout(nn.Module):
    """GAT with dropout on features (functional) and on attention."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = pyg.GATConv(width, 4, heads=2, dropout=0.4)
        self.second = pyg.TransformerConv(8, classes, dropout=0.4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(x, 0.3, self.training)
        return self.second(nn.functional.elu(self.first(x, edge_index)), edge_index)


class Chebyshev(nn.Module):
    """Sums over out-edges to normalise, which ranks can't do."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.ChebConv(width, classes, K=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class WithGraphNorm(nn.Module):
    """Normalises over all nodes of a graph in a way that is not split."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = pyg.GraphNorm(width)
        self.conv = pyg.GCNConv(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(self.norm(x), edge_index)


class WithEdgeData(nn.Module):
    """Takes edge weights and edge features; a part of it is frozen, another unused."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = pyg.GCNConv(width, 8)
        self.second = pyg.GATConv(8, 4, heads=2, edge_dim=2)
        self.third = pyg.GINEConv(nn.Linear(8, classes), edge_dim=2)
        self.frozen = nn.Linear(width, 8)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_attr: Tensor
    ) -> Tensor:
        hidden = torch.relu(self.first(x, edge_index, edge_weight) + self.frozen(x))
        hidden = torch.relu(self.second(hidden, edge_index, edge_attr))
        return self.third(hidden, edge_index, edge_attr)


class AddsNoise(nn.Module):
    """Draws random numbers of its own."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x + torch.randn_like(x), edge_index)


class DropsEdges(nn.Module):
    """Draws a number per edge."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = dropout_edge(edge_index, 0.5, training=self.training)
        return self.conv(x, edge_index)


class DropsBothWays(DropsEdges):
    """Keeps an edge where its other direction is kept, as told by numbers of nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = dropout_edge(edge_index, 0.5, force_undirected=True)
        return self.conv(x, edge_index)


class OutDegrees(nn.Module):
    """Counts at the sources, most of whose edges end on other ranks."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row = edge_index[0]
        return self.conv(x / degree(row, x.size(0)).clamp(min=1).unsqueeze(1), edge_index)


class TwoDropouts(nn.Module):
    """Dropout between convolutions, on rows that may be as many as edges."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = pyg.SAGEConv(width, 8)
        self.second = pyg.SAGEConv(8, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(self.first(x, edge_index), 0.5, self.training)
        return self.second(nn.functional.dropout(x, 0.5, self.training), edge_index)


class DropsMessages(pyg.MessagePassing):
    """A user's own layer, with dropout in its message and a norm over columns."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr=["mean", "max"])
        self.map = nn.Linear(2 * width, out)
        self.norm = nn.LayerNorm(out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        mapped = torch.tanh(self.map(torch.cat([x_i, x_j - x_i], dim=-1)))
        return self.norm(nn.functional.dropout(mapped, 0.3, self.training))

    def update(self, out: Tensor, x: Tensor) -> Tensor:
        return out + x[:, :1]


class MessageDropout(nn.Module):
    """Dropout before, in and after messages."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = DropsMessages(width, 4)
        self.last = nn.Linear(8, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(x, 0.2, self.training)
        x = nn.functional.dropout(self.first(x, edge_index), 0.4, self.training)
        return self.last(x)


class OneLayer(nn.Module):
    """One layer, called in some way."""

    def __init__(self, conv: nn.Module, **asked: bool) -> None:
        super().__init__()
        self.conv, self.asked = conv, asked

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index, **self.asked)


class Bipartite(nn.Module):
    """Gives a layer a pair of tensors."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv((x, x), edge_index)


class OwnSoftmax(pyg.GATConv):
    """Attention whose scores are its own."""

    def edge_update(self, alpha_j: Tensor, alpha_i: Tensor, index: Tensor) -> Tensor:
        return softmax(torch.tanh(alpha_j + alpha_i), index)


class Weighed(pyg.MessagePassing):
    """Messages times a softmax of scores of their own, some of them dropped."""

    def __init__(self, width: int, classes: int, p: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.map, self.score = nn.Linear(width, classes), nn.Linear(2 * width + 1, 2)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, scale=x.mean(dim=1, keepdim=True))

    def message(self, x_i: Tensor, x_j: Tensor, scale_j: Tensor, index: Tensor) -> Tensor:
        scores = self.score(torch.cat([self.drop(x_i), x_j, scale_j], dim=1))
        weights = self.drop(softmax(30 * scores, index)).sum(dim=1, keepdim=True)
        return torch.tanh(weights * self.map(x_j) + 0.1 * weights.square())


class SourceSoftmax(Weighed):
    """Weighs edges among those that start together."""

    def message(  # type: ignore[override]
        self, x_i: Tensor, x_j: Tensor, edge_index_j: Tensor
    ) -> Tensor:
        return self.map(x_j) * softmax(x_i.sum(dim=1, keepdim=True), edge_index_j)


class TwoSoftmaxes(Weighed):
    """Weighs edges by two softmaxes."""

    def message(  # type: ignore[override]
        self, x_j: Tensor, index: Tensor
    ) -> Tensor:
        return softmax(self.map(x_j), index) * softmax(self.map(-x_j), index)


class Turned(nn.Module):
    """Sends messages against the direction of edges."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.GraphConv(width, classes, flow="target_to_source")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class Reversed(nn.Module):
    """Turns edges round, so that some end at nodes of other ranks."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index.flip(0))


AGGREGATIONS = {
    "mul": lambda: "mul",
    "median": lambda: "median",
    "powermean": lambda: pyg.PowerMeanAggregation(1.5, learn=True),
    "quantile": lambda: pyg.QuantileAggregation([0.3, 0.6]),
    "set2set": lambda: pyg.Set2Set(4, 2),
    "train-norm": lambda: pyg.DegreeScalerAggregation(
        ["mean", "max"], ["identity", "amplification", "linear"], DEGREES, train_norm=True
    ),
    "sort": lambda: pyg.SortAggregation(3),
    "attentional": lambda: pyg.AttentionalAggregation(nn.Linear(4, 1), nn.Linear(4, 4)),
    "mlp": lambda: pyg.MLPAggregation(4, 4, 5, num_layers=2, hidden_channels=6),
    "deep-sets": lambda: pyg.DeepSetsAggregation(_mlp(4, 4), _mlp(4, 4)),
    "variance-preserving": lambda: pyg.VariancePreservingAggregation(),
}
"""Of PyG's aggregations those that join the in-edges of each node whatever else is there."""

INEXACT_AGGREGATIONS = {
    "LSTMAggregation": lambda: pyg.LSTMAggregation(4, 4),
    "GRUAggregation": lambda: pyg.GRUAggregation(4, 4),
    "LCMAggregation": lambda: pyg.LCMAggregation(4, 4),
    "EquilibriumAggregation": lambda: pyg.EquilibriumAggregation(4, 4, [8], 2),
    "GraphMultisetTransformer": lambda: pyg.GraphMultisetTransformer(4, 2),
    "SetTransformerAggregation": lambda: pyg.SetTransformerAggregation(4),
    "PatchTransformerAggregation": lambda: pyg.PatchTransformerAggregation(4, 4, 2, 4),
}
"""Those that see more than that: paddings to the largest degree, means over all rows."""


class Aggregating(nn.Module):
    """One aggregation between two maps."""

    def __init__(self, aggregation: object) -> None:
        super().__init__()
        self.before, self.conv = nn.Linear(6, 4), pyg.SimpleConv(aggr=aggregation)
        self.after = nn.LazyLinear(3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.after(self.conv(self.before(x).tanh(), edge_index))


def aggregating(name: str) -> nn.Module:
    """Return a model with one of the aggregations, its widths known."""
    model = Aggregating((AGGREGATIONS | INEXACT_AGGREGATIONS)[name]())
    model(torch.zeros(2, 6), torch.tensor([[1, 0], [0, 1]]))
    return model


SOFTMAXES = {
    "AGNNConv": lambda: OneLayer(pyg.AGNNConv()),
    "SuperGATConv without its loss": lambda: OneLayer(pyg.SuperGATConv(6, 3).eval()),
    "SuperGATConv of products": lambda: OneLayer(
        pyg.SuperGATConv(6, 3, heads=2, concat=False, attention_type="SD").eval()
    ),
    "GeneralConv additive": lambda: OneLayer(pyg.GeneralConv(6, 3, attention=True, heads=2)),
    "GeneralConv of products": lambda: OneLayer(
        pyg.GeneralConv(6, 3, attention=True, attention_type="dot_product", aggr="mean")
    ),
    "own": lambda: OneLayer(Weighed(6, 3)),
    "own maximum": lambda: OneLayer(Weighed(6, 3, aggr="max")),
    "own of two": lambda: OneLayer(Weighed(6, 3, aggr=["std", "mean"])),
    "own dropped": lambda: OneLayer(Weighed(6, 3, p=0.4)),
}
"""Layers whose message takes a softmax over in-edges."""

WHOLE = {
    "SuperGATConv": lambda: OneLayer(pyg.SuperGATConv(6, 3, heads=2)),
    "SourceSoftmax": lambda: OneLayer(SourceSoftmax(6, 3)),
    "TwoSoftmaxes": lambda: OneLayer(TwoSoftmaxes(6, 3)),
    "EGConv": lambda: OneLayer(pyg.EGConv(6, 4, num_heads=2)),
    "SAGEConv median": lambda: OneLayer(pyg.SAGEConv(6, 3, aggr="median")),
    "GATConv weights": lambda: OneLayer(pyg.GATConv(6, 3), return_attention_weights=True),
    "TransformerConv pair": lambda: Bipartite(pyg.TransformerConv(6, 3)),
    "GATv2Conv max": lambda: OneLayer(pyg.GATv2Conv(6, 3, aggr="max")),
    "OwnSoftmax": lambda: OneLayer(OwnSoftmax(6, 3, heads=2)),
    "PyG by hand": lambda: ByHand(6, 3),
}
"""Models that need all in-edges at once; the first word of their names is to be told."""


class ByHand(nn.Module):
    """Message passing without a layer of PyG's."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.map(x)
        return h.index_add(0, dst, h[src])

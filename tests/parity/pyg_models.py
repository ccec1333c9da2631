"""PyG models as their users write them; nothing here knows of siafu."""

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree, dropout_edge

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
    """Normalises over all vertices of a graph in a way that is not split."""

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


class DropsEdges(nn.Module):
    """Draws random numbers of its own."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(width, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = dropout_edge(edge_index, 0.5, training=self.training)
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

"""Models as PyG's users write them, by what their forward takes of the edges."""

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg


class OptionalWeight(nn.Module):
    """Uses weights where there are any."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = pyg.GraphConv(in_channels, hidden_channels)
        self.second = pyg.GraphConv(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        hidden = torch.relu(self.first(x, edge_index, edge_weight))
        return self.second(hidden, edge_index, edge_weight)


class RequiredWeight(nn.Module):
    """Can't do without weights; degrees of sources are read one hop further than rows."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = pyg.GCNConv(in_channels, hidden_channels)
        self.second = pyg.GCNConv(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class EdgeFeatures(nn.Module):
    """Attention that reads features of edges, whose number it is told when it is made."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, edge_dim: int
    ) -> None:
        super().__init__()
        self.first = pyg.GATv2Conv(
            in_channels, hidden_channels, edge_dim=edge_dim, add_self_loops=False
        )
        self.second = pyg.TransformerConv(hidden_channels, out_channels, edge_dim=edge_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x, edge_index, edge_attr))
        return self.second(hidden, edge_index, edge_attr)


class EdgeTypes(nn.Module):
    """RGCN, and a table that is indexed by the types."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_relations: int
    ) -> None:
        super().__init__()
        self.first = pyg.RGCNConv(in_channels, hidden_channels, num_relations)
        self.second = pyg.GraphConv(hidden_channels, out_channels)
        self.scale = nn.Embedding(num_relations, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x, edge_index, edge_type))
        return self.second(hidden, edge_index, self.scale(edge_type).view(-1))


class WeightedSage(nn.Module):
    """SAGE whose messages are scaled by weights of edges, and SAGE."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = pyg.GraphConv(in_channels, hidden_channels, aggr="mean")
        self.second = pyg.SAGEConv(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index)


class Attention(nn.Module):
    """GAT over features of edges; batch norm between."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, edge_dim: int
    ) -> None:
        super().__init__()
        self.first = pyg.GATConv(in_channels, hidden_channels, heads=2, edge_dim=edge_dim)
        self.norm = nn.BatchNorm1d(2 * hidden_channels)
        self.second = pyg.GATConv(2 * hidden_channels, out_channels, edge_dim=edge_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x, edge_index, edge_attr)))
        return self.second(hidden, edge_index, edge_attr)


class GatedSum(pyg.MessagePassing):
    """A user's own messages, of both ends and the edge."""

    def __init__(self, width: int, out: int, edge_dim: int) -> None:
        super().__init__(aggr="add")
        self.gate, self.value = nn.Linear(2 * width + edge_dim, 1), nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        out: Tensor = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return out

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        gate = self.gate(torch.cat([x_i, x_j, edge_attr], dim=1))
        return gate.sigmoid() * torch.tanh(self.value(x_j))


class Gated(nn.Module):
    """Two such layers."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, edge_dim: int
    ) -> None:
        super().__init__()
        self.first = GatedSum(in_channels, hidden_channels, edge_dim)
        self.second = GatedSum(hidden_channels, out_channels, edge_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_attr), edge_index, edge_attr)

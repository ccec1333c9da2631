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

"""A PyG model as anyone would write it. Also: siafu train planted --model examples/net.py:Net"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv


class Net(nn.Module):
    """A convolution, batch norm, and attention."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = GCNConv(in_channels, 32)
        self.norm = nn.BatchNorm1d(32)
        self.second = GATConv(32, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits."""
        return self.second(torch.relu(self.norm(self.first(x, edge_index))), edge_index)

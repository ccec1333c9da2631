"""Models of a user's own: two that take every setting, and one that takes none."""

from itertools import pairwise

import torch
from torch_geometric.nn import SAGEConv


class Net(torch.nn.Module):
    """Takes all that settings have for a model."""

    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, dropout):
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = torch.nn.functional.dropout(conv(x, edge_index).relu(), self.dropout, self.training)
        return self.convs[-1](x, edge_index)


class Other(Net):
    """Another function of the same weights."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * 2


class Fixed(Net):
    """Takes what the graph has, and no setting."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, 8, out_channels, 2, 0.5)

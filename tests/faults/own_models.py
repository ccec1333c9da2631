"""Models of a user whose code goes wrong."""

import os

import torch
from torch import Tensor, nn


class RaisesOnRankOne(nn.Module):
    """Works for two epochs, then fails on one rank only."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.calls = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += self.training
        out = self.linear(x)
        summed = torch.zeros_like(out).index_add(0, edge_index[1], out[edge_index[0]])
        if self.calls == 3 and os.environ["RANK"] == "1":
            raise ZeroDivisionError("the mistake of rank one")
        return summed

"""Models of a user whose code goes wrong."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn


class Sums(nn.Module):
    """Sums over in-neighbours, and a count of training epochs."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.calls = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += self.training
        out = self.linear(x)
        return torch.zeros_like(out).index_add(0, edge_index[1], out[edge_index[0]])


class RaisesOnRankOne(Sums):
    """Works for two epochs, then fails on one rank only."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        summed = super().forward(x, edge_index)
        if self.calls == 3 and os.environ["RANK"] == "1":
            raise ZeroDivisionError("the mistake of rank one")
        return summed


class WaitsForEver(Sums):
    """Works for two epochs, then never returns on one rank."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        summed = super().forward(x, edge_index)
        while self.calls == 3 and os.environ["RANK"] == "1":
            time.sleep(0.1)
        return summed


class KilledOnce(Sums):
    """Ends its process on rank 1, in the sixth epoch, where nothing tells that it did before."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        summed, mark = super().forward(x, edge_index), Path("killed")
        if self.calls == 6 and os.environ.get("RANK") == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return summed


class KilledInFirstAttempt(Sums):
    """Ends its process on rank 1, in the sixth epoch, before torchrun has started it again."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        summed = super().forward(x, edge_index)
        is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if self.calls == 6 and is_first_attempt and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return summed

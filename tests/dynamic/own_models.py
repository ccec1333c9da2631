"""A dynamic model that a user might bring."""

import torch

from siafu.nn import DynamicGNN, SnapshotGCN, TemporalLayer


class Fading(TemporalLayer):
    """A temporal layer of one's own: s = g s + (1 - g) x, with g learnt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_width = self.out_width = width
        self.gate = torch.nn.Parameter(torch.zeros(width))

    def begin(self, rows_ND: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.zeros_like(rows_ND),)

    def forward(self, rows_TND: torch.Tensor, state: tuple[torch.Tensor, ...]):
        out, g = [], self.gate.sigmoid()
        for rows_ND in rows_TND:
            state = (g * state[0] + (1 - g) * rows_ND,)
            out.append(state[0])
        return (torch.stack(out) if out else rows_TND), state


class OwnNet(DynamicGNN):
    """A model of one's own: a spatial and a temporal layer, twice."""

    def __init__(self, in_channels: int, hidden_channels: int) -> None:
        first, second = SnapshotGCN(in_channels, hidden_channels), SnapshotGCN(hidden_channels, 5)
        super().__init__([first, Fading(hidden_channels), second, Fading(5)], out_width=5)


class EdgeNet(DynamicGNN):
    """One whose second layer alone reads the features of edges."""

    def __init__(self, in_channels: int, edge_dim: int = 2) -> None:
        second = SnapshotGCN(6, 5, edge_width=edge_dim)
        super().__init__([SnapshotGCN(in_channels, 6), second, Fading(5)], out_width=5)

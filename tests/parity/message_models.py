"""A model whose layers are users' own functions of edges, with weights inside them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.nn import Draws, Neighbours, Reduce


class MessageLayer(nn.Module):
    """An MLP over both ends and the edge's features, dropped, and joined over in-edges."""

    def __init__(self, in_width: int, out_width: int, reduce: Reduce) -> None:
        super().__init__()
        self.reduce: Reduce = reduce
        self.mlp = nn.Sequential(nn.Linear(2 * in_width + 2, 5), nn.Tanh(), nn.Linear(5, out_width))
        self.score = nn.Linear(in_width, 2)
        self.gate = nn.Parameter(torch.ones(out_width))

    def forward(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        # Captured beside what it was computed from, outside of the message.
        gate = self.gate.exp()

        def message(x_j: Tensor, x_i: Tensor, edge: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            value = self.mlp(torch.cat([x_j, x_i, edge], dim=1)) * gate + self.gate
            value = functional.dropout(value, 0.3, self.training)
            if self.reduce != "softmax":
                return value
            return self.score(x_j), value.unflatten(1, (2, -1))

        edge_attr = neighbours.edge_attr
        assert edge_attr is not None
        out = neighbours.reduce(
            message, x, neighbours.own(x), edge_attr.to(x.dtype), reduce=self.reduce
        )
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """How messages are joined, and how wide the rows are that they read."""

    reduce: Reduce
    in_width: int = 6
    hidden: int = 8


class MessageNet(nn.Module):
    """Two such layers."""

    def __init__(self, plan: MessagePlan) -> None:
        super().__init__()
        reduce, hidden = plan.reduce, plan.hidden
        self.first = MessageLayer(plan.in_width, hidden, reduce)
        self.second = MessageLayer(hidden, 4, reduce)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor, neighbours: Neighbours | list[Neighbours], draws: Draws) -> Tensor:
        first, second = neighbours if isinstance(neighbours, list) else (neighbours, neighbours)
        return self.last(self.second(torch.relu(self.first(x, first)), second))

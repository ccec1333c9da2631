"""Features of events on one scale, and what nodes have of those of their events.

Shapes: N nodes, E events of a snapshot, F features of an event.
"""

import numpy as np
import torch
from torch import Tensor, nn

from siafu.engine.dynamic.edge_sums import SumScale
from siafu.graph import DynamicGraph


class EventScale(nn.Module):
    """(a - mean) / deviation of the events of the training snapshots, kept with the weights."""

    mean_F: Tensor
    deviation_F: Tensor

    def __init__(self, graph: DynamicGraph, train_steps: int, sums: SumScale | None = None) -> None:
        """`sums`: where layers read the features of edges, the scale of their sums."""
        super().__init__()
        self.sums = sums
        assert graph.event_attr is not None
        width = graph.num_event_features
        count, total_F, squares_F = 0, np.zeros(width), np.zeros(width)
        for step in range(train_steps):  # a snapshot at a time: they may lie in a file
            attr = graph.edge_events(step).attr
            assert attr is not None
            count += len(attr)
            total_F += attr.sum(axis=0, dtype=np.float64)
        mean_F = total_F / max(1, count)
        for step in range(train_steps):
            attr = graph.edge_events(step).attr
            assert attr is not None
            squares_F += np.square(attr - mean_F).sum(axis=0)
        deviation_F = np.sqrt(squares_F / max(1, count))
        deviation_F[deviation_F == 0] = 1
        self.register_buffer("mean_F", torch.from_numpy(mean_F).float())
        self.register_buffer("deviation_F", torch.from_numpy(deviation_F).float())

    def forward(self, attr_EF: Tensor) -> Tensor:
        """Return the features on that scale."""
        return (attr_EF - self.mean_F) / self.deviation_F


@torch.no_grad()
def event_means(graph: DynamicGraph, step: int, scale: EventScale) -> Tensor:
    """Return [N, 2 F]: the mean of the features of a node's incoming and of its outgoing events.

    0 for a node without events.
    """
    events = graph.edge_events(step)
    attr_EF = scale(torch.from_numpy(np.array(events.attr)).to(scale.mean_F.device))
    found = []
    for ends in (events.dst, events.src):
        rows_E = torch.from_numpy(ends.astype(np.int64)).to(attr_EF.device)
        sum_NF = attr_EF.new_zeros(graph.num_nodes, attr_EF.size(1)).index_add_(0, rows_E, attr_EF)
        count_N = torch.bincount(rows_E, minlength=graph.num_nodes).clamp(min=1)
        found.append(sum_NF / count_N[:, None])
    return torch.cat(found, dim=1)

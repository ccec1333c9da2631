"""Features of events on one scale, what nodes have of those of their events, and edges of theirs.

Shapes: N nodes, E events or edges of a snapshot, F features of an event.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from siafu.graph import Array, DynamicGraph, Snapshot


class EventScale(nn.Module):
    """(a - mean) / deviation of the events of the training snapshots, kept with the weights."""

    mean_F: Tensor
    deviation_F: Tensor

    def __init__(self, graph: DynamicGraph, train_steps: int) -> None:
        super().__init__()
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


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """What the edges of a snapshot have of their events.

    An edge has the mean over its events of the newest window that has any, which is the snapshot's
    own unless edges live on. In a symmetric graph events count in both directions.
    """

    graph: DynamicGraph
    scale: EventScale
    outward: bool = False
    """Whether nodes sum over those that their edges lead to."""

    def sums(
        self,
        step: int,
        snapshot: Snapshot,
        entries: tuple[Array, Array],
        nodes_C: Array | None = None,
    ) -> Tensor:
        """Return float64 [C, F]: features of a node's edges times their normalised entries, summed.

        `snapshot` has a row for each node that sums, `entries` are the keys and values of its
        normalisation, `nodes_C` tell which nodes of the graph its rows are (None: all).
        """
        key_E, value_E = entries
        # Loops that are added for the normalisation have no features.
        value_E = value_E[np.searchsorted(key_E, snapshot.keys())]
        near_E, far_E = snapshot.dst(), snapshot.src.astype(np.int64)
        nodes_C = np.arange(snapshot.num_nodes) if nodes_C is None else nodes_C
        attr_EF = self._features(step, nodes_C[near_E] * self.graph.num_nodes + nodes_C[far_E])
        attr_EF = attr_EF * torch.from_numpy(value_E)[:, None]
        sum_CF = attr_EF.new_zeros(len(nodes_C), attr_EF.size(1))
        return sum_CF.index_add_(0, torch.from_numpy(near_E), attr_EF)

    def _features(self, step: int, key_E: Array) -> Tensor:
        """Return float64 [E, F] of edges; a key, rising, is N times the node that sums plus the
        one it sums over."""
        num_edges, known_E = len(key_E), np.zeros(len(key_E), bool)
        mean_EF = np.zeros((num_edges, self.graph.num_event_features))
        busy = np.flatnonzero(np.diff(self.graph.event_starts[: step + 2]))
        for window in busy[::-1]:
            if known_E.all():
                break
            keys, attr = self._events(int(window))
            at = np.minimum(np.searchsorted(key_E, keys), num_edges - 1)
            is_new = (key_E[at] == keys) & ~known_E[at]
            order = np.argsort(at[is_new], kind="stable")
            edges, first, count = np.unique(
                at[is_new][order], return_index=True, return_counts=True
            )
            if len(edges):
                total = np.add.reduceat(attr[is_new][order], first, axis=0, dtype=np.float64)
                mean_EF[edges], known_E[edges] = total / count[:, None], True
        mean_F, deviation_F = (x_F.cpu().double() for x_F in self.scale.buffers())
        scaled_EF = (torch.from_numpy(mean_EF) - mean_F) / deviation_F
        return scaled_EF * torch.from_numpy(known_E)[:, None]

    def _events(self, window: int) -> tuple[Array, Array]:
        """Return the keys of a window's events, and their features."""
        events, num_nodes = self.graph.edge_events(window), self.graph.num_nodes
        assert events.attr is not None
        ends = (events.src, events.dst) if self.outward else (events.dst, events.src)
        near, far = (end.astype(np.int64) for end in ends)
        keys = near * num_nodes + far
        if not self.graph.symmetric:
            return keys, events.attr
        both = np.concatenate([keys, far * num_nodes + near])
        return both, np.concatenate([events.attr, events.attr])

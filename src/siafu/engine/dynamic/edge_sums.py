"""What nodes have of the features of their edges: sums, normalised as neighbours' are, on a scale.

Shapes: C nodes that a snapshot has rows for, n of them this rank's, E edges or events of a
snapshot, F features of an event.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from siafu.comm import World
from siafu.engine.dynamic.step_shards import StepShards
from siafu.graph import Array, DynamicGraph, Snapshot
from siafu.graph.snapshot import normalised_entries


class Fit(NamedTuple):
    """What a scale of sums is found from."""

    world: World
    """All ranks of the run."""
    train_steps: int


class Moments:
    """Number, mean and squared differences from the mean of rows, in float64."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean_F, self.squares_F = torch.zeros(2, width, dtype=torch.float64)

    def add(self, rows_nF: Tensor) -> None:
        """Count some rows."""
        mean_F = rows_nF.double().mean(dim=0) if len(rows_nF) else torch.zeros_like(self.mean_F)
        self.join(len(rows_nF), mean_F, (rows_nF.double() - mean_F).square().sum(dim=0))

    def join(self, count: int, mean_F: Tensor, squares_F: Tensor) -> None:
        """Count rows of these moments (Chan et al., 1979)."""
        if not count:
            return
        total, apart_F = self.count + count, mean_F - self.mean_F
        self.squares_F = self.squares_F + squares_F
        self.squares_F += apart_F.square() * (self.count * count / total)
        self.mean_F, self.count = self.mean_F + apart_F * (count / total), total


class SumScale(nn.Module):
    """(S - mean) / deviation of what edges' features add up to at nodes of training snapshots.

    Of nodes that have edges; others keep 0. Features on one scale are not enough: edges of large
    weight, loops above all, move all sums of a graph away from 0 alike, and what a layer makes of
    that is the same for all nodes, with which it can turn off a unit at all of them for good.
    """

    mean_F: Tensor
    deviation_F: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean_F", torch.zeros(width))
        self.register_buffer("deviation_F", torch.ones(width))

    def fit(self, moments: Moments, world: World) -> None:
        """Set the scale from what all ranks have seen; all of them call this."""
        width = len(self.mean_F)
        mine = [float(moments.count), *moments.mean_F.tolist(), *moments.squares_F.tolist()]
        total = Moments(width)
        for count, *numbers in world.gather_numbers(mine):
            mean_F, squares_F = torch.tensor(numbers, dtype=torch.float64).split(width)
            total.join(int(count), mean_F, squares_F)
        deviation_F = (total.squares_F / max(1, total.count)).sqrt()
        # What differs by rounding alone is the same everywhere.
        deviation_F[deviation_F <= 1e-6 * total.mean_F.abs()] = 1
        self.mean_F.copy_(total.mean_F.float())
        self.deviation_F.copy_(deviation_F.float())

    def forward(self, sum_nF: Tensor, met_n: Tensor) -> Tensor:
        """Return sums on the scale; `met_n` tells which nodes have edges."""
        mean_F, deviation_F = (each.to(sum_nF) for each in (self.mean_F, self.deviation_F))
        return torch.where(met_n[:, None], (sum_nF - mean_F) / deviation_F, 0)


class ScaledEvents(Protocol):
    """The scale of events' features, and of the sums of them."""

    mean_F: Tensor
    deviation_F: Tensor
    sums: SumScale | None


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """What the edges of a snapshot have of their events.

    An edge has the mean over its events of the newest window that has any, which is the snapshot's
    own unless edges live on. In a symmetric graph events count in both directions.
    """

    graph: DynamicGraph
    scale: ScaledEvents
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
        ends_F = self.scale.mean_F, self.scale.deviation_F
        mean_F, deviation_F = (x_F.cpu().double() for x_F in ends_F)
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


class EdgeSums:
    """The sums of a rank's snapshots, made once."""

    def __init__(
        self,
        graph: DynamicGraph,
        scale: ScaledEvents,
        *,
        outward: bool,
        shards: StepShards | None = None,
    ) -> None:
        """`shards`: where the snapshots are shared with other ranks."""
        self._reading = EdgeReading(graph, scale, outward)
        self._shards, self._scale = shards, scale.sums
        self._moments = Moments(graph.num_event_features)
        self._met: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}

    def of_snapshot(self, step: int, snapshot: Snapshot) -> Tensor:
        """Return float64 [n, F + 1] on the host, last whether a node has edges; ranks that share
        the snapshot call this together."""
        met_C1 = torch.from_numpy(np.diff(snapshot.indptr) > 0).double()[:, None]
        if self._shards is None:
            sum_CF = self._reading.sums(step, snapshot, normalised_entries(snapshot))
            return torch.cat([sum_CF, met_C1], dim=1)
        part, entries = self._shards.part, self._shards.normalised_entries(snapshot)
        sum_CF = self._reading.sums(step, snapshot, entries, part.nodes_C)
        return torch.cat([sum_CF, met_C1], dim=1)[torch.from_numpy(part.own_n)]

    def note(
        self, span: range, found: Iterable[Tensor], dtype: torch.dtype, fit: Fit | None
    ) -> None:
        """Keep what was found of some snapshots, means over a band perhaps."""
        for step, rows_n in zip(span, found, strict=True):
            sum_nF, met_n = rows_n[:, :-1], rows_n[:, -1] > 0
            if fit is not None and step < fit.train_steps:
                self._moments.add(sum_nF[met_n])
            self._sums[step], self._met[step] = sum_nF.to(dtype), met_n

    def put(self, fit: Fit | None, place: Callable[[Tensor], Tensor]) -> None:
        """Put all on one scale, found of all ranks' where it is not known yet, and in `place`."""
        if self._scale is not None and fit is not None:
            self._scale.fit(self._moments, fit.world)
        for step, sum_nF in self._sums.items():
            found = sum_nF if self._scale is None else self._scale(sum_nF, self._met[step])
            self._sums[step] = place(found)
        self._met.clear()

    def __getitem__(self, step: int) -> Tensor:
        """Return [n, F] where it was put."""
        return self._sums[step]

    @property
    def tensors(self) -> list[Tensor]:
        """All that is kept."""
        return list(self._sums.values())

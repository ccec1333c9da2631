"""What pairs of nodes have done with each other until a snapshot: four numbers per direction, and
the features that their events had.

Shapes: M events, A entries (pair, window in which it met), U pairs that ever meet, E pairs asked
about, P numbers per pair, F features of an event.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Array, DynamicGraph
from siafu.shard import NodeShare

FADE = 0.8
"""What is left of an event after each snapshot, in the count that fades."""
_NUMBERS = 4


class PairHistory:
    """For a pair and a snapshot t: whether it met in t, the log of how often until t, of the same
    with events fading by snapshot, and in what share of the last `reach` snapshots it met.

    In a graph with directions the four of the other direction follow. All are 0 for a pair that
    never met. Nothing after t is read.
    """

    def __init__(
        self,
        graph: DynamicGraph,
        reach: int,
        share: NodeShare,
        *,
        of_all: bool,
        features: bool = False,
    ) -> None:
        """Pairs with an end of this rank's, or `of_all` nodes; with `features` of their events."""
        self.num_nodes, self.reach = graph.num_nodes, reach
        self.width = _NUMBERS if graph.symmetric else 2 * _NUMBERS
        self._both_ways = not graph.symmetric
        self._stride = graph.num_snapshots + reach
        key_A, window_A, count_A, sum_AF = _meetings(
            graph, None if of_all else share, features=features
        )
        pair_U, first_U, pair_A = np.unique(key_A, return_index=True, return_inverse=True)
        device = share.world.device
        before_A = np.concatenate([[0], np.cumsum(count_A)])
        self._pair_U = torch.from_numpy(pair_U).to(device)
        self._first_U = torch.from_numpy(first_U).to(device)
        self._window_A = torch.from_numpy(window_A).to(device)
        self._place_A = torch.from_numpy(pair_A * self._stride + window_A).to(device)
        self._until_A = torch.from_numpy(before_A[1:] - before_A[first_U][pair_A]).to(device)
        faded_A = _faded(pair_A, window_A, count_A)
        self._faded_A = torch.from_numpy(faded_A).to(device)
        self._mean_AF: Tensor | None = None
        if sum_AF is not None:
            mean_AF = _faded(pair_A, window_A, sum_AF) / faded_A[:, None]
            self._mean_AF = torch.from_numpy(mean_AF).to(device)

    def until(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the pairs that met in a snapshot until `step`, sources and targets; or, where
        directions count, whose other direction did."""
        seen = self._pair_U[self._window_A[self._first_U] <= step]
        if self._both_ways:
            turned = seen % self.num_nodes * self.num_nodes + seen // self.num_nodes
            seen = torch.cat([seen, turned]).unique()
        return seen // self.num_nodes, seen % self.num_nodes

    def last_met(self, step: int, source_E: Tensor, target_E: Tensor) -> Tensor:
        """Return int64 [E]: the latest snapshot until `step` in which each pair met, or -1."""
        _, entry_E, met_E = self._latest(step, source_E, target_E)
        return torch.where(met_E, self._window_A[entry_E] if len(self._window_A) else -1, -1)

    def numbers(self, step: int, source_E: Tensor, target_E: Tensor) -> Tensor:
        """Return float32 [E, P] of snapshot `step`."""
        found = self._one_way(step, source_E, target_E)
        if not self._both_ways:
            return found
        return torch.cat([found, self._one_way(step, target_E, source_E)], dim=1)

    def features(
        self,
        step: int,
        source_E: Tensor,
        target_E: Tensor,
        scale: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return float64 [E, F]: the mean of the features of each pair's events until snapshot
        `step`, `scale`d, older ones counting less; 0 for a pair that never met. In a graph with
        directions the other direction's follow.
        """
        assert self._mean_AF is not None, "made with features"
        ways = [(source_E, target_E), (target_E, source_E)][: 1 + self._both_ways]
        found = []
        for ends in ways:
            _, entry_E, met_E = self._latest(step, *ends)
            # An event and the sum of all fade alike, so that the mean stays as its last entry was.
            mean_EF = scale(self._mean_AF[entry_E[met_E]])
            out_EF = mean_EF.new_zeros(len(entry_E), mean_EF.size(1))
            found.append(out_EF.masked_scatter_(met_E[:, None], mean_EF))
        return torch.cat(found, dim=1)

    def _latest(self, step: int, source_E: Tensor, target_E: Tensor) -> tuple[Tensor, ...]:
        """Return the pair, its last entry until `step`, and whether there is one."""
        if not len(self._pair_U):
            nothing = torch.zeros_like(source_E)
            return nothing, nothing, nothing.bool()
        key_E = source_E * self.num_nodes + target_E
        pair_E = torch.searchsorted(self._pair_U, key_E).clamp(max=len(self._pair_U) - 1)
        place_E = pair_E * self._stride + step
        entry_E = torch.searchsorted(self._place_A, place_E, right=True) - 1
        met_E = (self._pair_U[pair_E] == key_E) & (entry_E >= self._first_U[pair_E])
        return pair_E, entry_E.clamp(min=0), met_E

    def _one_way(self, step: int, source_E: Tensor, target_E: Tensor) -> Tensor:
        pair_E, entry_E, met_E = self._latest(step, source_E, target_E)
        if not len(self._pair_U):
            return torch.zeros(len(source_E), _NUMBERS, device=source_E.device)
        # Entries of the last `reach` snapshots; places of other pairs lie before the first one.
        old_E = torch.searchsorted(
            self._place_A, pair_E * self._stride + step - self.reach, right=True
        )
        recent_E = entry_E + 1 - torch.maximum(old_E, self._first_U[pair_E])
        age_E = step - self._window_A[entry_E]
        numbers = [
            (age_E == 0).double(),
            self._until_A[entry_E].double().log1p(),
            (self._faded_A[entry_E] * FADE ** age_E.clamp(min=0).double()).log1p(),
            recent_E.double() / self.reach,
        ]
        return torch.where(met_E[:, None], torch.stack(numbers, dim=1), 0.0).float()


def _meetings(
    graph: DynamicGraph, share: NodeShare | None, *, features: bool
) -> tuple[Array, Array, Array, Array | None]:
    """Return key, window, number of events and, where asked, float64 [A, F], the sum of their
    `features`, of each pair and window, in that order."""
    src, dst = (np.asarray(ends).astype(np.int64) for ends in (graph.event_src, graph.event_dst))
    window = np.repeat(np.arange(graph.num_snapshots), np.diff(graph.event_starts))
    event = np.arange(len(src))
    if graph.symmetric:  # a loop is one event both ways
        turned = src != dst
        src, dst = np.concatenate([src, dst[turned]]), np.concatenate([dst, src[turned]])
        event = np.concatenate([event, event[turned]])
    if share is not None and not share.is_whole:
        is_mine_N = np.zeros(graph.num_nodes, bool)
        is_mine_N[share.ids_n.cpu().numpy()] = True
        kept = is_mine_N[src] | is_mine_N[dst]
        src, dst, event = src[kept], dst[kept], event[kept]
    key, window = src * graph.num_nodes + dst, window[event]
    order = np.lexsort((window, key))
    key, window = key[order], window[order]
    first = np.ones(len(key), bool)
    first[1:] = (key[1:] != key[:-1]) | (window[1:] != window[:-1])
    starts = np.flatnonzero(first)
    sum_AF = None
    if features:
        assert graph.event_attr is not None, "asked for of events that have them"
        attr_EF = graph.event_attr[event[order]].astype(np.float64)
        sum_AF = np.add.reduceat(attr_EF, starts) if len(starts) else attr_EF
    return key[first], window[first], np.diff(np.append(starts, len(key))), sum_AF


def _faded(pair_A: Array, window_A: Array, amount_A: Array) -> Array:
    """Return float64 [A, ...]: what an entry's pair has had until then, fading by snapshot."""
    faded_A = amount_A.astype(np.float64)
    order = np.argsort(window_A, kind="stable")
    bounds = np.searchsorted(window_A[order], np.arange(int(window_A.max(initial=-1)) + 2))
    sum_U = np.zeros((int(pair_A.max(initial=-1)) + 1, *amount_A.shape[1:]))
    then_U = np.zeros(len(sum_U), np.int64)
    for window, (low, high) in enumerate(pairwise(bounds)):
        entries = order[low:high]
        pairs = pair_A[entries]
        left = FADE ** (window - then_U[pairs])
        faded_A[entries] += (sum_U[pairs].T * left).T
        sum_U[pairs], then_U[pairs] = faded_A[entries], window
    return faded_A

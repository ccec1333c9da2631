"""What pairs of nodes have done with each other until a snapshot: four numbers per direction.

Shapes: M events, A entries (pair, window in which it met), U pairs that ever meet, E pairs asked
about, P numbers per pair.
"""

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

    def __init__(self, graph: DynamicGraph, reach: int, share: NodeShare, *, of_all: bool) -> None:
        """Pairs with an end of this rank's, or `of_all` nodes."""
        self.num_nodes, self.reach = graph.num_nodes, reach
        self.width = _NUMBERS if graph.symmetric else 2 * _NUMBERS
        self._both_ways = not graph.symmetric
        self._stride = graph.num_snapshots + reach
        key_A, window_A, count_A = _meetings(graph, None if of_all else share)
        pair_U, first_U, pair_A = np.unique(key_A, return_index=True, return_inverse=True)
        device = share.world.device
        before_A = np.concatenate([[0], np.cumsum(count_A)])
        self._pair_U = torch.from_numpy(pair_U).to(device)
        self._first_U = torch.from_numpy(first_U).to(device)
        self._window_A = torch.from_numpy(window_A).to(device)
        self._place_A = torch.from_numpy(pair_A * self._stride + window_A).to(device)
        self._until_A = torch.from_numpy(before_A[1:] - before_A[first_U][pair_A]).to(device)
        self._faded_A = torch.from_numpy(_faded(pair_A, window_A, count_A)).to(device)

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


def _meetings(graph: DynamicGraph, share: NodeShare | None) -> tuple[Array, Array, Array]:
    """Return key, window and number of events of each pair and window, in that order."""
    src, dst = (np.asarray(ends).astype(np.int64) for ends in (graph.event_src, graph.event_dst))
    window = np.repeat(np.arange(graph.num_snapshots), np.diff(graph.event_starts))
    if graph.symmetric:  # a loop is one event both ways
        turned = src != dst
        src, dst = np.concatenate([src, dst[turned]]), np.concatenate([dst, src[turned]])
        window = np.concatenate([window, window[turned]])
    if share is not None and not share.is_whole:
        is_mine_N = np.zeros(graph.num_nodes, bool)
        is_mine_N[share.ids_n.cpu().numpy()] = True
        kept = is_mine_N[src] | is_mine_N[dst]
        src, dst, window = src[kept], dst[kept], window[kept]
    key = src * graph.num_nodes + dst
    order = np.lexsort((window, key))
    key, window = key[order], window[order]
    first = np.ones(len(key), bool)
    first[1:] = (key[1:] != key[:-1]) | (window[1:] != window[:-1])
    starts = np.flatnonzero(first)
    return key[first], window[first], np.diff(np.append(starts, len(key)))


def _faded(pair_A: Array, window_A: Array, count_A: Array) -> Array:
    """Return float64 [A]: the events of an entry's pair until then, fading by snapshot."""
    faded_A = count_A.astype(np.float64)
    order = np.argsort(window_A, kind="stable")
    bounds = np.searchsorted(window_A[order], np.arange(int(window_A.max(initial=-1)) + 2))
    sum_U = np.zeros(int(pair_A.max(initial=-1)) + 1)
    then_U = np.zeros(len(sum_U), np.int64)
    for window, (low, high) in enumerate(pairwise(bounds)):
        entries = order[low:high]
        pairs = pair_A[entries]
        faded_A[entries] += sum_U[pairs] * FADE ** (window - then_U[pairs])
        sum_U[pairs], then_U[pairs] = faded_A[entries], window
    return faded_A

"""What one group of nodes needs of a dynamic graph: the edges its nodes sum over, no others.

N nodes, n of them in the group, C = n + those they ever meet.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from siafu.graph.array_stream import Array
from siafu.graph.dynamic import Deltas, DynamicGraph
from siafu.graph.nodes import IntegerIds
from siafu.graph.snapshot import snapshot_from_keys

_KEYS_AT_ONCE = 1 << 22
"""So few that what is looked through takes little beside what is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupGraph:
    """The edges of a group, over the nodes they join in the order of the whole graph."""

    graph: DynamicGraph
    """C nodes, whose ids are their numbers in the whole graph; edges and times alone."""
    nodes_C: Array
    """int64, rising: the number of each in the whole graph."""
    own_n: Array
    """int64, rising: which of the C are in the group."""


def group_graph(graph: DynamicGraph, part: int, *, outward: bool = False) -> GroupGraph:
    """Return a group's edges: those that come in or, `outward`, those that lead out.

    The arrays of `graph` are read a piece at a time, so they may lie in files.
    """
    num_nodes = graph.num_nodes
    is_own_N = np.asarray(graph.part_of) == part

    def is_kept(keys: Array) -> Array:
        return is_own_N[keys % num_nodes if outward else keys // num_nodes]

    deltas = graph.deltas
    base = _sift(len(graph.base.src), _base_keys(graph), graph.base.weight, is_kept)
    gone, born, other = (
        _sift(len(keys), _slices(keys), weight, is_kept)
        for keys, weight in (
            (deltas.removed, None),
            (deltas.added, deltas.added_weight),
            (deltas.changed, deltas.changed_weight),
        )
    )
    ends = [np.flatnonzero(is_own_N)]
    for keys in (base.keys, born.keys):
        ends += [np.unique(keys // num_nodes), np.unique(keys % num_nodes)]
    nodes_C = np.unique(np.concatenate(ends))
    number_N = np.full(num_nodes, -1, np.int64)
    number_N[nodes_C] = np.arange(len(nodes_C))

    def numbered(keys: Array) -> Array:
        # Numbers keep their order, so keys keep rising.
        dst, src = np.divmod(keys, num_nodes)
        return number_N[dst] * len(nodes_C) + number_N[src]

    own = replace(
        graph,
        ids=IntegerIds(nodes_C),
        base=snapshot_from_keys(numbered(base.keys), base.weight, len(nodes_C)),
        deltas=Deltas(
            removed=numbered(gone.keys),
            removed_starts=gone.starts(deltas.removed_starts),
            added=numbered(born.keys),
            added_weight=born.weight,
            added_starts=born.starts(deltas.added_starts),
            changed=numbered(other.keys),
            changed_weight=other.weight,
            changed_starts=other.starts(deltas.changed_starts),
        ),
        x=None,
        y=None,
        signal=None,
        part_of=None,
    )
    return GroupGraph(own, nodes_C, number_N[ends[0]])


@dataclass(frozen=True, slots=True, eq=False)
class _Sifted:
    """What was kept of an array of keys, and where it stood."""

    keys: Array
    weight: Array
    places: Array

    def starts(self, starts: Array) -> Array:
        """Return where spans of the array start among what was kept."""
        return np.searchsorted(self.places, starts).astype(np.int64)


Slices = Callable[[int, int], Array]
"""The keys from one place to another."""


def _sift(
    count: int, keys: Slices, weight: Array | None, is_kept: Callable[[Array], Array]
) -> _Sifted:
    found: list[tuple[Array, Array, Array]] = []
    for low in range(0, count, _KEYS_AT_ONCE):
        high = min(low + _KEYS_AT_ONCE, count)
        piece = keys(low, high)
        at = np.flatnonzero(is_kept(piece))
        of_piece = np.zeros(0, np.float32) if weight is None else weight[low:high][at]
        found.append((piece[at], np.asarray(of_piece), at + low))
    empty = np.empty(0, np.int64)
    found = found or [(empty, empty.astype(np.float32), empty)]
    return _Sifted(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _slices(keys: Array) -> Slices:
    return lambda low, high: np.asarray(keys[low:high])


def _base_keys(graph: DynamicGraph) -> Slices:
    base = graph.base

    def keys(low: int, high: int) -> Array:
        dst = np.searchsorted(base.indptr, np.arange(low, high), side="right") - 1
        return dst * base.num_nodes + base.src[low:high]

    return keys

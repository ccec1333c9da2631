"""One snapshot of a dynamic graph, and the delta that leads from one to the next.

An edge's key is dst * N + src; the edges of a snapshot are in rising order of it, each once.
Along time snapshots are smoothed: GCN's normalisation, and its moving average (TM-GCN's M).
N nodes, E edges of a snapshot, A added, R removed and C changed edges of a delta, b the bandwidth.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from siafu.errors import ConfigError, StoreError
from siafu.graph.array_stream import Array
from siafu.graph.graph import index_dtype


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The edges that are alive at one step, as CSR by destination, sorted by source in a row."""

    indptr: Array
    """int64 [N + 1]: where each destination's edges start."""
    src: Array
    """int32, or int64 where N does not fit, [E]: the source row of each edge."""
    weight: Array
    """float32 [E]."""

    @property
    def num_nodes(self) -> int:
        """Nodes, with or without edges."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Edges, each pair at most once."""
        return len(self.src)

    def dst(self) -> Array:
        """Return int64 [E]: the destination row of each edge."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int64), np.diff(self.indptr))

    def keys(self) -> Array:
        """Return int64 [E], rising: dst * N + src of each edge."""
        return self.dst() * self.num_nodes + self.src

    def transposed(self) -> "Snapshot":
        """Return the snapshot with every edge turned round."""
        # Stable: destinations rise already, so they stay in order under each source.
        order = np.argsort(self.src, kind="stable")
        indptr = np.zeros_like(self.indptr)
        np.cumsum(np.bincount(self.src, minlength=self.num_nodes), out=indptr[1:])
        return Snapshot(indptr, self.dst()[order].astype(self.src.dtype), self.weight[order])

    def equals(self, other: "Snapshot") -> bool:
        """Return whether both hold the same edges with the same weights."""
        pairs = zip(self.arrays(), other.arrays(), strict=True)
        return all(np.array_equal(mine, its) for mine, its in pairs)

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return indptr, src and weight."""
        return self.indptr, self.src, self.weight


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What changes from one snapshot to the next; all keys are in rising order."""

    removed: Array
    """int64 [R]: keys of edges that die."""
    added: Array
    """int64 [A]: keys of edges that are born."""
    added_weight: Array
    """float32 [A]."""
    changed: Array
    """int64 [C]: keys of edges that stay with another weight."""
    changed_weight: Array
    """float32 [C]: the new weights themselves, so that applying them is exact."""

    @property
    def num_changes(self) -> int:
        """Edges that the delta names."""
        return len(self.removed) + len(self.added) + len(self.changed)


def snapshot_from_keys(key_E: Array, weight_E: Array, num_nodes: int) -> Snapshot:
    """Return the snapshot of rising keys without duplicates."""
    dst_E, src_E = np.divmod(key_E, num_nodes)
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(dst_E, minlength=num_nodes), out=indptr[1:])
    return Snapshot(indptr, src_E.astype(index_dtype(num_nodes)), weight_E.astype(np.float32))


def empty_snapshot(num_nodes: int) -> Snapshot:
    """Return a snapshot without edges."""
    return snapshot_from_keys(np.empty(0, np.int64), np.empty(0, np.float32), num_nodes)


def difference(now: Snapshot, following: Snapshot) -> Delta:
    """Return the delta that leads from one snapshot to the other."""
    old, new = now.keys(), following.keys()
    # Where an old key would stand among the new ones, and whether it stands there.
    at = np.minimum(np.searchsorted(new, old), max(len(new) - 1, 0))
    stays = new[at] == old if len(new) else np.zeros(len(old), bool)
    born = np.ones(len(new), bool)
    born[at[stays]] = False
    other = following.weight[at[stays]] != now.weight[stays]
    where = at[stays][other]
    return Delta(
        removed=old[~stays],
        added=new[born],
        added_weight=following.weight[born],
        changed=new[where],
        changed_weight=following.weight[where],
    )


class Replay:
    """Applies deltas one after another to a snapshot; the keys are kept instead of made anew."""

    def __init__(self, start: Snapshot) -> None:
        self.snapshot = start
        self._keys = start.keys()

    def apply(self, delta: Delta) -> Snapshot:
        """Return the next snapshot; the one before stays as it was."""
        now, num_nodes = self.snapshot, self.snapshot.num_nodes
        # Keys rise, so that what goes and what comes has its place by binary search.
        gone = _places(self._keys, delta.removed)
        keys = np.delete(self._keys, gone)
        at = np.searchsorted(keys, delta.added)
        added_dst, added_src = np.divmod(delta.added, num_nodes)
        self._keys = np.insert(keys, at, delta.added)
        src = np.insert(np.delete(now.src, gone), at, added_src)
        weight = np.insert(np.delete(now.weight, gone), at, delta.added_weight)
        weight[_places(self._keys, delta.changed)] = delta.changed_weight
        # A row starts later by what the rows before it have grown.
        growth = np.bincount(added_dst, minlength=num_nodes)
        growth -= np.bincount(delta.removed // num_nodes, minlength=num_nodes)
        indptr = now.indptr.copy()
        indptr[1:] += np.cumsum(growth)
        self.snapshot = Snapshot(indptr, src, weight)
        return self.snapshot


def _places(keys: Array, named: Array) -> Array:
    """Return where each of the keys named stands; every one must be there."""
    at = np.searchsorted(keys, named)
    if len(named) and (at[-1] >= len(keys) or (keys[at] != named).any()):
        raise StoreError(
            "A change of the dynamic graph is about an edge that is not there.",
            seen=f"one of {len(named)} edges that are removed or changed in a step",
            fix="make the folder again from its events",
        )
    return at


def replay(start: Snapshot, deltas: Iterator[Delta]) -> Iterator[Snapshot]:
    """Yield the start and then the snapshot after each delta."""
    steps = Replay(start)
    yield start
    for delta in deltas:
        yield steps.apply(delta)


def normalised(
    snapshot: Snapshot,
    own_n: Array | None = None,
    completed: Callable[[Array], Array] | None = None,
) -> Snapshot:
    """Return D^-1/2 (A + I) D^-1/2, with I only where a node has no loop of its own yet.

    Of a part of a graph, `own_n` are the nodes whose rows are here, and `completed` fills in the
    degrees of the others.
    """
    return snapshot_from_keys(*normalised_entries(snapshot, own_n, completed), snapshot.num_nodes)


def normalised_entries(
    snapshot: Snapshot,
    own_n: Array | None = None,
    completed: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array]:
    """Return the rising keys of `normalised` and its entries in float64."""
    num_nodes, dst_E, weight_E = snapshot.num_nodes, snapshot.dst(), snapshot.weight
    bare = np.zeros(num_nodes, bool)
    bare[slice(None) if own_n is None else own_n] = True
    bare[dst_E[dst_E == snapshot.src]] = False
    loops = np.flatnonzero(bare)
    dst_E = np.concatenate([dst_E, loops])
    src_E = np.concatenate([snapshot.src.astype(np.int64), loops])
    value_E = np.concatenate([weight_E.astype(np.float64), np.ones(len(loops))])
    degree_N = np.bincount(dst_E, value_E, num_nodes)
    if completed is not None:
        degree_N = completed(degree_N)
    root_N = np.where(degree_N > 0, degree_N, np.inf) ** -0.5
    value_E *= root_N[dst_E] * root_N[src_E]
    key_E = dst_E * num_nodes + src_E
    order = np.argsort(key_E, kind="stable")
    return key_E[order], value_E[order]


def smooth(
    snapshots: Iterable[Snapshot],
    bandwidth: int,
    normalise: Callable[[Snapshot], Snapshot] = normalised,
) -> Iterator[Snapshot]:
    """Yield for each snapshot the mean of the last `bandwidth` normalised ones, fewer at first."""
    if bandwidth < 1:
        raise ConfigError(
            "A moving average needs at least one snapshot.",
            seen=f"bandwidth={bandwidth}",
            fix="use 1 for no smoothing, 20 as TM-GCN does",
        )
    recent: deque[tuple[Array, Array]] = deque(maxlen=bandwidth)
    for snapshot in snapshots:
        latest = normalise(snapshot)
        recent.append((latest.keys(), latest.weight))
        key_E = np.concatenate([keys for keys, _ in recent])
        value_E = np.concatenate([values for _, values in recent]).astype(np.float64)
        # Stable: runs that are sorted already merge fast, and values add up in order of time.
        order = np.argsort(key_E, kind="stable")
        key_E, value_E = key_E[order], value_E[order]
        first = np.flatnonzero(np.diff(key_E, prepend=-1))
        mean_E = np.add.reduceat(value_E, first) / len(recent) if len(first) else value_E
        yield snapshot_from_keys(key_E[first], mean_E, snapshot.num_nodes)

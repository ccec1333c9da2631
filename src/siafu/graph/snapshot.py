"""One snapshot of a dynamic graph, and the delta that leads from one to the next.

An edge's key is dst * N + src; the edges of a snapshot are in rising order of it, each once.
N vertices, E edges of a snapshot, A added, R removed and C changed edges of a delta.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from siafu.errors import StoreError
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
        """Vertices, with or without edges."""
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
        gone = _places(self._keys, delta.removed)
        keys = np.delete(self._keys, gone)
        at = np.searchsorted(keys, delta.added)
        added_dst, added_src = np.divmod(delta.added, num_nodes)
        self._keys = np.insert(keys, at, delta.added)
        src = np.insert(np.delete(now.src, gone), at, added_src)
        weight = np.insert(np.delete(now.weight, gone), at, delta.added_weight)
        weight[_places(self._keys, delta.changed)] = delta.changed_weight
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

"""Smoothing of snapshots along time: GCN's normalisation, and its moving average (TM-GCN's M).

N vertices, E edges, b the bandwidth.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from siafu.errors import ConfigError
from siafu.graph.array_stream import Array
from siafu.graph.snapshot import Snapshot, snapshot_from_keys


def normalised(
    snapshot: Snapshot,
    own_n: Array | None = None,
    completed: Callable[[Array], Array] | None = None,
) -> Snapshot:
    """Return D^-1/2 (A + I) D^-1/2, with I only where a vertex has no loop of its own yet.

    Of a part of a graph, `own_n` are the vertices whose rows are here, and `completed` fills in the
    degrees of the others.
    """
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
    return snapshot_from_keys(key_E[order], value_E[order], num_nodes)


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

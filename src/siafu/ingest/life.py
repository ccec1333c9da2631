"""From edges of windows to the snapshots in which they live, as a base and deltas.

An edge of window k is alive in snapshots k to k + life - 1; its weight there is the sum over the
windows it is alive from. A entries (edge, window), T snapshots.
"""

from typing import Any

import numpy as np

from siafu.graph import (
    Array,
    Delta,
    Deltas,
    Snapshot,
    empty_snapshot,
    join_deltas,
    snapshot_from_keys,
)
from siafu.ops.numba_jit import strict_kernel

_REMOVED, _ADDED, _CHANGED = 0, 1, 2


def snapshots_of_life(
    key_A: Array, window_A: Array, weight_A: Array, *, num_nodes: int, count: int, life: int
) -> tuple[Snapshot, Deltas]:
    """Return snapshot 0 and the deltas to the others; entries are sorted by key, then window."""
    room = 2 * len(key_A)
    time, kind = np.empty(room, np.int64), np.empty(room, np.int8)
    entry, weight = np.empty(room, np.int64), np.empty(room, np.float32)
    made = _changes(key_A, window_A, weight_A, (count, life), (time, kind, entry, weight))
    time, kind, entry, weight = time[:made], kind[:made], entry[:made], weight[:made]
    # Changes were made edge by edge, so a stable sort leaves keys rising in every group.
    order = np.argsort(3 * time + kind, kind="stable")
    group, key, weight = (3 * time + kind)[order], key_A[entry[order]], weight[order]
    bounds = np.searchsorted(group, np.arange(3 * count + 1))

    def span(t: int, kind: int) -> slice:
        return slice(*bounds[3 * t + kind : 3 * t + kind + 2])

    born = span(0, _ADDED)
    base = empty_snapshot(num_nodes)
    if born.stop > born.start:
        base = snapshot_from_keys(key[born], weight[born], num_nodes)
    deltas = [
        Delta(
            removed=key[span(t, _REMOVED)],
            added=key[span(t, _ADDED)],
            added_weight=weight[span(t, _ADDED)],
            changed=key[span(t, _CHANGED)],
            changed_weight=weight[span(t, _CHANGED)],
        )
        for t in range(1, count)
    ]
    return base, join_deltas(deltas)


@strict_kernel
def _changes(key: Any, window: Any, weight: Any, limits: Any, out: Any) -> int:
    """Write every change of every edge and return how many there are."""
    count, life = limits
    time, kind, entry, value = out
    made, start = 0, 0
    while start < len(key):
        stop = start
        while stop < len(key) and key[stop] == key[start]:
            stop += 1
        # Entries lo to hi - 1 are alive; the next change is a birth or the oldest one's death.
        lo, hi, before = start, start, np.float32(0.0)
        while lo < stop:
            alive_before = hi > lo
            death = window[lo] + life
            now = death
            if (hi < stop and window[hi] <= death) or hi == lo:
                now = window[hi]
            if now >= count:
                break
            if alive_before and death <= now:
                lo += 1
            if hi < stop and window[hi] == now:
                hi += 1
            total = 0.0
            for e in range(lo, hi):
                total += weight[e]
            after = np.float32(total)
            alive = hi > lo
            if alive_before != alive or (alive and after != before):
                time[made], entry[made], value[made] = now, start, after
                kind[made] = 0 if not alive else (2 if alive_before else 1)
                made += 1
            before = after
        start = stop
    return made

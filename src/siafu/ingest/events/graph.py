"""Events, cut into windows and given a life, as a dynamic graph: a base and deltas.

An edge of window k is alive in snapshots k to k + life - 1; its weight there is the sum over the
windows it is alive from. M events, N nodes, T snapshots, A entries (edge, window).
"""

from dataclasses import replace
from typing import Any

import numpy as np

from siafu.errors import ConfigError, DataError
from siafu.graph import (
    Array,
    Delta,
    Deltas,
    DynamicGraph,
    Snapshot,
    check_dynamic,
    empty_snapshot,
    index_dtype,
    join_deltas,
    snapshot_from_keys,
)
from siafu.ingest.arrays import check_finite
from siafu.ingest.events.events import EventOptions, Events, Weighting
from siafu.ingest.events.times import WindowLength, Windows, cut_windows
from siafu.ops.numba_jit import strict_kernel
from siafu.record import counted

_LATEST = 2**62
_REMOVED, _ADDED, _CHANGED = 0, 1, 2


def graph_from_events(
    events: Events,
    *,
    window: WindowLength | None = None,
    stride: WindowLength | None = None,
    edge_life: int = 1,
    symmetric: bool = False,
    options: EventOptions | None = None,
) -> tuple[DynamicGraph, list[str]]:
    """Return the dynamic graph of these events and sentences for the user."""
    options = options or EventOptions()
    _check_life(edge_life)
    _check_events(events)
    events, notes = _sorted(events)
    windows = cut_windows(events, window, stride, keep_partial=options.partial_window == "keep")
    notes += _window_notes(events, windows)
    weighting = _weighting(events, options, notes)
    key_A, window_A, weight_A = _edges(events, windows, weighting, symmetric, notes)
    life = windows.count if events.fixed else edge_life
    base, deltas = snapshots_of_life(
        key_A,
        window_A,
        weight_A,
        num_nodes=events.num_nodes,
        count=windows.count,
        life=min(life, windows.count),
    )
    if weighting == "one":
        deltas = replace(deltas, **_without_changes(len(deltas)))
        deltas.added_weight[:], base.weight[:] = 1, 1
    dtype, ticks = index_dtype(events.num_nodes), events.ticks_per_second if events.dates else 1
    graph = DynamicGraph(
        name=events.name,
        ids=events.ids,
        times=windows.start / ticks,
        dates=events.dates,
        base=base,
        deltas=deltas,
        event_starts=np.searchsorted(windows.window, np.arange(windows.count + 1)),
        event_src=events.src[windows.event].astype(dtype),
        event_dst=events.dst[windows.event].astype(dtype),
        event_label=None if events.label is None else events.label[windows.event],
        event_weight=None if events.weight is None else events.weight[windows.event],
        event_time=_own_times(events, ticks)[windows.event],
        event_attr=None if events.attr is None else events.attr[windows.event],
        event_attr_names=events.attr_names,
        num_edge_classes=events.num_edge_classes,
        edge_class_names=events.edge_class_names,
        x=events.x,
        feature_names=events.feature_names,
        y=events.y,
        num_classes=events.num_classes,
        class_names=events.class_names,
        signal=events.signal,
        symmetric=symmetric,
        overlapping=windows.overlap,
    )
    check_dynamic(graph)
    return graph, notes


def _own_times(events: Events, ticks: int) -> Array:
    """Return times in the data's own numbers; whole ones stay so, since floats may lose digits."""
    is_whole = ticks == 1 and events.time.dtype.kind == "i"
    return events.time if is_whole else events.time / ticks


def _without_changes(num_deltas: int) -> dict[str, Array]:
    return {
        "changed": np.empty(0, np.int64),
        "changed_weight": np.empty(0, np.float32),
        "changed_starts": np.zeros(num_deltas + 1, np.int64),
    }


def _check_life(edge_life: int) -> None:
    if edge_life < 1:
        raise ConfigError(
            "An edge lives for at least one snapshot.",
            seen=f"edge_life={edge_life}",
            fix="use 1 to have an edge in its own window alone, 10 as TM-GCN does",
        )


def _check_events(events: Events) -> None:
    if events.num_events == 0 and events.num_steps is None:
        raise DataError(
            "There are no events.", seen=events.name, fix="check that the export was complete"
        )
    if not np.isfinite(events.time).all():
        raise DataError(
            "A time is missing, NaN or infinite.",
            seen=f"event {int(np.argmin(np.isfinite(events.time)))} (from 0)",
            fix="give every event a time, or drop it",
        )
    _check_reach(events)
    if events.weight is not None:
        check_finite(events.name, "weight", events.weight)
    _check_attr(events)
    for name in ("src", "dst"):
        ends = getattr(events, name)
        low, high = int(ends.min(initial=0)), int(ends.max(initial=-1))
        if low < 0 or high >= events.num_nodes:
            raise DataError(
                "An event names a node that does not exist.",
                seen=f"{name} runs from {low} to {high}, there are {events.num_nodes} nodes",
                fix="number the nodes 0 to N-1, or give num_nodes",
            )


def _check_attr(events: Events) -> None:
    """Raise unless every event has as many features, all of them numbers."""
    if events.attr is None:
        return
    if events.attr.ndim != 2 or len(events.attr) != events.num_events or not events.attr.shape[1]:
        raise DataError(
            "The features of events do not fit them.",
            seen=f"an array of shape {list(events.attr.shape)} for {events.num_events} events",
            fix="give one row of numbers per event, all of the same length",
        )
    check_finite(events.name, "features of events", events.attr)


def _check_reach(events: Events) -> None:
    """Raise where times are so far apart that a difference of two is no longer a number."""
    if not events.num_events:
        return
    low, high = events.time.min().item(), events.time.max().item()
    if max(abs(low), abs(high)) >= _LATEST:
        raise DataError(
            "The times are too far apart.",
            seen=f"from {low} to {high}",
            fix="use times below 2^62 in size; seconds of 1970 are usual",
        )


def _sorted(events: Events) -> tuple[Events, list[str]]:
    """Return the events in order of time; those at one time keep the order they came in."""
    late = int(np.count_nonzero(events.time[1:] < events.time[:-1]))
    if not late:
        return events, []
    order = np.argsort(events.time, kind="stable")
    columns = ("src", "dst", "time", "weight", "label", "attr")
    values = {name: getattr(events, name) for name in columns}
    values = {name: None if column is None else column[order] for name, column in values.items()}
    return replace(events, **values), [f"{counted(late, 'event')} out of order: sorted by time."]


def _window_notes(events: Events, windows: Windows) -> list[str]:
    is_in = np.zeros(events.num_events, bool)
    is_in[windows.event] = True
    left = int(np.count_nonzero(~is_in))
    filled = int(np.count_nonzero(np.bincount(windows.window, minlength=windows.count)))
    notes = []
    if windows.count == 1 and events.num_events > 1 and events.time[0] == events.time[-1]:
        notes.append("All events have one time: there is one snapshot.")
    if windows.count > 1:
        notes.append(f"{windows.count:,} snapshots, one for {windows.text}.")
    if left:
        notes.append(f"{counted(left, 'event')} in no window: left out.")
    if filled < windows.count and not events.fixed:
        notes.append(f"{counted(windows.count - filled, 'window')} without events.")
    return notes


def _weighting(events: Events, options: EventOptions, notes: list[str]) -> Weighting:
    asked, is_named = options.weighting, options.weight is not None
    if asked == "sum" and events.weight is None:
        raise ConfigError(
            "There are no weights to sum.",
            seen=f"weighting='sum', {events.name} has no weights",
            fix="name their column with weight=..., or use weighting='count'",
        )
    if asked != "auto":
        return asked
    if events.weight is None:
        return "count"
    if events.label is not None and not is_named:
        # A class often is the weight's sign or size: summed, edges would tell what is asked.
        notes.append("Events have classes: edges are weighted by their number of events.")
        return "count"
    if (least := float(events.weight.min(initial=0))) < 0 and is_named:
        raise DataError(
            "Edges can't be weighted by numbers below 0.",
            seen=f"{least:g} in column {options.weight!r}",
            fix="name another column as the weight, or give this one as --edge-attr",
        )
    if least < 0:
        notes.append("Some weights are negative: edges are weighted by their number of events.")
        return "count"
    return "sum"


def _edges(
    events: Events, windows: Windows, weighting: Weighting, symmetric: bool, notes: list[str]
) -> tuple[Array, Array, Array]:
    """Return key, window and float64 weight of each edge of each window, sorted in that order."""
    src, dst = events.src[windows.event], events.dst[windows.event]
    key, window = dst * events.num_nodes + src, windows.window
    weight = np.ones(len(key))
    if weighting == "sum" and events.weight is not None:
        weight = events.weight[windows.event].astype(np.float64)
    merged = _merged(key, window, weight)
    repeated = len(key) - len(merged[0])
    if repeated:
        again = counted(repeated, "event")
        notes.append(f"{again} with the ends of another in their window: merged into one edge.")
    if not symmetric:
        return merged
    key, window, weight = merged
    dst, src = np.divmod(key, events.num_nodes)
    both = np.concatenate([key, src * events.num_nodes + dst])
    return _merged(both, np.tile(window, 2), np.tile(weight, 2) / 2)


def _merged(key: Array, window: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return the entries sorted by key and window, the weights of equal ones summed."""
    order = _order(key, window)
    key, window, weight = key[order], window[order], weight[order]
    first = np.ones(len(key), bool)
    first[1:] = (key[1:] != key[:-1]) | (window[1:] != window[:-1])
    sums = np.add.reduceat(weight, np.flatnonzero(first)) if len(key) else weight
    return key[first], window[first], sums


def _order(key: Array, window: Array) -> Array:
    """Return the stable order by key and window; as one number where both fit, in half the time."""
    count = int(window.max(initial=0)) + 1
    if int(key.max(initial=0)) < np.iinfo(np.int64).max // count:
        return np.argsort(key * count + window, kind="stable")
    return np.lexsort((window, key))


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
        # All entries of one edge, start to stop - 1, one per window that has it.
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
            # At that time one entry may die and one be born; the edge then weighs their sum, added
            # up anew, since taking away what died would leave rounding behind.
            if alive_before and death <= now:
                lo += 1
            if hi < stop and window[hi] == now:
                hi += 1
            total = 0.0
            for e in range(lo, hi):
                total += weight[e]
            after = np.float32(total)
            alive = hi > lo
            # An edge that dies and is born at once has not changed, unless its weight has.
            if alive_before != alive or (alive and after != before):
                time[made], entry[made], value[made] = now, start, after
                kind[made] = _REMOVED if not alive else (_CHANGED if alive_before else _ADDED)
                made += 1
            before = after
        start = stop
    return made

"""A dynamic graph: T snapshots over one node set, kept as a base and deltas.

T snapshots, N nodes, M events, F features, C channels of a signal.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np

from siafu.errors import DataError
from siafu.graph.array_stream import Array
from siafu.graph.nodes import Ids
from siafu.graph.snapshot import Delta, Snapshot, replay, snapshot_from_keys

_ROWS_AT_ONCE = 1 << 16

DegreeScale = Literal["log", "standard", "plain"]
"""How degrees become features: log(1 + d), zero mean and unit deviation, or as they are."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Deltas:
    """The deltas of all steps end to end; delta t leads from snapshot t to t + 1."""

    removed: Array
    removed_starts: Array
    """int64 [T]: where each delta's removed edges start; so for the others."""
    added: Array
    added_weight: Array
    added_starts: Array
    changed: Array
    changed_weight: Array
    changed_starts: Array

    def __len__(self) -> int:
        return len(self.removed_starts) - 1

    def __getitem__(self, step: int) -> Delta:
        gone = slice(*self.removed_starts[step : step + 2])
        born = slice(*self.added_starts[step : step + 2])
        other = slice(*self.changed_starts[step : step + 2])
        return Delta(
            np.asarray(self.removed[gone]),
            np.asarray(self.added[born]),
            np.asarray(self.added_weight[born]),
            np.asarray(self.changed[other]),
            np.asarray(self.changed_weight[other]),
        )

    @property
    def num_changes(self) -> int:
        """Edges that all deltas name together."""
        return len(self.removed) + len(self.added) + len(self.changed)


def join_deltas(deltas: list[Delta]) -> Deltas:
    """Return the deltas end to end."""

    def joined(name: str, dtype: type) -> Array:
        parts = [getattr(delta, name) for delta in deltas]
        return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)

    def starts(name: str) -> Array:
        return np.cumsum([0, *(len(getattr(delta, name)) for delta in deltas)], dtype=np.int64)

    return Deltas(
        removed=joined("removed", np.int64),
        removed_starts=starts("removed"),
        added=joined("added", np.int64),
        added_weight=joined("added_weight", np.float32),
        added_starts=starts("added"),
        changed=joined("changed", np.int64),
        changed_weight=joined("changed_weight", np.float32),
        changed_starts=starts("changed"),
    )


_FAR = 2**62
"""Beyond any time that is a whole number."""


class EdgeEvents(NamedTuple):
    """Events of one window in the order of their times: what a model is asked about."""

    src: Array
    dst: Array
    label: Array | None
    """int64, -1 where an event has none."""
    weight: Array
    """float32; 1 where the data has no weights."""
    time: Array | None = None
    """In the data's own numbers (dates: seconds of 1970); None where it is not kept."""
    attr: Array | None = None
    """float32 [E, F], features of the events; None where the data has none."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False, eq=False)
class DynamicGraph:
    """Snapshots over one node set with what training needs of nodes and events."""

    name: str
    ids: Ids
    """The user's id of each row."""
    times: Array
    """float64 [T]: when each window starts, in the data's own numbers (dates: seconds of 1970)."""
    base: Snapshot
    """Snapshot 0."""
    deltas: Deltas
    """T - 1 of them."""
    event_starts: Array
    """int64 [T + 1]: where the events of each window start."""
    event_src: Array
    event_dst: Array
    event_label: Array | None = None
    """int64 [M], -1 for no label."""
    event_weight: Array | None = None
    """float32 [M]."""
    event_time: Array | None = None
    """float64 [M]: when each event happened, as `times` has it, or int64 where the data's times are
    whole numbers; None in older folders."""
    event_attr: Array | None = None
    """float32 [M, F]: features of the events."""
    num_edge_classes: int = 0
    edge_class_names: tuple[str | int, ...] = ()
    x: Array | None = None
    """float32 [N, F], or [T, N, F] where features change."""
    feature_names: tuple[str, ...] = ()
    """The columns of `x` by name; empty where the data names none."""
    event_attr_names: tuple[str, ...] = ()
    """The columns of `event_attr` by name; empty where the data names none."""
    y: Array | None = None
    """int64 [N], or [T, N] where labels change; -1 for no label."""
    num_classes: int = 0
    class_names: tuple[str | int, ...] = ()
    signal: Array | None = None
    """float32 [T, N, C]: what is forecast."""
    symmetric: bool = False
    """Whether each snapshot equals its transpose, so that backward needs no second index."""
    dates: bool = False
    """Whether times were dates."""
    overlapping: bool = False
    """Whether an event lies in more than one window."""
    part_of: Array | None = None
    """int32 [N]: the group of each node, where ranks share snapshots."""

    def __repr__(self) -> str:
        return (
            f"DynamicGraph(name={self.name!r}, nodes={self.num_nodes}, "
            f"snapshots={self.num_snapshots}, events={self.num_events}, "
            f"changes={self.deltas.num_changes})"
        )

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return self.base.num_nodes

    @property
    def num_snapshots(self) -> int:
        """T."""
        return len(self.times)

    @property
    def num_events(self) -> int:
        """Events of all windows; one in two overlapping windows counts twice."""
        return len(self.event_src)

    @property
    def num_features(self) -> int:
        """Width of `features`: the data's own, or 2 for in- and out-degree."""
        return 2 if self.x is None else int(self.x.shape[-1])

    @property
    def num_event_features(self) -> int:
        """Features of an event."""
        return 0 if self.event_attr is None else int(self.event_attr.shape[1])

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t, exact. For several in a row `iterate` does far less work."""
        self._check_time(t)
        if t == 0:
            return self.base
        return self._gathered(t)

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[Snapshot]:
        """Yield the snapshots from `start` to before `stop`, each from the one before it."""
        stop = self.num_snapshots if stop is None else stop
        if start >= stop:
            return
        self._check_time(stop - 1)
        yield from replay(self.snapshot(start), (self.deltas[t] for t in range(start, stop - 1)))

    def features(
        self, t: int, *, snapshot: Snapshot | None = None, degrees: DegreeScale = "log"
    ) -> Array:
        """Return float32 [N, F] of step t: the data's own, else in- and out-degree.

        `snapshot` is snapshot t where the caller has it; without it degrees need it made.
        """
        self._check_time(t)
        if self.x is None:
            return degree_features(snapshot or self.snapshot(t), degrees)
        return np.asarray(self.x[t] if self.x.ndim == 3 else self.x)

    def labels(self, t: int) -> Array | None:
        """Return int64 [N], the labels of step t, or None without any."""
        if self.y is None:
            return None
        return np.asarray(self.y[t] if self.y.ndim == 2 else self.y)

    def edge_events(self, t: int) -> EdgeEvents:
        """Return the events of window t themselves, unsmoothed and one direction each."""
        self._check_time(t)
        return self._events_of(slice(*self.event_starts[t : t + 2]))

    def events_between(self, start: float, stop: float) -> EdgeEvents:
        """Return the events from time `start` to before `stop`, whatever windows they lie in.

        Times are the data's own numbers (dates: seconds of 1970).
        """
        if self.event_time is None or self.overlapping:
            what = "an event is in several windows" if self.overlapping else "times are not kept"
            raise DataError(
                "The events can't be read by time.",
                seen=f"{what} in {self.name}",
                fix="make the graph anew from its events, with a stride as long as the window",
            )
        ends = [start, max(start, stop)]
        if self.event_time.dtype.kind == "i":  # else all of them would become floats
            ends = [math.ceil(min(max(end, -_FAR), _FAR)) for end in ends]
        low, high = np.searchsorted(self.event_time, np.array(ends, self.event_time.dtype))
        return self._events_of(slice(low, high))

    def _events_of(self, span: slice) -> EdgeEvents:
        src, dst = np.asarray(self.event_src[span]), np.asarray(self.event_dst[span])
        label = None if self.event_label is None else np.asarray(self.event_label[span])
        weight = self.event_weight
        ones = np.ones(len(src), np.float32)
        time = None if self.event_time is None else np.asarray(self.event_time[span])
        weights = ones if weight is None else np.asarray(weight[span])
        attr = None if self.event_attr is None else np.asarray(self.event_attr[span])
        return EdgeEvents(src, dst, label, weights, time, attr)

    def edges_per_snapshot(self) -> Array:
        """Return int64 [T]: the number of edges of each snapshot, without making any."""
        growth = np.diff(self.deltas.added_starts) - np.diff(self.deltas.removed_starts)
        return self.base.num_edges + np.concatenate([[0], np.cumsum(growth)]).astype(np.int64)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield every array but the ids by the name it has in a store."""
        for name, array in zip(("indptr", "src", "weight"), self.base.arrays(), strict=True):
            yield f"base_{name}", array
        for part in fields(self.deltas):
            yield part.name, getattr(self.deltas, part.name)
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def _check_time(self, t: int) -> None:
        if not 0 <= t < self.num_snapshots:
            raise DataError(
                "There is no such snapshot.",
                seen=f"snapshot {t}",
                fix=f"snapshots of {self.name} are numbered 0 to {self.num_snapshots - 1}",
            )

    def _gathered(self, t: int) -> Snapshot:
        """Return snapshot t in one pass: of all that was said of an edge, the last word counts."""
        deltas, base = self.deltas, self.base
        spans = [
            (deltas.removed, None, deltas.removed_starts),
            (deltas.added, deltas.added_weight, deltas.added_starts),
            (deltas.changed, deltas.changed_weight, deltas.changed_starts),
        ]
        keys, weights, steps = [base.keys()], [base.weight], [np.zeros(base.num_edges, np.int64)]
        for key, weight, starts in spans:
            count = int(starts[t])
            keys.append(np.asarray(key[:count]))
            weights.append(
                np.full(count, np.nan, np.float32) if weight is None else np.asarray(weight[:count])
            )
            steps.append(np.repeat(np.arange(1, t + 1), np.diff(starts[: t + 1])))
        key_E, weight_E = np.concatenate(keys), np.concatenate(weights)
        order = np.lexsort((np.concatenate(steps), key_E))
        key_E, weight_E = key_E[order], weight_E[order]
        last = np.append(key_E[1:] != key_E[:-1], True) & ~np.isnan(weight_E)
        return snapshot_from_keys(key_E[last], weight_E[last], self.num_nodes)


_ARRAYS = (
    "times",
    "event_starts",
    "event_src",
    "event_dst",
    "event_label",
    "event_weight",
    "event_time",
    "event_attr",
    "x",
    "y",
    "signal",
    "part_of",
)


def degree_features(snapshot: Snapshot, scale: DegreeScale = "log") -> Array:
    """Return float32 [N, 2]: weighted in- and out-degree of each node."""
    num_nodes = snapshot.num_nodes
    weight = snapshot.weight.astype(np.float64)
    incoming = np.bincount(snapshot.dst(), weight, num_nodes)
    outgoing = np.bincount(snapshot.src, weight, num_nodes)
    degrees = np.stack([incoming, outgoing], axis=1)
    if scale == "log":
        degrees = np.sign(degrees) * np.log1p(np.abs(degrees))
    elif scale == "standard":
        spread = degrees.std(axis=0)
        degrees = (degrees - degrees.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return degrees.astype(np.float32)


def fingerprint_dynamic(graph: DynamicGraph) -> str:
    """Return a hash of all contents; runs and checkpoints of one graph carry the same.

    How the graph is shared out does not count.
    """
    digest = hashlib.sha256(f"{graph.num_classes} {graph.num_edge_classes}".encode())
    ids = [(name, getattr(graph.ids, name)) for name in graph.ids.__slots__]
    for name, array in [*ids, *graph.arrays()]:
        if name == "part_of":
            continue
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        for start in range(0, len(array), _ROWS_AT_ONCE):
            digest.update(np.ascontiguousarray(array[start : start + _ROWS_AT_ONCE]).data)
    return digest.hexdigest()

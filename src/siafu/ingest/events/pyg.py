"""Dynamic graphs of PyG and PyG Temporal, recognised by attributes; neither is ever imported.

T snapshots, N nodes, M events, F features.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, IntegerIds
from siafu.ingest.arrays import MOST_CLASSES, as_int64, check_array, check_num_nodes
from siafu.ingest.events.events import EventOptions, Events, NotedEvents
from siafu.ingest.formats.pyg import as_numpy, edge_index_of
from siafu.record import counted

_WHERE = "PyG data"


def is_pyg_dynamic(data: Any) -> bool:
    """Return whether the object is a `TemporalData`, a list of `Data`, or a temporal signal."""
    return _is_temporal_data(data) or _is_data_list(data) or _is_signal(data)


def events_from_pyg(data: Any, options: EventOptions) -> NotedEvents:
    """Return the events of such an object and sentences for the user."""
    if _is_temporal_data(data):
        return _from_temporal_data(data, options)
    return _from_list(data) if _is_data_list(data) else _from_signal(data)


def _is_temporal_data(data: Any) -> bool:
    return all(getattr(data, name, None) is not None for name in ("src", "dst", "t"))


def _is_data_list(data: Any) -> bool:
    is_list = isinstance(data, list | tuple) and len(data) > 0
    return is_list and all(hasattr(step, "edge_index") for step in data)


def _is_signal(data: Any) -> bool:
    has_edges = hasattr(data, "edge_indices") or hasattr(data, "edge_index")
    return has_edges and hasattr(data, "features") and hasattr(data, "targets")


def _from_temporal_data(data: Any, options: EventOptions) -> NotedEvents:
    time, y = as_numpy(data.t), getattr(data, "y", None)
    ends = {"src": as_numpy(data.src), "dst": as_numpy(data.dst)}
    for name, array in (*ends.items(), ("t", time)):
        check_array(_WHERE, name, array, kinds="iuf" if name == "t" else "iu")
    src, dst = (as_int64(_WHERE, name, array) for name, array in ends.items())
    if not len(src) == len(dst) == len(time):
        raise DataError(
            "src, dst and t differ in length.",
            seen=f"{len(src)}, {len(dst)} and {len(time)} entries",
            fix="give each event one of each",
        )
    num_nodes = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    check_num_nodes(_WHERE, num_nodes)
    label = None if y is None else _classes(as_numpy(y), "y")
    events = Events(
        name="pyg",
        ids=IntegerIds(np.arange(num_nodes)),
        src=src,
        dst=dst,
        time=time.astype(np.float64) if time.dtype.kind == "f" else as_int64(_WHERE, "t", time),
        ticks_per_second=options.ticks_per_second,
        label=label,
        num_edge_classes=0 if label is None else int(label.max(initial=-1)) + 1,
        attr=_messages(data),
    )
    return events, []


def _messages(data: Any) -> Array | None:
    """Return the messages of events as their features."""
    msg = getattr(data, "msg", None)
    return None if msg is None else _wide(as_numpy(msg), "msg")


def _wide(values: Array, name: str) -> Array:
    """Return float32 [E, F]."""
    check_array(_WHERE, name, values, kinds="iufb", ndims=(1, 2))
    return values.reshape(len(values), -1).astype(np.float32)


def _from_list(steps: Sequence[Any]) -> NotedEvents:
    edges = [edge_index_of(step) for step in steps]
    weights, attr = _of_edges(steps, edges, "edge_weight"), _of_edges(steps, edges, "edge_attr")
    if weights is None and attr is not None and attr[0].shape[1] == 1:
        weights, attr = attr, None
    x = _stacked([getattr(step, "x", None) for step in steps], "x")
    y = _stacked([getattr(step, "y", None) for step in steps], "y")
    num_nodes = max(_num_nodes(step, edge) for step, edge in zip(steps, edges, strict=True))
    given: Sequence[Array | None] = [None] * len(edges) if weights is None else weights
    events = _from_steps(edges, given, num_nodes, x=x, y=y)
    return replace(events, attr=None if attr is None else np.concatenate(attr)), []


def _from_signal(data: Any) -> NotedEvents:
    """Return a PyG Temporal signal: its target at t is what is forecast for t + 1."""
    features = [as_numpy(step) for step in data.features]
    targets = [as_numpy(step) for step in data.targets]
    fixed = not hasattr(data, "edge_indices")
    edges = [as_numpy(e) for e in ([data.edge_index] if fixed else data.edge_indices)]
    given = [data.edge_weight] if fixed else data.edge_weights
    weights = [None if weight is None else as_numpy(weight) for weight in given]
    x_TNF = np.stack(features).astype(np.float32)
    target_TNC = np.stack(targets).astype(np.float32).reshape(*x_TNF.shape[:2], -1)
    width = target_TNC.shape[2]
    # The latest lags stand in for the value at the first step, which no target tells.
    signal = np.concatenate([x_TNF[:1, :, -width:], target_TNC[:-1]])
    events = _from_steps(edges, weights, x_TNF.shape[1], x=x_TNF, signal=signal)
    events = replace(events, fixed=fixed)
    note = "The target of a step is the signal of the next one; that of the last step is left out."
    return events, [note]


def _from_steps(
    edges: list[Array],
    weights: Sequence[Array | None],
    num_nodes: int,
    *,
    x: Array | None = None,
    y: Array | None = None,
    signal: Array | None = None,
) -> Events:
    time = np.repeat(np.arange(len(edges)), [edge.shape[1] for edge in edges])
    src, dst = np.concatenate(edges, axis=1).astype(np.int64)
    weighted = all(weight is not None for weight in weights)
    weight = np.concatenate([w for w in weights if w is not None]) if weighted else None
    if y is not None and y.dtype.kind == "f" and np.any(y != np.floor(y)):
        signal = y.astype(np.float32).reshape(len(y), num_nodes, -1)
        y = None
    y = None if y is None else _classes(y.reshape(len(y), num_nodes), "y")
    return Events(
        name="pyg",
        ids=IntegerIds(np.arange(num_nodes)),
        src=src,
        dst=dst,
        time=time,
        weight=None if weight is None else weight.astype(np.float32).reshape(-1),
        x=None if x is None else x.astype(np.float32),
        y=y,
        num_classes=0 if y is None else int(y.max(initial=-1)) + 1,
        signal=signal,
        num_steps=len(edges) if signal is None else len(signal),
    )


def _of_edges(steps: Sequence[Any], edges: list[Array], name: str) -> list[Array] | None:
    """Return float32 [E, F] of each snapshot's edges, or None where no snapshot has any."""
    found = [getattr(step, name, None) for step in steps]
    counts = [edge.shape[1] for edge in edges]
    for number, (values, count) in enumerate(zip(found, counts, strict=True)):
        if values is not None and len(values) != count:
            raise DataError(
                f"{name} does not fit the edges.",
                seen=f"{len(values)} rows for {count} edges in snapshot {number}",
                fix="give one row per edge",
            )
    given = zip(found, counts, strict=True)
    # A snapshot without edges has nothing to tell.
    told = [None if each is None else _wide(as_numpy(each), name) for each, count in given if count]
    if all(each is None for each in told):
        return None
    shapes = {"none" if each is None else counted(each.shape[1], "column") for each in told}
    is_weight = name == "edge_weight"
    if len(shapes) > 1 or (is_weight and shapes != {"1 column"}):
        raise DataError(
            f"The snapshots differ in the {'weights' if is_weight else 'features'} of their edges."
            if len(shapes) > 1
            else "An edge has several weights.",
            seen=f"{name}: {', '.join(sorted(shapes))}",
            fix="give the edges of every snapshot one weight each, features as edge_attr"
            if is_weight
            else "give the edges of every snapshot the same columns",
        )
    rows = iter([each for each in told if each is not None])
    none = np.zeros((0, next(each.shape[1] for each in told if each is not None)), np.float32)
    return [next(rows) if count else none for count in counts]


def _num_nodes(step: Any, edge: Array) -> int:
    x = getattr(step, "x", None)
    if x is not None:
        return int(x.shape[0])
    return int(getattr(step, "num_nodes", None) or edge.max(initial=-1) + 1)


def _stacked(values: list[Any], name: str) -> Array | None:
    """Return [T, ...] of one array a step, or None where no step has one."""
    if all(value is None for value in values):
        return None
    arrays = [None if value is None else as_numpy(value) for value in values]
    shapes = {None if array is None else array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"The snapshots differ in the shape of {name}.",
            seen=", ".join(sorted(map(str, shapes))),
            fix="give every snapshot all nodes, in the same order",
        )
    return np.stack([array for array in arrays if array is not None])


def _classes(labels: Array, name: str) -> Array:
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
    if labels.dtype.kind not in "iufb" or np.any(
        (labels != np.floor(labels)) | (np.abs(labels) > MOST_CLASSES)
    ):
        raise DataError(
            "The labels are not classes.",
            seen=f"{name} is {labels.dtype} {labels.shape}",
            fix="give whole numbers; -1 marks what has no label",
        )
    return labels.astype(np.int64)

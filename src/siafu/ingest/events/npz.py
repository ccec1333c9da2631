"""Events kept as one `.npz` file of plain arrays; nothing in it is ever unpickled.

src, dst [M] or edge_index [2, M], and t [M] or node_time [N] (an edge is as old as its source);
optional: weight, edge_label [M], edge_label_names, num_nodes, node_id [N], y [N] or [T, N],
num_classes, class_names, x [N, F] or the CSR x_indptr, x_indices, x_data, x_shape, signal [T, N]
or [T, N, C], node_feat [T, N, F]. With a signal t is the row of the signal; where all events have
one t, the graph is the same at every step.
"""

from pathlib import Path

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, Ids, IntegerIds, SparseFeatures
from siafu.ingest.arrays import (
    MOST_CLASSES,
    as_int64,
    check_array,
    check_finite,
    check_num_classes,
    check_num_nodes,
    given_ids,
    whole_number,
)
from siafu.ingest.events.events import EventOptions, Events
from siafu.ingest.formats.npz import Arrays, features_of_arrays, read_arrays

_TIMES = ("t", "time", "timestamp")
_LABELS = ("edge_label", "label")
_NAMES_OF = {"num_edge_classes": "edge_label_names", "num_classes": "class_names"}


def events_from_npz(path: Path | str, options: EventOptions) -> Events:
    """Return the events in the file."""
    path = Path(path)
    arrays = read_arrays(path)
    src, dst = _ends(path, arrays)
    time = _times(path, arrays, src, options)
    signal = _signal(path, arrays)
    label = _classes(path, "edge_label", _first(arrays, _named(options.label, _LABELS)), (1,))
    weight = _floats(
        path, "weight", _first(arrays, _named(options.weight, ("weight", "edge_weight"))), (1,)
    )
    attr = _floats(path, "edge_attr", _first(arrays, ("edge_attr", "msg")), (1, 2))
    y = _classes(path, "y", arrays.get("y"), (1, 2))
    for name, column in (("t", time), ("weight", weight), ("edge_label", label)):
        _check_rows(path, name, column, len(src))
    return Events(
        name=path.stem,
        ids=_ids(path, arrays, src, dst),
        src=src,
        dst=dst,
        time=time,
        ticks_per_second=options.ticks_per_second,
        weight=weight,
        label=label,
        attr=attr[:, None] if attr is not None and attr.ndim == 1 else attr,
        num_edge_classes=_count(path, arrays, "num_edge_classes", label),
        edge_class_names=_texts(path, arrays, "edge_label_names"),
        x=_features(path, arrays),
        y=y,
        num_classes=_count(path, arrays, "num_classes", y),
        class_names=_texts(path, arrays, "class_names"),
        signal=signal,
        num_steps=None if signal is None else len(signal),
        fixed=signal is not None and len(signal) > 1 and not np.any(time != time[:1]),
    )


def _named(asked: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    return usual if asked is None else (asked,)


def _first(arrays: Arrays, names: tuple[str, ...]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _ends(path: Path, arrays: Arrays) -> tuple[Array, Array]:
    if {"src", "dst"} <= arrays.keys():
        src, dst = arrays["src"], arrays["dst"]
    elif "edge_index" in arrays and arrays["edge_index"].ndim == 2 == len(arrays["edge_index"]):
        src, dst = arrays["edge_index"]
    else:
        raise DataError(
            "The .npz file has no events.",
            seen=f"{path} with {', '.join(sorted(arrays)) or 'nothing'}",
            fix="save src, dst and t, arrays of one entry an event",
        )
    whole = src.dtype.kind in "iu" and dst.dtype.kind in "iu"
    if not whole or src.shape != dst.shape or src.ndim != 1:
        raise DataError(
            "src and dst must be whole numbers, one an event.",
            seen=f"{path}: src is {src.dtype} {src.shape}, dst {dst.dtype} {dst.shape}",
            fix="save two integer arrays of shape [M]",
        )
    return as_int64(path, "src", src), as_int64(path, "dst", dst)


def _times(path: Path, arrays: Arrays, src: Array, options: EventOptions) -> Array:
    time = _first(arrays, _named(options.time, _TIMES))
    if time is None and "node_time" in arrays:
        time = _times_of_sources(path, arrays["node_time"], src)
    if time is None:
        raise DataError(
            "The events have no times.",
            seen=f"{path} with {', '.join(sorted(arrays))}",
            fix="save them as t, one number an event",
        )
    if time.dtype.kind not in "iuf":
        raise DataError(
            "The times are not numbers.",
            seen=f"{path}: {time.dtype}",
            fix="save t as numbers, such as seconds of 1970",
        )
    return time.astype(np.float64) if time.dtype.kind == "f" else as_int64(path, "t", time)


def _times_of_sources(path: Path, node_time: Array, src: Array) -> Array:
    check_array(path, "node_time", node_time, kinds="iuf")
    low, high = int(src.min(initial=0)), int(src.max(initial=-1))
    if low < 0 or high >= len(node_time):
        raise DataError(
            "An event starts at a node without a time.",
            seen=f"{path}: sources from {low} to {high}, node_time has {len(node_time)} entries",
            fix="save one time per node",
        )
    return node_time[src]


def _check_rows(path: Path, name: str, column: Array | None, count: int) -> None:
    if column is not None and column.shape != (count,):
        raise DataError(
            f"{name} does not fit the events.",
            seen=f"{path}: {name} has shape {column.shape}, there are {count} events",
            fix="save one entry an event",
        )


def _ids(path: Path, arrays: Arrays, src: Array, dst: Array) -> Ids:
    seen = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    node_id = arrays.get("node_id")
    known = None
    if "num_nodes" in arrays:
        known = whole_number(path, "num_nodes", arrays["num_nodes"], lowest=1)
    if node_id is not None:
        check_array(path, "node_id", node_id, kinds="iuU")
    num_nodes = len(node_id) if known is None and node_id is not None else known or seen
    check_num_nodes(path, num_nodes)
    if node_id is None:
        return IntegerIds(np.arange(num_nodes))
    return given_ids(path, "node_id", node_id, num_nodes)


def _features(path: Path, arrays: Arrays) -> Array | None:
    if "node_feat" in arrays:
        return _floats(path, "node_feat", arrays["node_feat"], (3,))
    x = features_of_arrays(path, arrays)
    return x.dense() if isinstance(x, SparseFeatures) else x


def _signal(path: Path, arrays: Arrays) -> Array | None:
    signal = _floats(path, "signal", arrays.get("signal"), (2, 3))
    return signal[:, :, None] if signal is not None and signal.ndim == 2 else signal


def _floats(path: Path, name: str, values: Array | None, ndims: tuple[int, ...]) -> Array | None:
    """Return float32 numbers, none of them NaN or infinite."""
    if values is None:
        return None
    check_array(path, name, values, ndims=ndims)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    check_finite(path, name, values)
    return values


def _classes(path: Path, name: str, labels: Array | None, ndims: tuple[int, ...]) -> Array | None:
    """Return int64 classes; numbers with a fraction are none."""
    if labels is None:
        return None
    check_array(path, name, labels, ndims=ndims)
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        if np.any((labels != np.floor(labels)) | (np.abs(labels) > MOST_CLASSES)):
            raise DataError(
                f"{name} holds numbers that are no classes.",
                seen=f"{path}: {name} is {labels.dtype}",
                fix="save whole numbers from 0; -1 marks what has no class",
            )
    return as_int64(path, name, labels)


def _count(path: Path, arrays: Arrays, key: str, labels: Array | None) -> int:
    if labels is None:
        return 0
    stated = whole_number(path, key, arrays[key]) if key in arrays else 0
    named = len(_texts(path, arrays, _NAMES_OF[key]))
    count = max(stated or named, int(labels.max(initial=-1)) + 1)
    check_num_classes(path, count)
    return count


def _texts(path: Path, arrays: Arrays, name: str) -> tuple[str | int, ...]:
    if name not in arrays:
        return ()
    check_array(path, name, arrays[name], kinds="iuU")
    return tuple(arrays[name].tolist())

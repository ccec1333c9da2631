"""Events kept as one `.npz` file of plain arrays; nothing in it is ever unpickled.

src, dst [M] or edge_index [2, M], and t [M] or node_time [N] (an edge is as old as its source);
optional: weight, edge_label [M], edge_label_names, num_nodes, node_id [N], y [N] or [T, N],
num_classes, class_names, x [N, F] or the CSR x_indptr, x_indices, x_data, x_shape, signal [T, N]
or [T, N, C], node_feat [T, N, F]. With a signal t is the row of the signal; where all events have
one t, the graph is the same at every step.
"""

import zipfile
from pathlib import Path

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, Ids, IntegerIds, SparseFeatures, TextIds
from siafu.ingest.events import EventOptions, Events
from siafu.ingest.npz import Arrays, features_of_arrays, read_arrays

_TIMES = ("t", "time", "timestamp")
_LABELS = ("edge_label", "label")


def events_from_npz(path: Path | str, options: EventOptions) -> Events:
    """Return the events in the file."""
    path = Path(path)
    arrays = read_arrays(path)
    src, dst = _ends(path, arrays)
    time = _times(path, arrays, src, options)
    signal = _signal(arrays)
    label = _first(arrays, _named(options.label, _LABELS))
    weight = _first(arrays, _named(options.weight, ("weight", "edge_weight")))
    y = arrays.get("y")
    for name, column in (("t", time), ("weight", weight), ("edge_label", label)):
        _check_rows(path, name, column, len(src))
    label = None if label is None else label.astype(np.int64)
    return Events(
        name=path.stem,
        ids=_ids(path, arrays, src, dst),
        src=src,
        dst=dst,
        time=time,
        ticks_per_second=options.ticks_per_second,
        weight=None if weight is None else weight.astype(np.float32),
        label=label,
        num_edge_classes=_count(arrays, "num_edge_classes", label, "edge_label_names"),
        edge_class_names=_texts(arrays, "edge_label_names"),
        x=_features(path, arrays),
        y=None if y is None else y.astype(np.int64),
        num_classes=_count(arrays, "num_classes", y, "class_names"),
        class_names=_texts(arrays, "class_names"),
        signal=signal,
        num_steps=None if signal is None else len(signal),
        fixed=signal is not None and len(signal) > 1 and not np.any(time != time[:1]),
    )


def array_names(path: Path) -> set[str]:
    """Return the names of the arrays in the file, none of which is read; nothing if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def _named(asked: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    return usual if asked is None else (asked,)


def _first(arrays: Arrays, names: tuple[str, ...]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _ends(path: Path, arrays: Arrays) -> tuple[Array, Array]:
    if {"src", "dst"} <= arrays.keys():
        src, dst = arrays["src"], arrays["dst"]
    elif "edge_index" in arrays and arrays["edge_index"].shape[:1] == (2,):
        src, dst = arrays["edge_index"]
    else:
        raise DataError(
            "The .npz file has no events.",
            seen=f"{path} with {', '.join(sorted(arrays)) or 'nothing'}",
            fix="save src, dst and t, arrays of one entry an event",
        )
    if src.dtype.kind not in "iu" or src.shape != dst.shape or src.ndim != 1:
        raise DataError(
            "src and dst must be whole numbers, one an event.",
            seen=f"{path}: src is {src.dtype} {src.shape}, dst {dst.dtype} {dst.shape}",
            fix="save two integer arrays of shape [M]",
        )
    return src.astype(np.int64), dst.astype(np.int64)


def _times(path: Path, arrays: Arrays, src: Array, options: EventOptions) -> Array:
    time = _first(arrays, _named(options.time, _TIMES))
    if time is None and "node_time" in arrays:
        time = arrays["node_time"][src]
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
    return time.astype(np.float64 if time.dtype.kind == "f" else np.int64)


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
    known = int(arrays["num_nodes"]) if "num_nodes" in arrays else None
    num_nodes = len(node_id) if known is None and node_id is not None else known or seen
    if node_id is None:
        return IntegerIds(np.arange(num_nodes))
    if len(node_id) != num_nodes:
        raise DataError(
            "node_id does not fit the vertices.",
            seen=f"{path}: {len(node_id)} ids, {num_nodes} vertices",
            fix="save one id a vertex",
        )
    if node_id.dtype.kind == "U":
        return TextIds.from_strings(node_id.tolist())
    return IntegerIds(node_id.astype(np.int64))


def _features(path: Path, arrays: Arrays) -> Array | None:
    if "node_feat" in arrays:
        return arrays["node_feat"].astype(np.float32)
    x = features_of_arrays(path, arrays)
    return x.dense() if isinstance(x, SparseFeatures) else x


def _signal(arrays: Arrays) -> Array | None:
    signal = arrays.get("signal")
    if signal is None:
        return None
    signal = signal.astype(np.float32)
    return signal[:, :, None] if signal.ndim == 2 else signal


def _count(arrays: Arrays, key: str, labels: Array | None, names: str) -> int:
    if labels is None:
        return 0
    stated = int(arrays[key]) if key in arrays else len(arrays.get(names, ()))
    return max(stated, int(labels.max(initial=-1)) + 1)


def _texts(arrays: Arrays, name: str) -> tuple[str | int, ...]:
    return tuple(arrays[name].tolist()) if name in arrays else ()

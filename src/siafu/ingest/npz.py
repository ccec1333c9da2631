"""Graphs kept as one `.npz` file of plain arrays; nothing in it is ever unpickled.

edge_index [2, E], y [N] (-1: no label) or [N, C], x [N, F] or the CSR x_indptr, x_indices, x_data,
x_shape; optional: train_mask, val_mask, test_mask, num_classes, symmetric, num_nodes, node_id,
edge_weight, edge_attr, edge_type [E] (numbers from 0, or text). N vertices, E edges, F features,
C classes.
"""

from pathlib import Path
from typing import Any

import numpy as np

from siafu.errors import DataError
from siafu.graph import (
    MASKS,
    Array,
    Features,
    Graph,
    IntegerIds,
    SparseFeatures,
    check_graph,
    graph_from_edges,
    number_edge_types,
)
from siafu.ingest.arrays import (
    as_int64,
    as_mask,
    check_array,
    check_finite,
    check_num_classes,
    check_num_nodes,
    given_ids,
    whole_number,
)
from siafu.ingest.masks import labelled_only
from siafu.ingest.npz_file import Arrays, read_arrays

_SPARSE_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")


def graph_from_npz(path: Path | str) -> tuple[Graph, list[str]]:
    """Return the graph in the file, and sentences on what a user should know about it."""
    path = Path(path)
    arrays = read_arrays(path)
    _check_layout(path, arrays)
    source, destination = as_int64(path, "edge_index", arrays["edge_index"])
    x, y = features_of_arrays(path, arrays), _labels(path, arrays)
    num_nodes = _num_nodes(path, arrays)
    _check_ends(path, arrays["edge_index"], num_nodes)
    check_num_nodes(path, num_nodes)
    masks, left_out = labelled_only(_masks(path, arrays), y)
    ids = np.arange(num_nodes) if "node_id" not in arrays else arrays["node_id"]
    graph = graph_from_edges(
        source,
        destination,
        num_nodes,
        name=path.stem,
        ids=given_ids(path, "node_id", ids, num_nodes) if "node_id" in arrays else IntegerIds(ids),
        x=x,
        y=y,
        num_classes=_num_classes(path, arrays, y),
        edge_weight=_edge_column(path, arrays, "edge_weight"),
        edge_attr=_edge_column(path, arrays, "edge_attr"),
        **_edge_types(arrays),
        **masks,
    )
    check_graph(graph)
    return graph, _notes(path, arrays, masks) + left_out


def _check_layout(path: Path, arrays: Arrays) -> None:
    keys = ", ".join(sorted(arrays)) or "nothing"
    if "edge_index" not in arrays and {"src", "dst", "t"} <= arrays.keys():
        raise DataError(
            "This is a dynamic graph (edges with times), not a static one.",
            seen=f"{path} with {keys}",
            fix="train a model of dynamic graphs on it (--model tm-gcn), or use a static file",
        )
    if "edge_index" not in arrays:
        raise DataError(
            "The .npz file has no edges.",
            seen=f"{path} with {keys}",
            fix="save the edges as edge_index, an integer array of shape [2, E]",
        )
    edges = arrays["edge_index"]
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise DataError(
            "edge_index has the wrong shape or type.",
            seen=f"{path}: {edges.dtype} {edges.shape}",
            fix="save integers of shape [2, E]: sources, then destinations",
        )
    some = [key for key in _SPARSE_KEYS if key in arrays]
    if some and len(some) < len(_SPARSE_KEYS):
        raise DataError(
            "The sparse features are incomplete.",
            seen=f"{path} has {', '.join(some)}",
            fix=f"save all of {', '.join(_SPARSE_KEYS)}",
        )


def _num_nodes(path: Path, arrays: Arrays) -> int:
    if "num_nodes" in arrays:
        return whole_number(path, "num_nodes", arrays["num_nodes"], lowest=1)
    for key in ("y", "x"):
        if key in arrays:
            return len(arrays[key])
    if "x_shape" in arrays:
        return int(arrays["x_shape"][0])
    if arrays["edge_index"].size == 0:
        raise DataError(
            "The graph has no vertices.", seen=str(path), fix="save x, y or num_nodes as well"
        )
    return int(arrays["edge_index"].max()) + 1


def _check_ends(path: Path, edges: Array, num_nodes: int) -> None:
    low, high = int(edges.min(initial=0)), int(edges.max(initial=-1))
    if low < 0 or high >= num_nodes:
        raise DataError(
            "An edge names a vertex that does not exist.",
            seen=f"{path}: edge_index runs from {low} to {high}, there are {num_nodes} vertices",
            fix="number the vertices 0 to N-1",
        )


def features_of_arrays(path: Path, arrays: Arrays) -> Features | None:
    """Return x as float32, dense or sparse, or None where the file has none."""
    if "x" in arrays:
        check_array(path, "x", arrays["x"], ndims=(2,))
        return _as_float(arrays["x"])
    if "x_shape" not in arrays:
        return None
    _check_sparse(path, arrays)
    width = int(arrays["x_shape"][1])
    index, indptr = arrays["x_indices"], arrays["x_indptr"].astype(np.int64, copy=False)
    in_range = index.size == 0 or (int(index.min()) >= 0 and int(index.max()) < width)
    sorted_rows = len(indptr) > 0 and indptr[0] == 0 and not np.any(np.diff(indptr) < 0)
    fits = sorted_rows and len(indptr) == int(arrays["x_shape"][0]) + 1
    if not (in_range and fits and indptr[-1] == len(index) == len(arrays["x_data"])):
        raise DataError(
            "The sparse features contradict themselves.",
            seen=f"{path}: {len(indptr)} row starts, {len(index)} columns for width {width}",
            fix="save the indptr, indices, data and shape of one CSR matrix",
        )
    return SparseFeatures(indptr, index, _as_float(arrays["x_data"]), width)


def _check_sparse(path: Path, arrays: Arrays) -> None:
    for name in ("x_indptr", "x_indices", "x_shape"):
        check_array(path, name, arrays[name], kinds="iu")
    check_array(path, "x_data", arrays["x_data"])
    if len(arrays["x_shape"]) != 2 or np.any(arrays["x_shape"] < 1):
        raise DataError(
            "x_shape is no shape of a matrix.",
            seen=f"{path}: {arrays['x_shape'].tolist()[:8]}",
            fix="save two numbers: nodes and features",
        )


def _labels(path: Path, arrays: Arrays) -> Array | None:
    y = arrays.get("y")
    if y is None:
        return None
    if y.ndim not in (1, 2) or y.dtype.kind not in "iub":
        raise DataError(
            "The labels have the wrong shape or type.",
            seen=f"{path}: y is {y.dtype} {y.shape}",
            fix="save integers of shape [N], or 0 and 1 of shape [N, C]",
        )
    if y.ndim == 2 and np.any((y != 0) & (y != 1)):
        raise DataError(
            "Several labels per node are marked by 0 and 1.",
            seen=f"{path}: y is {y.dtype} {y.shape}, with {int(y.min())} to {int(y.max())}",
            fix="save integers of shape [N], or 0 and 1 of shape [N, C]",
        )
    return y.astype(np.int64 if y.ndim == 1 else np.uint8, copy=False)


def _num_classes(path: Path, arrays: Arrays, y: Array | None) -> int:
    if y is None:
        return 0
    if y.ndim == 2:
        return int(y.shape[1])
    stated = arrays.get("num_classes")
    largest = int(y.max(initial=-1)) + 1
    num_classes = largest if stated is None else whole_number(path, "num_classes", stated, lowest=1)
    check_num_classes(path, num_classes)
    return num_classes


def _masks(path: Path, arrays: Arrays) -> Arrays:
    names = {name: f"{name}_mask" for name in MASKS}
    if any(key not in arrays for key in names.values()):
        return {}
    return {name: as_mask(path, key, arrays[key]) for name, key in names.items()}


def _edge_types(arrays: Arrays) -> dict[str, Any]:
    types = arrays.get("edge_type")
    if types is None or types.dtype.kind not in "US" or types.ndim != 1:
        return {"edge_type": types}
    numbers, names = number_edge_types(types)
    return {"edge_type": numbers, "edge_type_names": names}


def _edge_column(path: Path, arrays: Arrays, name: str) -> Array | None:
    """Return float32 [E] of weights, [E, K] of features."""
    if name not in arrays:
        return None
    column = arrays[name]
    check_array(path, name, column, ndims=(1,) if name == "edge_weight" else (1, 2))
    column = _as_float(column[:, None] if name == "edge_attr" and column.ndim == 1 else column)
    check_finite(path, name, column)
    return column


def _as_float(values: Array) -> Array:
    # Too large ones become infinite, which is found with the others.
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _notes(path: Path, arrays: Arrays, masks: Arrays) -> list[str]:
    notes = []
    if "symmetric" in arrays and not whole_number(path, "symmetric", arrays["symmetric"]):
        notes.append(
            f"{path.name} does not store both directions of each edge; "
            "ask for undirected edges where the model needs them."
        )
    some = [name for name in MASKS if f"{name}_mask" in arrays]
    if some and not masks:
        notes.append(f"{path.name} has only the mask {', '.join(some)}, so masks are ignored.")
    if "train_masks" in arrays and arrays["train_masks"].ndim and masks:
        notes.append(
            f"{path.name} has {len(arrays['train_masks'])} public splits; the first is used."
        )
    return notes

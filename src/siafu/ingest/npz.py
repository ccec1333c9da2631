"""Graphs kept as one `.npz` file of plain arrays; nothing in it is ever unpickled.

edge_index [2, E], y [N] (-1: no label) or [N, C], x [N, F] or the CSR x_indptr, x_indices, x_data,
x_shape; optional: train_mask, val_mask, test_mask, num_classes, symmetric, num_nodes, node_id,
edge_weight, edge_attr, edge_type [E] (numbers from 0, or text). N vertices, E edges, F features,
C classes.
"""

import zipfile
import zlib
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
from siafu.ingest.masks import labelled_only

Arrays = dict[str, Array]

_SPARSE_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")


def graph_from_npz(path: Path | str) -> tuple[Graph, list[str]]:
    """Return the graph in the file, and sentences on what a user should know about it."""
    path = Path(path)
    arrays = read_arrays(path)
    _check_layout(path, arrays)
    source, destination = np.asarray(arrays["edge_index"])
    num_nodes = _num_nodes(path, arrays)
    _check_ends(path, arrays["edge_index"], num_nodes)
    y = _labels(path, arrays)
    masks, left_out = labelled_only(_masks(arrays), y)
    graph = graph_from_edges(
        source,
        destination,
        num_nodes,
        name=path.stem,
        ids=IntegerIds(arrays.get("node_id", np.arange(num_nodes)).astype(np.int64)),
        x=features_of_arrays(path, arrays),
        y=y,
        num_classes=_num_classes(arrays, y),
        edge_weight=_as_float(arrays.get("edge_weight")),
        edge_attr=_as_float(arrays.get("edge_attr")),
        **_edge_types(arrays),
        **masks,
    )
    check_graph(graph)
    return graph, _notes(path, arrays, masks) + left_out


def read_arrays(path: Path) -> Arrays:
    """Return every array of the file; raise where it is damaged or holds Python objects."""
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise _damaged(path, "one array, not an archive of named arrays")
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise DataError("The file does not exist.", seen=str(path), fix="check the path") from error
    except ValueError as error:
        if "pickle" not in str(error):
            raise _damaged(path, str(error)) from error
        raise DataError(
            "The file holds Python objects, which are never unpickled.",
            seen=str(path),
            fix="save it again with plain arrays only (np.savez of numbers and text)",
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, seen: str) -> DataError:
    return DataError(
        "The .npz file can't be read.",
        seen=f"{path}: {seen or 'it ends too early'}",
        fix="copy or download it again; a file cut short looks like this",
    )


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
        return int(arrays["num_nodes"])
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
        return arrays["x"].astype(np.float32, copy=False)
    if "x_shape" not in arrays:
        return None
    width = int(arrays["x_shape"][1])
    index, indptr = arrays["x_indices"], arrays["x_indptr"].astype(np.int64, copy=False)
    in_range = index.size == 0 or (int(index.min()) >= 0 and int(index.max()) < width)
    sorted_rows = len(indptr) > 0 and indptr[0] == 0 and not np.any(np.diff(indptr) < 0)
    if not (in_range and sorted_rows and indptr[-1] == len(index) == len(arrays["x_data"])):
        raise DataError(
            "The sparse features contradict themselves.",
            seen=f"{path}: {len(indptr)} row starts, {len(index)} columns for width {width}",
            fix="save the indptr, indices, data and shape of one CSR matrix",
        )
    return SparseFeatures(indptr, index, arrays["x_data"].astype(np.float32, copy=False), width)


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
    return y.astype(np.int64 if y.ndim == 1 else np.uint8, copy=False)


def _num_classes(arrays: Arrays, y: Array | None) -> int:
    if y is None:
        return 0
    if y.ndim == 2:
        return int(y.shape[1])
    return int(arrays["num_classes"]) if "num_classes" in arrays else int(y.max(initial=-1)) + 1


def _masks(arrays: Arrays) -> Arrays:
    found = {name: arrays.get(f"{name}_mask") for name in MASKS}
    if any(mask is None for mask in found.values()):
        return {}
    return {name: mask.astype(bool) for name, mask in found.items() if mask is not None}


def _edge_types(arrays: Arrays) -> dict[str, Any]:
    types = arrays.get("edge_type")
    if types is None or types.dtype.kind not in "US" or types.ndim != 1:
        return {"edge_type": types}
    numbers, names = number_edge_types(types)
    return {"edge_type": numbers, "edge_type_names": names}


def _as_float(values: Array | None) -> Array | None:
    return None if values is None else values.astype(np.float32, copy=False)


def _notes(path: Path, arrays: Arrays, masks: Arrays) -> list[str]:
    notes = []
    if "symmetric" in arrays and not int(arrays["symmetric"]):
        notes.append(
            f"{path.name} does not store both directions of each edge; "
            "ask for undirected edges where the model needs them."
        )
    some = [name for name in MASKS if f"{name}_mask" in arrays]
    if some and not masks:
        notes.append(f"{path.name} has only the mask {', '.join(some)}, so masks are ignored.")
    if "train_masks" in arrays and masks:
        notes.append(
            f"{path.name} has {len(arrays['train_masks'])} public splits; the first is used."
        )
    return notes

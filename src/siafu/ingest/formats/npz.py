"""Graphs kept as one `.npz` file of plain arrays; nothing in it is ever unpickled.

edge_index [2, E], y [N] (-1: no label) or [N, C], x [N, F] or the CSR x_indptr, x_indices, x_data,
x_shape; optional: train_mask, val_mask, test_mask, num_classes, symmetric, num_nodes, node_id,
edge_weight, edge_attr, edge_type [E] (numbers from 0, or text). N nodes, E edges, F features,
C classes. Arrays are read only when their sizes are plausible.
"""

import math
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
    IntegerIds,
    SparseFeatures,
    check_graph,
    graph_from_edges,
    number_edge_types,
)
from siafu.ingest.arrays import (
    Noted,
    as_int64,
    as_mask,
    as_targets,
    check_array,
    check_finite,
    check_num_classes,
    check_num_nodes,
    given_ids,
    labelled_only,
    whole_number,
)
from siafu.memory import Budget

Arrays = dict[str, Array]

_SMALL_BYTES = 1 << 28
_MOST_PACKED = 100
"""How many times larger than its file an archive may be, unless it is small: a few MB of zeros
unpack to gigabytes."""
_FORMAT = np.lib.format
# What zipfile and numpy raise on bytes that are not what they should be.
_DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, OverflowError),
)
_SPARSE_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")


def read_arrays(path: Path, budget: Budget | None = None) -> Arrays:
    """Return every array of the file; raise where it is damaged_npz or holds Python objects."""
    if path.exists() and not path.is_file():
        raise damaged_npz(path, "no regular file")
    try:
        with path.open("rb") as file:
            if file.read(len(_FORMAT.MAGIC_PREFIX)) == _FORMAT.MAGIC_PREFIX:
                raise damaged_npz(path, "one array, not an archive of named arrays")
            with zipfile.ZipFile(file) as archive:
                _check_sizes(path, archive, budget or Budget())
                return {_name(entry): _read(path, archive, entry) for entry in archive.infolist()}
    except FileNotFoundError as error:
        raise DataError("The file does not exist.", seen=str(path), fix="check the path") from error
    except _DAMAGE as error:
        raise damaged_npz(path, str(error)) from error


def array_names(path: Path) -> set[str]:
    """Return the names of the arrays in the file, none of which is read; nothing if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {_name(entry) for entry in archive.infolist()}
    except _DAMAGE:
        return set()


def damaged_npz(path: Path, seen: str) -> DataError:
    """Return the error for a file that is no archive of arrays, or was one."""
    return DataError(
        "The .npz file can't be read.",
        seen=f"{path}: {seen or 'it ends too early'}",
        fix="copy or download it again; a file cut short looks like this",
    )


def _name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _check_sizes(path: Path, archive: zipfile.ZipFile, budget: Budget) -> None:
    """Raise where the arrays would not fit in memory, or unpack to far more than the file has."""
    names = [entry.filename for entry in archive.infolist()]
    if len(set(names)) < len(names):
        raise damaged_npz(path, "it has two arrays of one name")
    size, total = path.stat().st_size, sum(entry.file_size for entry in archive.infolist())
    free = budget.free
    if total > free:
        raise DataError(
            "The .npz file would not fit in memory.",
            seen=f"{path}: {total:,} bytes unpacked, {free:,} are available",
            fix=budget.fix(total, "use Parquet or CSV tables, which are read piece by piece"),
        )
    if total > max(_SMALL_BYTES, _MOST_PACKED * size):
        raise DataError(
            "The .npz file unpacks to far more than it holds.",
            seen=f"{path}: {size:,} bytes unpack to {total:,}",
            fix="if you trust it, save it unpacked: np.savez(NEW, **np.load(OLD))",
        )


def _read(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """Return one array, whose header must ask for just the bytes that are there."""
    with archive.open(entry) as file:
        is_first = _FORMAT.read_magic(file) == (1, 0)
        header = _FORMAT.read_array_header_1_0 if is_first else _FORMAT.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise DataError(
                "The file holds Python objects, which are never unpickled.",
                seen=f"{path}: {_name(entry)}",
                fix="save it again with plain arrays only (np.savez of numbers and text)",
            )
        claimed, held = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if claimed != held or any(length < 0 for length in shape):
            seen = f"{_name(entry)} is {dtype} {shape}, {claimed:,} bytes, and has {held:,}"
            raise damaged_npz(path, seen)
    with archive.open(entry) as file:
        array: Array = _FORMAT.read_array(file, allow_pickle=False)
    return array


def graph_from_npz(path: Path | str, budget: Budget | None = None) -> Noted:
    """Return the graph in the file, and sentences on what a user should know about it."""
    path = Path(path)
    arrays = read_arrays(path, budget)
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
            "The graph has no nodes.", seen=str(path), fix="save x, y or num_nodes as well"
        )
    return int(arrays["edge_index"].max()) + 1


def _check_ends(path: Path, edges: Array, num_nodes: int) -> None:
    low, high = int(edges.min(initial=0)), int(edges.max(initial=-1))
    if low < 0 or high >= num_nodes:
        raise DataError(
            "An edge names a node that does not exist.",
            seen=f"{path}: edge_index runs from {low} to {high}, there are {num_nodes} nodes",
            fix="number the nodes 0 to N-1",
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
    if y.ndim not in (1, 2) or y.dtype.kind not in "iubf":
        raise DataError(
            "The labels have the wrong shape or type.",
            seen=f"{path}: y is {y.dtype} {y.shape}",
            fix="save integers of shape [N], 0 and 1 of shape [N, C], or floats to be told",
        )
    if y.dtype.kind == "f":
        return as_targets(y)
    if y.ndim == 2 and np.any((y != 0) & (y != 1)):
        raise DataError(
            "Several labels per node are marked by 0 and 1.",
            seen=f"{path}: y is {y.dtype} {y.shape}, with {int(y.min())} to {int(y.max())}",
            fix="save integers of shape [N], or 0 and 1 of shape [N, C]",
        )
    return y.astype(np.int64 if y.ndim == 1 else np.uint8, copy=False)


def _num_classes(path: Path, arrays: Arrays, y: Array | None) -> int:
    if y is None or y.dtype.kind == "f":
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

"""A PyTorch Geometric `Data`, recognised by its attributes; that library is never imported.

Its `HeteroData` is read by `pyg_hetero`, with what is here for each type.
"""

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
)
from siafu.ingest.arrays import (
    MOST_CLASSES,
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
)

_WHERE = "PyG data"


def graph_from_data(data: Any) -> Noted:
    """Return the graph of a `Data` and notes for the user.

    Read are edge_index and, where they are there, x, y, masks, weights, edge types and n_id.
    """
    edges = edge_index_of(data)
    y = node_labels(data)
    x = features_of(data)
    num_nodes = _num_nodes(data, edges, y)
    check_num_nodes(_WHERE, num_nodes)
    num_classes = num_classes_of(y)
    masks, notes = labelled_only(masks_of(data), y)
    edge_type = getattr(data, "edge_type", None)
    graph = graph_from_edges(
        edges[0],
        edges[1],
        num_nodes,
        name=str(getattr(data, "name", None) or "pyg"),
        ids=node_ids(data, num_nodes),
        x=x,
        y=y,
        num_classes=num_classes,
        edge_weight=float_column(data, "edge_weight"),
        edge_attr=float_column(data, "edge_attr"),
        edge_type=None if edge_type is None else as_numpy(edge_type),
        **masks,
    )
    check_graph(graph)
    return graph, notes


def as_numpy(tensor: Any) -> Array:
    """Return a tensor or array as an array on the host."""
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def edge_index_of(data: Any) -> Array:
    """Return edge_index [2, E]; raise where it is missing or no such array."""
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        raise DataError(
            "The data has no edge_index.",
            seen=repr(data)[:200],
            fix="give edge_index [2, E]; from adj_t: torch.stack(data.adj_t.coo()[:2][::-1])",
        )
    edges = as_numpy(edge_index)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise DataError(
            "edge_index has the wrong shape or type.",
            seen=f"{edges.dtype} {edges.shape}",
            fix="give integers of shape [2, E]: sources, then destinations",
        )
    return as_int64(_WHERE, "edge_index", edges)


def _num_nodes(data: Any, edges: Array, y: Array | None) -> int:
    x = getattr(data, "x", None)
    if x is not None:
        num_nodes = int(x.shape[0])
    elif y is not None:
        num_nodes = len(y)
    else:
        num_nodes = int(getattr(data, "num_nodes", None) or edges.max(initial=-1) + 1)
    low, high = int(edges.min(initial=0)), int(edges.max(initial=-1))
    if low < 0 or high >= num_nodes:
        raise DataError(
            "An edge names a node that does not exist.",
            seen=f"edge_index runs from {low} to {high}, there are {num_nodes} nodes",
            fix="give x, y or num_nodes for every node",
        )
    return num_nodes


def features_of(data: Any) -> Features | None:
    """Return x as float32, dense or sparse."""
    x = getattr(data, "x", None)
    if x is None:
        return None
    if str(getattr(x, "layout", "torch.strided")) != "torch.strided":
        # By way of COO: torch warns that its own CSR is not finished.
        entries = x.detach().cpu().to_sparse_coo().coalesce()
        if entries.indices().shape[0] != 2:
            raise DataError(
                "The sparse features are no matrix.",
                seen=f"x has shape {tuple(x.shape)}",
                fix="give x of shape [N, F]",
            )
        check_array(_WHERE, "x", as_numpy(entries.values()))
        rows, columns = as_numpy(entries.indices())
        counts = np.bincount(rows, minlength=int(x.shape[0]))
        return SparseFeatures(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            columns.astype(np.int32),
            as_numpy(entries.values()).astype(np.float32),
            int(x.shape[1]),
        )
    dense = as_numpy(x)
    check_array(_WHERE, "x", dense, ndims=(1, 2))
    with np.errstate(over="ignore"):
        return (dense[:, None] if dense.ndim == 1 else dense).astype(np.float32, copy=False)


def node_labels(data: Any) -> Array | None:
    """Return y as int64 [N] with -1 for no label, as uint8 [N, C], or as float32 [N, T].

    Floats that are not all whole are numbers to be told.
    """
    y = getattr(data, "y", None)
    if y is None:
        return None
    labels = as_numpy(y)
    check_array(_WHERE, "y", labels, ndims=(1, 2))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f":
        known = labels[~np.isnan(labels)]
        if np.any(known != np.floor(known)):
            return as_targets(labels)
        labels = np.where(np.isnan(labels), -1, labels)
    several = labels.ndim == 2 and np.any((labels != 0) & (labels != 1))
    if several or np.any(labels != np.floor(labels)) or np.any(np.abs(labels) > MOST_CLASSES):
        raise DataError(
            "The labels are not classes.",
            seen=f"y is {labels.dtype} {labels.shape}",
            fix="give whole numbers of shape [N] (-1: no label), or 0 and 1 of shape [N, C]",
        )
    return labels.astype(np.int64 if labels.ndim == 1 else np.uint8)


def num_classes_of(y: Array | None) -> int:
    """Return how many classes there are."""
    if y is None or y.dtype.kind == "f":
        return 0
    num_classes = int(y.shape[1]) if y.ndim == 2 else int(y.max(initial=-1)) + 1
    check_num_classes(_WHERE, num_classes)
    return num_classes


def masks_of(data: Any) -> dict[str, Array]:
    """Return the train, val and test masks where all three are there."""
    found = {name: getattr(data, f"{name}_mask", None) for name in MASKS}
    given = {name: as_numpy(mask) for name, mask in found.items() if mask is not None}
    for name, mask in given.items():
        if mask.ndim != 1:
            raise DataError(
                "A mask holds several splits.",
                seen=f"{name}_mask has shape {mask.shape}",
                fix=f"choose one: data.{name}_mask = data.{name}_mask[:, 0]",
            )
    masks = {name: as_mask(_WHERE, f"{name}_mask", mask) for name, mask in given.items()}
    return masks if len(masks) == len(MASKS) else {}


def float_column(data: Any, name: str) -> Array | None:
    """Return an edge column as float32: [E] for weights, [E, K] for attributes."""
    value = getattr(data, name, None)
    if value is None:
        return None
    column = as_numpy(value)
    if name == "edge_weight" and column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    check_array(_WHERE, name, column, ndims=(1,) if name == "edge_weight" else (1, 2))
    with np.errstate(over="ignore"):
        column = column.astype(np.float32)
    check_finite(_WHERE, name, column)
    return column[:, None] if name == "edge_attr" and column.ndim == 1 else column


def node_ids(data: Any, num_nodes: int) -> IntegerIds:
    """Return the user's numbers of the nodes, n_id or 0 to N - 1."""
    ids = getattr(data, "n_id", None)
    if ids is None:
        return IntegerIds(np.arange(num_nodes))
    check_array(_WHERE, "n_id", as_numpy(ids), kinds="iu")
    found = given_ids(_WHERE, "n_id", as_numpy(ids), num_nodes)
    assert isinstance(found, IntegerIds), "n_id is whole numbers"
    return found

"""A PyTorch Geometric `Data`, recognised by its attributes; that library is never imported."""

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
)
from siafu.ingest.masks import labelled_only


def is_pyg(source: object) -> bool:
    """Return whether the object looks like a PyG Data or HeteroData."""
    return _is_hetero(source) or getattr(source, "edge_index", None) is not None


def _is_hetero(source: object) -> bool:
    return hasattr(source, "edge_types") and hasattr(source, "node_types")


def graph_from_pyg(data: Any) -> Graph:
    """Return the graph of a PyG `Data`: edge_index and, if there, x, y, masks, weights, n_id."""
    return graph_from_pyg_with_notes(data)[0]


def graph_from_pyg_with_notes(data: Any) -> tuple[Graph, list[str]]:
    """Return what `graph_from_pyg` does, and sentences on what a user should know about it."""
    if _is_hetero(data):
        raise DataError(
            "Graphs with several node or edge types are not supported yet.",
            seen=f"{type(data).__name__} with node types {list(data.node_types)}",
            fix="train on one type, or pass data.to_homogeneous()",
        )
    edges = _edges(data)
    y = _labels(data)
    num_nodes = _num_nodes(data, edges, y)
    masks, notes = labelled_only(_masks(data), y)
    columns = {name: _float_column(data, name) for name in ("edge_weight", "edge_attr")}
    if columns["edge_attr"] is not None and columns["edge_attr"].ndim == 1:
        columns["edge_attr"] = columns["edge_attr"][:, None]
    ids = getattr(data, "n_id", None)
    graph = graph_from_edges(
        edges[0],
        edges[1],
        num_nodes,
        name=str(getattr(data, "name", None) or "pyg"),
        ids=IntegerIds(np.arange(num_nodes) if ids is None else _numpy(ids).astype(np.int64)),
        x=_features(data),
        y=y,
        num_classes=_num_classes(y),
        **columns,
        **masks,
    )
    check_graph(graph)
    return graph, notes


def _numpy(tensor: Any) -> Array:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def _edges(data: Any) -> Array:
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        raise DataError(
            "The data has no edge_index.",
            seen=repr(data)[:200],
            fix="give edge_index [2, E]; from adj_t: torch.stack(data.adj_t.coo()[:2][::-1])",
        )
    edges = _numpy(edge_index)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise DataError(
            "edge_index has the wrong shape or type.",
            seen=f"{edges.dtype} {edges.shape}",
            fix="give integers of shape [2, E]: sources, then destinations",
        )
    return edges


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
            "An edge names a vertex that does not exist.",
            seen=f"edge_index runs from {low} to {high}, there are {num_nodes} vertices",
            fix="give x, y or num_nodes for every vertex",
        )
    return num_nodes


def _features(data: Any) -> Features | None:
    x = getattr(data, "x", None)
    if x is None:
        return None
    if str(getattr(x, "layout", "torch.strided")) != "torch.strided":
        # By way of COO: torch warns that its own CSR is not finished.
        entries = x.detach().cpu().to_sparse_coo().coalesce()
        rows, columns = _numpy(entries.indices())
        counts = np.bincount(rows, minlength=int(x.shape[0]))
        return SparseFeatures(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            columns.astype(np.int32),
            _numpy(entries.values()).astype(np.float32),
            int(x.shape[1]),
        )
    dense = _numpy(x)
    return (dense[:, None] if dense.ndim == 1 else dense).astype(np.float32, copy=False)


def _labels(data: Any) -> Array | None:
    y = getattr(data, "y", None)
    if y is None:
        return None
    labels = _numpy(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
    if labels.ndim not in (1, 2) or np.any(labels != np.floor(labels)):
        raise DataError(
            "The labels are not classes.",
            seen=f"y is {labels.dtype} {labels.shape}",
            fix="give whole numbers of shape [N] (-1: no label), or 0 and 1 of shape [N, C]",
        )
    return labels.astype(np.int64 if labels.ndim == 1 else np.uint8)


def _num_classes(y: Array | None) -> int:
    if y is None:
        return 0
    return int(y.shape[1]) if y.ndim == 2 else int(y.max(initial=-1)) + 1


def _masks(data: Any) -> dict[str, Array]:
    found = {name: getattr(data, f"{name}_mask", None) for name in MASKS}
    masks = {name: _numpy(mask).astype(bool) for name, mask in found.items() if mask is not None}
    for name, mask in masks.items():
        if mask.ndim != 1:
            raise DataError(
                "A mask holds several splits.",
                seen=f"{name}_mask has shape {mask.shape}",
                fix=f"choose one: data.{name}_mask = data.{name}_mask[:, 0]",
            )
    return masks if len(masks) == len(MASKS) else {}


def _float_column(data: Any, name: str) -> Array | None:
    value = getattr(data, name, None)
    return None if value is None else _numpy(value).astype(np.float32)

"""A PyTorch Geometric `HeteroData` as one graph: its nodes end to end, its relations as types.

N nodes of all types, E edges of all types, F features.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.errors import DataError
from siafu.graph import (
    Array,
    Features,
    Graph,
    SparseFeatures,
    TextIds,
    check_graph,
    graph_from_edges,
)
from siafu.ingest.arrays import Noted, labelled_only
from siafu.ingest.formats.pyg import (
    edge_index_of,
    features_of,
    float_column,
    graph_from_data,
    masks_of,
    node_ids,
    node_labels,
    num_classes_of,
)

Blocks = dict[str, range]
"""The rows of each node type."""


def is_pyg(source: object) -> bool:
    """Return whether the object looks like a PyG Data or HeteroData."""
    return _is_hetero(source) or getattr(source, "edge_index", None) is not None


def _is_hetero(source: object) -> bool:
    return hasattr(source, "edge_types") and hasattr(source, "node_types")


def graph_from_pyg(data: Any) -> Graph:
    """Return the graph of a PyG `Data` or `HeteroData`."""
    return graph_from_pyg_with_notes(data)[0]


def graph_from_pyg_with_notes(data: Any) -> Noted:
    """Return what `graph_from_pyg` does, and sentences on what a user should know about it."""
    return graph_from_hetero(data) if _is_hetero(data) else graph_from_data(data)


def graph_from_hetero(data: Any) -> Noted:
    """Return a `HeteroData` as one graph, and notes for the user.

    Node types follow each other in the data's order, and so are the edge types numbered, named
    `src__rel__dst`. The ids are `type:number`. One node type may have labels and masks.
    """
    blocks = _blocks(data)
    num_nodes = sum(map(len, blocks.values()))
    source, destination, edge_type = _edges(data, blocks)
    y, masks = _labels(data, blocks)
    masks, left_out = labelled_only(masks, y)
    columns, dropped = _edge_columns(data)
    graph = graph_from_edges(
        source,
        destination,
        num_nodes,
        name=str(getattr(data, "name", None) or "pyg"),
        ids=_ids(data, blocks),
        x=_features(data, blocks),
        y=y,
        num_classes=num_classes_of(y),
        edge_type=edge_type,
        edge_type_names=tuple("__".join(kind) for kind in data.edge_types),
        **columns,
        **masks,
    )
    check_graph(graph)
    return graph, dropped + left_out


def _blocks(data: Any) -> Blocks:
    blocks: Blocks = {}
    start = 0
    for kind in data.node_types:
        size = _num_nodes(data[kind], kind)
        blocks[kind] = range(start, start + size)
        start += size
    return blocks


def _num_nodes(nodes: Any, kind: str) -> int:
    for name in ("x", "y", "num_nodes"):
        value = getattr(nodes, name, None) if name in nodes else None
        if value is not None:
            return int(value) if name == "num_nodes" else int(value.shape[0])
    raise DataError(
        "A node type does not say how many nodes it has.",
        seen=f"node type {kind!r} has neither x, y nor num_nodes",
        fix=f"give it features, or set data[{kind!r}].num_nodes",
    )


def _edges(data: Any, blocks: Blocks) -> tuple[Array, Array, Array]:
    """Return sources, destinations and types of all edges."""
    if not data.edge_types:
        raise DataError(
            "The data has no edges.",
            seen=f"node types {', '.join(blocks)} and no edge type",
            fix="give edge_index to at least one edge type",
        )
    ends = []
    for kind in data.edge_types:
        edges = edge_index_of(data[kind]).astype(np.int64)
        for row, end in ((0, kind[0]), (1, kind[2])):
            rows = blocks.get(end, range(0))
            _check_ends(edges[row], len(rows), kind, end)
            edges[row] += rows.start
        ends.append(edges)
    source, destination = np.concatenate(ends, axis=1)
    counts = [edges.shape[1] for edges in ends]
    return source, destination, np.repeat(np.arange(len(counts)), counts)


def _check_ends(rows: Array, num_nodes: int, kind: tuple[str, str, str], end: str) -> None:
    low, high = int(rows.min(initial=0)), int(rows.max(initial=-1))
    if low < 0 or high >= num_nodes:
        raise DataError(
            "An edge names a node that does not exist.",
            seen=f"edge_index of {kind} runs from {low} to {high}, "
            f"there are {num_nodes} nodes of type {end!r}",
            fix="number the nodes of each type from 0, and give every one its features",
        )


def _ids(data: Any, blocks: Blocks) -> TextIds:
    columns = []
    for kind, rows in blocks.items():
        numbers = node_ids(data[kind], len(rows)).to_arrow().cast(pa.large_string())
        prefix = pa.scalar(f"{kind}:", pa.large_string())
        columns.append(pc.binary_join_element_wise(prefix, numbers, pa.scalar("", prefix.type)))
    return TextIds.from_arrow(pa.concat_arrays(columns))


def _labels(data: Any, blocks: Blocks) -> tuple[Array | None, dict[str, Array]]:
    """Return labels and masks over all nodes, which only one node type has."""
    labelled = [kind for kind in blocks if getattr(data[kind], "y", None) is not None]
    if not labelled:
        return None, {}
    if len(labelled) > 1:
        raise DataError(
            "Several node types have labels.",
            seen=f"y of {', '.join(labelled)}",
            fix=f"keep the one to predict: del data[{labelled[1]!r}].y",
        )
    rows = blocks[labelled[0]]
    num_nodes = sum(map(len, blocks.values()))
    own, own_masks = node_labels(data[labelled[0]]), masks_of(data[labelled[0]])
    assert own is not None, "the storage has y"
    numbers = own.dtype.kind == "f"
    if own.ndim == 2 and not numbers and not own_masks:
        # There is no mark for "no label" here, so drawn masks would take in other node types.
        raise DataError(
            "Several labels per node need masks.",
            seen=f"y of {labelled[0]!r} is {own.shape}, without train_mask, val_mask and test_mask",
            fix=f"give data[{labelled[0]!r}] the three masks",
        )
    nothing = np.nan if numbers else -1 if own.ndim == 1 else 0
    y = _spread(own, rows, num_nodes, nothing)
    return y, {name: _spread(mask, rows, num_nodes, 0) for name, mask in own_masks.items()}


def _spread(values: Array, rows: range, num_nodes: int, elsewhere: float) -> Array:
    """Return an array over all nodes with these values at the rows of one type."""
    if len(values) != len(rows):
        raise DataError(
            "An array has another number of rows than the node type has nodes.",
            seen=f"{len(values)} rows, {len(rows)} nodes",
            fix="give x, y and the masks one row per node",
        )
    out = np.full((num_nodes, *values.shape[1:]), elsewhere, values.dtype)
    out[rows.start : rows.stop] = values
    return out


def _features(data: Any, blocks: Blocks) -> Features | None:
    """Return the features of all types: one under another where the widths are equal.

    Otherwise each type has columns of its own. That matrix is mostly zeros, so it is kept sparse.
    """
    found = {kind: features_of(data[kind]) for kind in blocks}
    features = [x for x in found.values() if x is not None]
    if not features:
        return None
    bare = [kind for kind, x in found.items() if x is None]
    if bare:
        raise DataError(
            "A node type has no features.",
            seen=f"{', '.join(bare)} without x, others with it",
            fix=f"give it some, for example data[{bare[0]!r}].x = torch.ones(num_nodes, 1)",
        )
    widths = [x.shape[1] for x in features]
    if len(set(widths)) == 1:
        dense = [x for x in features if not isinstance(x, SparseFeatures)]
        if len(dense) == len(features):
            return np.concatenate(dense)
        return _stack(features, [0] * len(widths), widths[0])
    starts = np.cumsum([0, *widths])
    return _stack(features, starts[:-1].tolist(), int(starts[-1]))


def _stack(features: Sequence[Features], first_columns: list[int], width: int) -> SparseFeatures:
    """Return the features one under another, each moved to its first column."""
    blocks = [x if isinstance(x, SparseFeatures) else _sparse(x) for x in features]
    counts = np.concatenate([np.diff(x.indptr) for x in blocks])
    pairs = zip(blocks, first_columns, strict=True)
    return SparseFeatures(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([x.index.astype(np.int32) + np.int32(first) for x, first in pairs]),
        np.concatenate([x.value for x in blocks]),
        width,
    )


def _sparse(x: Array) -> SparseFeatures:
    # NaN is not zero, so it stays and is found by check_graph.
    rows, columns = np.nonzero(x)
    counts = np.bincount(rows, minlength=len(x))
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return SparseFeatures(indptr, columns.astype(np.int32), x[rows, columns], x.shape[1])


def _edge_columns(data: Any) -> tuple[dict[str, Array], list[str]]:
    """Return the edge data that all edge types have in one shape, and a note on the rest."""
    columns: dict[str, Array] = {}
    notes = []
    for name in ("edge_weight", "edge_attr"):
        parts = [float_column(data[kind], name) for kind in data.edge_types]
        there = [part for part in parts if part is not None]
        if len(there) == len(parts) and len({part.shape[1:] for part in there}) == 1:
            columns[name] = np.concatenate(there)
        elif there:
            notes.append(f"{name} is not used: not every edge type has it, or not in one width.")
    return columns, notes

"""Drawing train, validation and test masks where the data has none, and adding reverse edges."""

from dataclasses import replace
from typing import Any

import numpy as np

from siafu.errors import ConfigError, DataError
from siafu.graph.array_stream import Array
from siafu.graph.columns import known_rows
from siafu.graph.graph import Graph


def parse_split(text: str) -> tuple[float, float]:
    """Return the two numbers of `0.6,0.2` (fractions) or `20,30` (nodes per class)."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        first = second = -1.0
    fractions = 0 < first < 1 and second >= 0 and first + second <= 1
    per_class = first >= 1 and second >= 0 and first.is_integer() and second.is_integer()
    if not (fractions or per_class):
        raise ConfigError(
            "The split is not understood.",
            seen=f"--split {text}",
            fix="give train,val as fractions (0.6,0.2) or nodes per class (20,30)",
        )
    return first, second


def draw_split(graph: Graph, split: str, seed: int) -> Graph:
    """Return the graph with masks drawn from the seed over its labelled nodes."""
    first, second = parse_split(split)
    if graph.y is None:
        raise DataError(
            "Masks can't be drawn without labels.",
            seen=graph.name,
            fix="give the nodes a label column",
        )
    generator = np.random.default_rng(seed)
    labelled = np.flatnonzero(known_rows(graph.y))
    if first < 1:
        order = generator.permutation(labelled)
        bounds = [round(first * len(order)), round((first + second) * len(order))]
        train, val, test = np.split(order, bounds)
        return graph.with_masks(*(_mask(rows, graph.num_nodes) for rows in (train, val, test)))
    if graph.y.ndim == 2:
        kind = "multi-label data" if graph.is_multi_label else "data whose targets are numbers"
        raise ConfigError(
            "A split per class needs one label per node.",
            seen=f"--split {split} on {kind}",
            fix="use fractions, for example --split 0.6,0.2",
        )
    chosen: list[list[Array]] = [[], [], []]
    for label in range(graph.num_classes):
        order = generator.permutation(np.flatnonzero(graph.y == label))
        pieces = np.split(order, [int(first), int(first + second)])
        for group, rows in zip(chosen, pieces, strict=True):
            group.append(rows)
    return graph.with_masks(*(_mask(np.concatenate(rows), graph.num_nodes) for rows in chosen))


def _mask(rows: Array, num_nodes: int) -> Array:
    mask = np.zeros(num_nodes, dtype=bool)
    mask[rows] = True
    return mask


def add_reverse_edges(graph: Graph) -> Graph:
    """Return the graph with missing reverse edges added; their edge data is copied.

    Targets are not: what is asked of an edge is asked once.
    Edges of different types are different: the reverse of an edge is one of the same type.
    """
    n = graph.num_nodes
    dst = np.repeat(np.arange(n, dtype=np.int64), np.diff(graph.indptr))
    src = graph.src.astype(np.int64)
    edges = _without_reverse(dst * n + src, src * n + dst, graph)
    all_dst = np.concatenate([dst, src[edges]])
    order = np.argsort(all_dst, kind="stable")
    columns: dict[str, Any] = {
        name: np.concatenate([column, _copied(name, column[edges])])[order]
        for name, column in graph.edge_arrays()
        if name != "src"
    }
    new_src = np.concatenate([src, dst[edges]])[order].astype(graph.src.dtype)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(all_dst, minlength=n))]).astype(np.int64)
    return replace(graph, indptr=indptr, src=new_src, **columns)


def _copied(name: str, column: Array) -> Array:
    if name == "edge_split":
        return np.zeros_like(column)
    if name not in ("edge_y", "edge_row"):
        return column
    return np.full_like(column, np.nan if column.dtype.kind == "f" else -1)


def _without_reverse(forward: Array, backward: Array, graph: Graph) -> Array:
    """Return the first edge of each reverse that is missing, ordered by that reverse and type."""
    if graph.edge_type is not None:
        # Numbered anew: a pair's key and a type together may not fit in 64 bits.
        _, pair = np.unique(np.concatenate([forward, backward]), return_inverse=True)
        forward, backward = pair.reshape(2, -1) * graph.num_edge_types + graph.edge_type
    candidates, first = np.unique(backward, return_index=True)
    return first[~np.isin(candidates, forward)]

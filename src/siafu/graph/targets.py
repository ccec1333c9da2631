"""What is learnt of each node or edge: a class, several at once, or numbers; and which are asked.

Shapes: N nodes, E edges, C classes, T numbers (targets).
"""

from typing import TYPE_CHECKING

import numpy as np

from siafu.errors import DataError
from siafu.graph.array_stream import Array
from siafu.graph.columns import MASKS, NO_LABELS, known_rows

if TYPE_CHECKING:
    from siafu.graph.graph import Graph

_ROWS_AT_ONCE = 1 << 20


def is_numbers(y: Array | None) -> bool:
    """Return whether targets are numbers (regression) rather than classes."""
    return y is not None and y.ndim == 2 and y.dtype.kind == "f"


def check_targets(graph: "Graph") -> None:
    """Raise unless the targets of nodes and edges are such as can be learnt."""
    _check_named("target", graph.target_names, graph.num_targets)
    _check_named("edge target", graph.edge_target_names, graph.num_edge_targets)
    _check_named("edge class", graph.edge_class_names, graph.num_edge_classes)
    if graph.y is not None:
        _check_values("node", graph.y, graph.num_classes)
        for name in MASKS:
            mask = getattr(graph, name)
            if mask is not None:
                _check_masked(graph, name, mask, graph.y)
    if graph.edge_y is not None:
        _check_edges(graph.edge_y, graph)
    elif graph.num_edge_classes:
        raise DataError(
            "The graph has classes of edges but no edge has one.",
            seen=f"{graph.num_edge_classes} edge classes, no edge_y",
            fix="give edge_y, one number per edge, -1 for none",
        )
    if graph.edge_split is not None:
        _check_edge_split(graph.edge_split, graph.edge_y)


def _check_named(what: str, names: tuple[str | int, ...], count: int) -> None:
    if len(names) not in (0, count):
        raise DataError(
            f"The names do not fit the {what}s.",
            seen=f"{len(names)} names for {count}",
            fix=f"give one name per {what}, or none at all",
        )


def _check_values(what: str, y: Array, num_classes: int) -> None:
    if is_numbers(y):
        for start in range(0, len(y), _ROWS_AT_ONCE):
            infinite = np.isinf(y[start : start + _ROWS_AT_ONCE]).any(axis=1)
            if infinite.any():
                raise DataError(
                    "A target is infinite.",
                    seen=f"of {what} {start + int(np.argmax(infinite))}",
                    fix="use a number, or NaN where there is none",
                )
        return
    if y.ndim == 2:
        _check_several(y)
        return
    low, high = int(y.min(initial=0)), int(y.max(initial=0))
    allowed = (-1, num_classes - 1)
    if low < allowed[0] or high > allowed[1]:
        raise DataError(
            "A label is out of range.",
            seen=f"labels from {low} to {high} where {allowed[0]} to {allowed[1]} are allowed",
            fix=f"number the classes from 0; -1 marks {_A[what]} without a label",
        )


def _check_several(y: Array) -> None:
    for start in range(0, len(y), _ROWS_AT_ONCE):
        some = np.asarray(y[start : start + _ROWS_AT_ONCE])
        unknown = ~known_rows(some)
        wrong = ((some < 0) | (some > 1)).any(axis=1) & ~unknown
        wrong |= unknown & (some != NO_LABELS).any(axis=1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                "A label is out of range.",
                seen=f"labels from {some[row].min()} to {some[row].max()} of node {start + row} "
                "where 0 to 1 are allowed",
                fix=f"give 0 or 1 for each class, or {NO_LABELS} for all of an unknown node",
            )


_A = {"node": "a node", "edge": "an edge"}


def _check_masked(graph: "Graph", name: str, mask: Array, y: Array) -> None:
    bare = np.flatnonzero(mask & ~known_rows(y))
    if len(bare):
        one = graph.ids.to_arrow()[int(bare[0])].as_py()
        raise DataError(
            f"Nodes of the {name} mask have no label.",
            seen=f"{len(bare)} of them, one with id {one!r}",
            fix=f"label them, or take them out of the {name} mask",
        )


def _check_edges(edge_y: Array, graph: "Graph") -> None:
    classes = edge_y.ndim == 1 and edge_y.dtype.kind == "i"
    if not (classes or is_numbers(edge_y)):
        raise DataError(
            "The targets of edges are neither classes nor numbers.",
            seen=f"edge_y is {edge_y.dtype} {edge_y.shape}",
            fix="give whole numbers [E], -1 for none, or floats [E, T], NaN for none",
        )
    _check_values("edge", edge_y, graph.num_edge_classes)


def _check_edge_split(edge_split: Array, edge_y: Array | None) -> None:
    for start in range(0, len(edge_split), _ROWS_AT_ONCE):
        some = np.asarray(edge_split[start : start + _ROWS_AT_ONCE])
        wrong = some > len(MASKS)
        if edge_y is not None:
            wrong |= (some > 0) & ~known_rows(np.asarray(edge_y[start : start + _ROWS_AT_ONCE]))
        if wrong.any():
            where = start + int(np.argmax(wrong))
            raise DataError(
                "An edge is in a split that it can't be in.",
                seen=f"edge {where} has split {edge_split[where]}"
                + ("" if edge_y is None else f" and target {edge_y[where]}"),
                fix="use 0 for none, 1 train, 2 val, 3 test, and none for edges without a target",
            )

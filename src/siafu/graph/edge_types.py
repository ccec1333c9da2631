"""Types of edges (relations): numbered from 0, in the smallest unsigned dtype that holds them.

E edges, T types.
"""

from typing import Any

import numpy as np

from siafu.errors import DataError
from siafu.graph.array_stream import Array

EdgeTypeName = str | int
_EDGES_AT_ONCE = 1 << 22
# Ranks hold the types as int32, which torch can index with.
_MOST_TYPES = 2**31 - 1


def edge_type_dtype(num_edge_types: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for this many types."""
    return np.min_scalar_type(max(0, num_edge_types - 1))


def narrow_edge_types(values: Array, num_edge_types: int = 0) -> tuple[Array, int]:
    """Return the types in their smallest dtype, and how many there are: at least as many as given.

    Raises where they are not whole numbers from 0.
    """
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            "The edge types are not whole numbers, one per edge.",
            seen=f"edge_type is {values.dtype} {values.shape}",
            fix="give integers from 0 of shape [E]; a missing type (NaN) makes them floats",
        )
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low < 0 or high >= _MOST_TYPES:
        where = int(np.argmin(values) if low < 0 else np.argmax(values))
        raise DataError(
            "An edge type is out of range.",
            seen=f"edge {where} has type {values[where]}",
            fix="number the types from 0 without large gaps; edges without a type can't be kept",
        )
    num_edge_types = max(num_edge_types, high + 1 if len(values) else 0)
    return values.astype(edge_type_dtype(num_edge_types), copy=False), num_edge_types


def number_edge_types(values: Array) -> tuple[Array, tuple[str, ...]]:
    """Return the number of each type given as text, in sorted order, and the names."""
    unique, numbers = np.unique(np.asarray(values), return_inverse=True)
    try:
        names = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in unique.tolist())
    except UnicodeDecodeError as error:
        raise DataError(
            "The name of an edge type is no text.", seen=str(error), fix="save it as UTF-8"
        ) from error
    if "" in names:
        where = int(np.argmax(numbers.reshape(-1) == names.index("")))
        raise DataError(
            "An edge has no type.",
            seen=f"edge {where} has an empty name for its type",
            fix="name the type of every edge, or drop the edge",
        )
    return numbers.astype(edge_type_dtype(len(names))), names


def check_edge_types(
    edge_type: Array | None, num_edge_types: int, names: tuple[EdgeTypeName, ...]
) -> None:
    """Raise unless the types are numbers below `num_edge_types`, all named or none."""
    if edge_type is None:
        if num_edge_types or names:
            raise DataError(
                "The graph has edge types but no edge has one.",
                seen=f"{num_edge_types} types, {len(names)} names, no edge_type",
                fix="give edge_type, one number per edge",
            )
        return
    if edge_type.ndim != 1 or edge_type.dtype.kind != "u":
        raise DataError(
            "The edge types are not whole numbers from 0, one per edge.",
            seen=f"edge_type is {edge_type.dtype} {edge_type.shape}",
            fix="use graph_from_edges, which checks and converts them",
        )
    for start in range(0, len(edge_type), _EDGES_AT_ONCE):
        high = int(edge_type[start : start + _EDGES_AT_ONCE].max())
        if high >= num_edge_types:
            raise _out_of_range(high, num_edge_types)
    if len(names) not in (0, num_edge_types):
        raise DataError(
            "Not every edge type has a name.",
            seen=f"{len(names)} names for {num_edge_types} types",
            fix="give one name a type, or none at all",
        )


def _out_of_range(found: int, num_edge_types: int) -> DataError:
    return DataError(
        "An edge type is out of range.",
        seen=f"type {found} where there are {num_edge_types}",
        fix="count all types of the whole graph in num_edge_types",
    )


def count_edge_types(edge_type: Array, num_edge_types: int) -> Array:
    """Return int64 [T]: how many edges have each type; a mapped array passes through in pieces."""
    counts = np.zeros(num_edge_types, np.int64)
    for start in range(0, len(edge_type), _EDGES_AT_ONCE):
        piece = edge_type[start : start + _EDGES_AT_ONCE]
        if (high := int(piece.max())) >= num_edge_types:
            raise _out_of_range(high, num_edge_types)
        counts += np.bincount(piece, minlength=num_edge_types)
    return counts

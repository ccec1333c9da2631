"""One hash over all that a graph holds."""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from siafu.graph.array_stream import Array, forget
from siafu.graph.columns import MASKS
from siafu.graph.graph import Graph
from siafu.graph.nodes import SparseFeatures

_ROWS_AT_ONCE = 1 << 16


def fingerprint_graph(graph: Graph, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Return a hash of all contents; parts, runs and checkpoints of one graph carry the same.

    Once it is stopped, by another thread, nobody may look at what is returned.
    """
    digest = hashlib.sha256(f"{graph.num_nodes} {graph.num_edges} {graph.num_classes}".encode())
    if graph.edge_type is not None:
        digest.update(f" {graph.num_edge_types} edge types".encode())
    if graph.edge_y is not None:
        digest.update(f" {graph.num_edge_classes} edge classes".encode())
    for array in _all_arrays(graph):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        for start in range(0, len(array), _ROWS_AT_ONCE):
            if is_stopped():
                break
            digest.update(np.ascontiguousarray(array[start : start + _ROWS_AT_ONCE]).data)
            forget(array)
    return digest.hexdigest()


def _all_arrays(graph: Graph) -> Iterator[Array]:
    yield graph.indptr
    yield from (array for _, array in graph.edge_arrays())
    yield from (getattr(graph.ids, name) for name in graph.ids.__slots__)
    if isinstance(graph.x, SparseFeatures):
        yield from (graph.x.indptr, graph.x.index, graph.x.value)
    elif graph.x is not None:
        yield graph.x
    yield from (array for name in ("y", *MASKS) if (array := getattr(graph, name)) is not None)

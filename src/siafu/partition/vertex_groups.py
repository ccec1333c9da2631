"""Groups of vertices that ranks share the snapshots of a dynamic graph by."""

import numpy as np

from siafu.graph import Array, DynamicGraph, Graph, graph_from_edges
from siafu.partition.chunks import Progress
from siafu.partition.partition import Cut, assign


def assign_vertices(graph: DynamicGraph, cut: Cut, progress: Progress | None = None) -> Array:
    """Return part_of: the group of each vertex, few of whose edges ever lead to another group."""
    return assign(_met(graph), cut, progress)


def _met(graph: DynamicGraph) -> Graph:
    """Return the static graph of all pairs that ever meet, each once."""
    num_nodes = graph.num_nodes
    keys = np.unique(np.concatenate([graph.base.keys(), graph.deltas.added]))
    dst, src = np.divmod(keys, num_nodes)
    return graph_from_edges(src, dst, num_nodes, name=graph.name)

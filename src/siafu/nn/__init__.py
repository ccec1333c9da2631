"""Layers and models written as if one device held the graph.

The Neighbours protocol and the PyG adapter are here.
"""

from siafu.nn.models import GNN, LAYERS, ModelSpec
from siafu.nn.neighbours import Draws, Dropout, LocalNeighbours, Neighbours
from siafu.nn.norm import GraphBatchNorm, batch_statistics
from siafu.nn.sparse import Rows, SparseRows, project, rows_to_sum_one

__all__ = [
    "GNN",
    "LAYERS",
    "Draws",
    "Dropout",
    "GraphBatchNorm",
    "LocalNeighbours",
    "ModelSpec",
    "Neighbours",
    "Rows",
    "SparseRows",
    "batch_statistics",
    "project",
    "rows_to_sum_one",
]

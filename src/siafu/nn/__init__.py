"""Layers and models written as if one device held the graph.

The Neighbours protocol and the PyG adapter are here.
"""

from siafu.nn.draws import Draws, Dropout
from siafu.nn.input_cache import cache_input, check_input_cache
from siafu.nn.local import LocalNeighbours, Sampled
from siafu.nn.messages import EdgeFunction
from siafu.nn.models import GNN, LAYERS, ModelSpec
from siafu.nn.neighbours import EdgeRows, Neighbours, Reduce
from siafu.nn.norm import GraphBatchNorm, batch_statistics
from siafu.nn.sparse import CachedRows, Rows, SparseRows, project, rows_to_sum_one

__all__ = [
    "GNN",
    "LAYERS",
    "CachedRows",
    "Draws",
    "Dropout",
    "EdgeFunction",
    "EdgeRows",
    "GraphBatchNorm",
    "LocalNeighbours",
    "ModelSpec",
    "Neighbours",
    "Reduce",
    "Rows",
    "Sampled",
    "SparseRows",
    "batch_statistics",
    "cache_input",
    "check_input_cache",
    "project",
    "rows_to_sum_one",
]

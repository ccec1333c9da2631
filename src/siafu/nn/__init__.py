"""Layers and models written as if one device held the graph.

The Neighbours protocol and the PyG adapter are here.
"""

from siafu.nn.draws import Draws, Dropout
from siafu.nn.dynamic import (
    DYNAMIC_MODELS,
    DynamicGNN,
    DynamicSpec,
    PairHead,
    SnapshotGCN,
    SpatialLayer,
    StepGraph,
    VertexHead,
    build_dynamic,
    summaries,
)
from siafu.nn.input_cache import cache_input, check_input_cache
from siafu.nn.local import LocalNeighbours, Sampled
from siafu.nn.messages import EdgeFunction
from siafu.nn.models import GNN, LAYERS, ModelSpec
from siafu.nn.neighbours import EdgeRows, Neighbours, Reduce
from siafu.nn.norm import GraphBatchNorm, batch_statistics
from siafu.nn.sparse import CachedRows, Rows, SparseRows, project, rows_to_sum_one
from siafu.nn.temporal import (
    BandedMean,
    EvolvingGCN,
    State,
    TemporalLayer,
    VertexGRU,
    VertexLSTM,
    banded_mean,
)

__all__ = [
    "DYNAMIC_MODELS",
    "GNN",
    "LAYERS",
    "BandedMean",
    "CachedRows",
    "Draws",
    "Dropout",
    "DynamicGNN",
    "DynamicSpec",
    "EdgeFunction",
    "EdgeRows",
    "EvolvingGCN",
    "GraphBatchNorm",
    "LocalNeighbours",
    "ModelSpec",
    "Neighbours",
    "PairHead",
    "Reduce",
    "Rows",
    "Sampled",
    "SnapshotGCN",
    "SparseRows",
    "SpatialLayer",
    "State",
    "StepGraph",
    "TemporalLayer",
    "VertexGRU",
    "VertexHead",
    "VertexLSTM",
    "banded_mean",
    "batch_statistics",
    "build_dynamic",
    "cache_input",
    "check_input_cache",
    "project",
    "rows_to_sum_one",
    "summaries",
]

"""Layers and models written as if one device held the graph.

A layer asks `Neighbours`; a model is a card (`cards.py`), over time too (`dynamic.py`).
"""

from siafu.nn.cards import CARDS, ModelCard, ModelSpec, cards_that, layer_widths
from siafu.nn.draws import Draws, Dropout, HeldKeys
from siafu.nn.dynamic import (
    DYNAMIC_CARDS,
    DynamicCard,
    DynamicGNN,
    DynamicSpec,
    NodeHead,
    PairHead,
    SnapshotGCN,
    SpatialLayer,
    StepGraph,
    build_dynamic,
    look_back,
    summaries,
)
from siafu.nn.input_cache import cache_input, check_input_cache
from siafu.nn.local import AtHand, LocalNeighbours, Sampled
from siafu.nn.messages import EdgeFunction
from siafu.nn.models import GNN
from siafu.nn.neighbours import EdgeRows, Neighbours, Reduce, Summing, mapped
from siafu.nn.norm import GraphBatchNorm, normalised
from siafu.nn.plain import PlainGNN
from siafu.nn.sparse import CachedRows, MappedRows, Rows, SparseRows, project, rows_to_sum_one
from siafu.nn.temporal import (
    BandedMean,
    EvolvingGCN,
    LookingBack,
    NodeGRU,
    NodeLSTM,
    State,
    TemporalLayer,
    banded_mean,
    banded_sum,
)

__all__ = [
    "CARDS",
    "DYNAMIC_CARDS",
    "GNN",
    "AtHand",
    "BandedMean",
    "CachedRows",
    "Draws",
    "Dropout",
    "DynamicCard",
    "DynamicGNN",
    "DynamicSpec",
    "EdgeFunction",
    "EdgeRows",
    "EvolvingGCN",
    "GraphBatchNorm",
    "HeldKeys",
    "LocalNeighbours",
    "LookingBack",
    "MappedRows",
    "ModelCard",
    "ModelSpec",
    "Neighbours",
    "NodeGRU",
    "NodeHead",
    "NodeLSTM",
    "PairHead",
    "PlainGNN",
    "Reduce",
    "Rows",
    "Sampled",
    "SnapshotGCN",
    "SparseRows",
    "SpatialLayer",
    "State",
    "StepGraph",
    "Summing",
    "TemporalLayer",
    "banded_mean",
    "banded_sum",
    "build_dynamic",
    "cache_input",
    "cards_that",
    "check_input_cache",
    "layer_widths",
    "look_back",
    "mapped",
    "normalised",
    "project",
    "rows_to_sum_one",
    "summaries",
]

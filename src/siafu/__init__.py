"""Train any graph neural network on one big graph over many ranks, exactly by default."""

from siafu.comm import World
from siafu.errors import SiafuError
from siafu.graph import Graph
from siafu.ingest import load
from siafu.launch import Run, fit
from siafu.minibatch import MinibatchLoader
from siafu.shard import Shard, open_shard
from siafu.strategy import parallelize

__all__ = [
    "Graph",
    "MinibatchLoader",
    "Run",
    "Shard",
    "SiafuError",
    "World",
    "fit",
    "load",
    "open_shard",
    "parallelize",
]

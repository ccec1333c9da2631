"""The strategy value, its presets, and the Neighbours that carry it out."""

from siafu.strategy.halo import HaloNeighbours, neighbours_of
from siafu.strategy.parallelize import ParallelModel, parallelize
from siafu.strategy.strategy import PRESETS, Strategy, find_strategy

__all__ = [
    "PRESETS",
    "HaloNeighbours",
    "ParallelModel",
    "Strategy",
    "find_strategy",
    "neighbours_of",
    "parallelize",
]

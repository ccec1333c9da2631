"""Deciding which part owns which vertex, scoring that, and writing the parts."""

from siafu.partition.assign import assign_contiguous, assign_hash
from siafu.partition.chunks import Progress
from siafu.partition.memory import predict_peak_bytes
from siafu.partition.metis import assign_metis
from siafu.partition.partition import (
    METHODS,
    Cut,
    partition_graph,
    partition_in_steps,
    partition_store,
)
from siafu.partition.parts import Parts, open_parts
from siafu.partition.quality import Quality, score
from siafu.partition.streaming import assign_streaming
from siafu.partition.write import write_parts

__all__ = [
    "METHODS",
    "Cut",
    "Parts",
    "Progress",
    "Quality",
    "assign_contiguous",
    "assign_hash",
    "assign_metis",
    "assign_streaming",
    "open_parts",
    "partition_graph",
    "partition_in_steps",
    "partition_store",
    "predict_peak_bytes",
    "score",
    "write_parts",
]

"""Deciding which part owns which vertex, scoring that, and writing the parts."""

from siafu.partition.assign import assign_contiguous, assign_hash
from siafu.partition.chunks import Progress
from siafu.partition.metis import assign_metis
from siafu.partition.partition import METHODS, partition_graph, partition_store
from siafu.partition.parts import Parts, open_parts
from siafu.partition.quality import Quality, score
from siafu.partition.write import write_parts

__all__ = [
    "METHODS",
    "Parts",
    "Progress",
    "Quality",
    "assign_contiguous",
    "assign_hash",
    "assign_metis",
    "open_parts",
    "partition_graph",
    "partition_store",
    "score",
    "write_parts",
]

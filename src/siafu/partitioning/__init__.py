"""Deciding which part owns which node, scoring that, and writing the parts."""

from siafu.partitioning.assign import assign_contiguous, assign_hash
from siafu.partitioning.edge_split import edge_sides, with_edge_split
from siafu.partitioning.helping import CutHelps, open_on_ranks
from siafu.partitioning.memory import predict_peak_bytes
from siafu.partitioning.metis import assign_metis
from siafu.partitioning.partition import (
    METHODS,
    Cut,
    assign,
    assign_nodes,
    partition_graph,
    partition_in_steps,
    partition_store,
)
from siafu.partitioning.parts import Parts, open_parts
from siafu.partitioning.quality import Quality, score
from siafu.partitioning.streaming import assign_streaming
from siafu.partitioning.time_plan import (
    TimeBlock,
    TimePlan,
    balanced_cuts,
    plan_time,
    too_few_snapshots,
)
from siafu.partitioning.write import write_parts
from siafu.record import Progress

__all__ = [
    "METHODS",
    "Cut",
    "CutHelps",
    "Parts",
    "Progress",
    "Quality",
    "TimeBlock",
    "TimePlan",
    "assign",
    "assign_contiguous",
    "assign_hash",
    "assign_metis",
    "assign_nodes",
    "assign_streaming",
    "balanced_cuts",
    "edge_sides",
    "open_on_ranks",
    "open_parts",
    "partition_graph",
    "partition_in_steps",
    "partition_store",
    "plan_time",
    "predict_peak_bytes",
    "score",
    "too_few_snapshots",
    "with_edge_split",
    "write_parts",
]

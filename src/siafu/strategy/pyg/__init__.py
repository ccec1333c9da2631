"""PyG models as they are: watched while they run, and their layers carried out block by block."""

from siafu.strategy.pyg.edge_arguments import (
    as_given,
    check_forward,
    edge_arguments,
    unread_of_edges,
)
from siafu.strategy.pyg.parallelize import ParallelModel, check_own, parallelize, widen_messages
from siafu.strategy.pyg.refusal import message_passing_class

__all__ = [
    "ParallelModel",
    "as_given",
    "check_forward",
    "check_own",
    "edge_arguments",
    "message_passing_class",
    "parallelize",
    "unread_of_edges",
    "widen_messages",
]

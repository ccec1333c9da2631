"""The strategy value, its presets, and the Neighbours that carry it out."""

from siafu.strategy.blocks import group_rounds, smallest_piece
from siafu.strategy.columns import ColumnNeighbours, neighbours_of
from siafu.strategy.neighbours import BlockNeighbours
from siafu.strategy.offload import IN_HAND, Offload, leaving, offload_of
from siafu.strategy.pyg import (
    ParallelModel,
    as_given,
    check_forward,
    check_own,
    edge_arguments,
    message_passing_class,
    parallelize,
    unread_of_edges,
    widen_messages,
)
from siafu.strategy.rounding import WidthBook, Widths
from siafu.strategy.strategy import AUTO, PRESETS, Strategy, find_strategy
from siafu.strategy.time import LossOf, StepSource, TimeRunner, TimeStrategy
from siafu.strategy.view import View, message_flow

__all__ = [
    "AUTO",
    "IN_HAND",
    "PRESETS",
    "BlockNeighbours",
    "ColumnNeighbours",
    "LossOf",
    "Offload",
    "ParallelModel",
    "StepSource",
    "Strategy",
    "TimeRunner",
    "TimeStrategy",
    "View",
    "WidthBook",
    "Widths",
    "as_given",
    "check_forward",
    "check_own",
    "edge_arguments",
    "find_strategy",
    "group_rounds",
    "leaving",
    "message_flow",
    "message_passing_class",
    "neighbours_of",
    "offload_of",
    "parallelize",
    "smallest_piece",
    "unread_of_edges",
    "widen_messages",
]

"""Saving and loading the state of a run, without pickle."""

from siafu.checkpoint.checkpoint import (
    Checkpoint,
    check_optimiser,
    checkpoints_in,
    clear_leftovers,
    first_difference,
    has_checkpoint,
    load_checkpoint,
    moment_of,
    newest_checkpoint,
    restore_optimiser,
    save_checkpoint,
)
from siafu.checkpoint.shares import Share, load_share, save_share

__all__ = [
    "Checkpoint",
    "Share",
    "check_optimiser",
    "checkpoints_in",
    "clear_leftovers",
    "first_difference",
    "has_checkpoint",
    "load_checkpoint",
    "load_share",
    "moment_of",
    "newest_checkpoint",
    "restore_optimiser",
    "save_checkpoint",
    "save_share",
]

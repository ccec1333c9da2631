"""Saving and loading the state of a run, without pickle."""

from siafu.checkpoint.checkpoint import (
    Checkpoint,
    checkpoints_in,
    clear_leftovers,
    first_difference,
    has_checkpoint,
    load_checkpoint,
    newest_checkpoint,
    restore_optimiser,
    save_checkpoint,
)

__all__ = [
    "Checkpoint",
    "checkpoints_in",
    "clear_leftovers",
    "first_difference",
    "has_checkpoint",
    "load_checkpoint",
    "newest_checkpoint",
    "restore_optimiser",
    "save_checkpoint",
]

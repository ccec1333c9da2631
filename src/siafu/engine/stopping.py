"""Between two epochs: saving the state of a run where it is due, and ending early where told to."""

from collections.abc import Callable
from typing import Protocol

from siafu.checkpoint import Checkpoint, save_checkpoint
from siafu.comm import World
from siafu.config import RunConfig
from siafu.errors import Stopped
from siafu.record import RunFolder

IsTold = Callable[[], bool]
"""Whether this rank was told to end."""


class Resumable(Protocol):
    """A training whose state can be saved."""

    config: RunConfig

    @property
    def world(self) -> World:
        """The ranks of the run."""
        ...

    def checkpoint(self) -> Checkpoint:
        """Return the state of the run; every rank calls this together."""
        ...


def save_or_stop(
    training: Resumable, folder: RunFolder, epochs: int, *, may_stop: bool, is_told: IsTold
) -> None:
    """Save a checkpoint if one is due, or if a rank was told to end; then `Stopped` is raised.

    Every rank calls this together, after each epoch.
    """
    world, every = training.world, training.config.checkpoint_every
    ends = may_stop and any(row[0] for row in world.gather_numbers([float(is_told())]))
    if every and (ends or epochs % every == 0):
        saved = training.checkpoint()
        if world.rank == 0:
            save_checkpoint(saved, folder.checkpoints)
    if ends:
        world.gather_numbers([0.0])  # a rank that ended before rank 0 has saved would end it too
        raise Stopped(epochs)

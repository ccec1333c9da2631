"""How far a run was, as its checkpoint tells it: checked before training goes on from there."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from siafu.checkpoint import Checkpoint
from siafu.errors import StoreError
from siafu.graph import Facts, first_fault

_Epochs = Annotated[int, Field(ge=0, le=1 << 40)]


class StepFacts(Facts):
    """Steps of the epoch after the last one that was done."""

    dealt: str
    """By what the minibatches were made: others can't be gone on with."""
    losses: list[float]
    seeds: list[Annotated[int, Field(ge=0)]]
    seconds: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not len(self.losses) == len(self.seeds) > 0:
            raise ValueError(f"{len(self.losses)} losses of steps, {len(self.seeds)} sizes")
        return self


class RunFacts(Facts):
    """What training keeps beside weights and optimiser."""

    epochs: _Epochs
    best_epoch: _Epochs
    best_scores: dict[str, float]
    best_merit: float | None = None
    best_details: dict[str, Any] = Field(default_factory=dict)
    losses: list[float]
    seconds: list[Annotated[float, Field(ge=0)]]
    fingerprint: str
    ranks: Annotated[int, Field(ge=1)]
    most_ranks: Annotated[int, Field(ge=1)] = 1
    """That the run ever had: one alone rounds nothing, whatever its settings say."""
    partition: str = ""
    """How the graph was cut; versions that did not note it resumed on the same cut only."""
    steps: StepFacts | None = None
    """Where it was saved in the middle of an epoch."""
    exchanges: list[Literal["all-to-all", "banded", "wavefront", "none"]] = Field(
        default_factory=list
    )
    """How snapshots of other ranks were reached, over time."""
    pipeline: dict[str, int | float | list[int] | None] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not len(self.losses) == len(self.seconds) == self.epochs >= self.best_epoch:
            raise ValueError(
                f"{self.epochs} epochs, the best {self.best_epoch}, {len(self.losses)} losses, "
                f"{len(self.seconds)} times"
            )
        return self


def read_run_facts(checkpoint: Checkpoint) -> RunFacts:
    """Return what the checkpoint tells of its run."""
    try:
        facts = RunFacts.model_validate(checkpoint.facts)
    except ValidationError as error:
        raise _unusable(first_fault(error)) from error
    if facts.best_scores and not checkpoint.best:
        raise _unusable("it has the scores of a best epoch and not its weights")
    return facts


def _unusable(seen: str) -> StoreError:
    return StoreError(
        "The checkpoint does not tell how far its run was.",
        seen=seen,
        fix="remove the newest folder in checkpoints/ of the run and resume again",
    )

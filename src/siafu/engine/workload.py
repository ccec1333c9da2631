"""What a trainer trains: the whole graph, minibatches, a pipeline or a dynamic graph."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from siafu.comm import World
from siafu.engine.run_facts import RunFacts
from siafu.strategy import WidthBook

Details = dict[str, dict[str, float]]
"""All scores, by split and name."""


OnStep = Callable[[int, int], None]
"""Told the steps that are done of an epoch, and how many it has."""


def no_step(done: int, total: int) -> None:
    """Ignore a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores of the present weights."""

    scores: dict[str, float]
    """Of each split, the score that counts."""
    merit: float
    """What epochs are compared by, the higher the better."""
    chooses: bool
    """Whether there is a validation set to choose by; otherwise the last weights count."""
    details: Details = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    """One standard error of each score, where they are of a sample."""


class Workload(Protocol):
    """One rank's share of what is trained. All ranks call its methods together."""

    task: str | None
    """What is learnt, where results name it."""
    metrics: tuple[str, ...]
    """The scores that are told, that which counts first."""
    on_step: OnStep
    """Told of each step of an epoch that has several."""
    purposes: tuple[str, ...]
    """What bytes are sent for."""

    @property
    def world(self) -> World:
        """The ranks of the run."""
        ...

    @property
    def network(self) -> Any:
        """The model as it is bound to its data: a type of each workload's own."""
        ...

    @property
    def module(self) -> nn.Module:
        """What has the weights."""
        ...

    @property
    def book(self) -> WidthBook:
        """The widths at which rows travel while training."""
        ...

    @property
    def guessed_loss(self) -> float | None:
        """The loss of guessing, where that can be told: far above it something is amiss."""
        ...

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """Take the steps of an epoch and return the loss over all ranks."""
        ...

    def stands_still(self, epochs: int) -> bool:
        """Return whether all is done up to this epoch, so that it can be saved."""
        ...

    def evaluate(self) -> Evaluation:
        """Return the scores of the present weights, nothing dropped."""
        ...

    def evaluate_all(self) -> Evaluation | None:
        """Return scores of the kept weights by what is predicted; None where epochs had these."""
        ...

    def merit_of(self, scores: dict[str, float]) -> float:
        """Return what an epoch with these scores is compared by."""
        ...

    def row_of(self, found: Evaluation) -> dict[str, Any]:
        """Return what a row of metrics tells of an evaluation."""
        ...

    def note_of(self, row: dict[str, Any]) -> str:
        """Return the validation score of a row of metrics in words, where it has one."""
        ...

    def fingerprint(self) -> str:
        """Return the hash of the graph."""
        ...

    def state(self) -> dict[str, Any]:
        """Return facts of its own for a checkpoint, beside weights and widths."""
        ...

    def check_facts(self, facts: RunFacts) -> None:
        """Raise where those facts are of other ranks' work, and can't be taken up here."""
        ...

    def restore(self, facts: RunFacts) -> None:
        """Take up those facts."""
        ...

    def dollars(self, seconds: float, epochs: int) -> float:
        """Return what so many epochs in so many seconds cost, by the run's prices."""
        ...

    def calls(self) -> int:
        """Return how often a pool was called so far; every rank calls this together."""
        ...

    def report(self, seconds: float, epochs: int) -> dict[str, Any]:
        """Return what a result tells of this workload alone, by field of `RunResult`."""
        ...

    def save_weights(self, path: Path) -> None:
        """Write the weights and what inference needs to know; rank 0 calls this alone."""
        ...

    def write_predictions(self, target: Path) -> None:
        """Write this rank's predictions."""
        ...

    def abandon(self) -> None:
        """End what works for this rank alone, after a failure: others may not be reached."""
        ...

    def close(self) -> None:
        """Give up what is shared with other ranks."""
        ...

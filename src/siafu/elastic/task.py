"""A tensor task: code by name, small facts, and bundles of tensors by key.

A task says all that a worker needs, so any worker may run it, any number of times, with one result.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Fact = int | float | str | bool
Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class Bundle:
    """Tensors under one key that never change: equal keys mean equal tensors."""

    key: str
    tensors: Tensors
    lifetime: Literal["run", "version", "once"]
    """How long a worker may keep it: to the end of the run (constant inputs), until its version of
    the weights is forgotten, or for this task alone."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """One call of a function in `compute.CODES`."""

    number: int
    """Unique among the tasks of one rank's run; replies name it."""
    code: str
    kind: str
    """Tasks of one kind take about as long: `forward 1`. Expected times are kept by it."""
    facts: dict[str, Fact]
    bundles: tuple[Bundle, ...]
    """Names of tensors differ between the bundles of one task."""

    def tensors(self) -> Tensors:
        """Return the tensors of all bundles by name."""
        return {name: t for bundle in self.bundles for name, t in bundle.tensors.items()}


@dataclass(frozen=True, slots=True)
class Usage:
    """What one invocation took, as far as the pool knows."""

    worker: str = ""
    started: float = 0.0
    """Seconds since 1970 by the worker's clock."""
    seconds: float = 0.0
    """From start to end of the computation on the worker, fetching and sending included."""
    sent_bytes: int = 0
    """To the worker."""
    received_bytes: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Reply:
    """What became of one attempt at a task: tensors, or why there are none."""

    number: int
    tensors: Tensors = field(default_factory=dict)
    failure: str = ""
    """Empty for success."""
    is_final: bool = False
    """True for a failure that another attempt would only repeat: the task itself is wrong."""
    usage: Usage = Usage()

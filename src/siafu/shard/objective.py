"""What is learnt of targets, and how: the loss, weights of classes, the scale of numbers.

Shapes: B rows, C classes, T numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """The same on every rank: its figures are of the training rows of all of them."""

    loss: str = "cross-entropy"
    weights: tuple[float, ...] = ()
    """Of each class; empty where all count alike."""
    mean: tuple[float, ...] = ()
    """Of each number to be told, over training rows; empty where classes are told."""
    scale: tuple[float, ...] = ()
    """The standard deviations, 1 where there is none: models tell (number - mean) / scale."""
    per_row: float = 1
    """Terms of the loss that a row has on average: its mean is over rows times this."""
    counts: tuple[int, ...] = ()
    """Training rows of each class; empty where numbers are told."""
    positive: int = 1
    """Of two classes, the one that is looked for."""
    threshold: float | None = None
    """The probability from which on that one is told; None: where it is the likelier one."""

    def weight_C(self, like: Tensor) -> Tensor | None:
        """Return the weights of the classes, in the dtype and on the device of `like`."""
        return like.new_tensor(self.weights) if self.weights else None

    def prepared(self, y: Tensor) -> Tensor:
        """Return targets as a model is to tell them: numbers scaled, classes as they are."""
        if not self.mean:
            return y
        return (y - y.new_tensor(self.mean)) / y.new_tensor(self.scale)

    def in_units(self, out: Tensor) -> Tensor:
        """Return what a model tells as the user's own numbers."""
        if not self.mean:
            return out
        return (out.double() * _row(self.scale, out) + _row(self.mean, out)).to(out.dtype)


def _row(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=like.device)

"""Messages that are the source's row, as it is or times a number of the edge.

Most convolutions send such messages. Their sums need no rows for the gradient, so rows are fetched
once instead of twice. They are recognised by what a message does with one call's inputs.

Shapes: S edges.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FACTORS = (Tensor.mul, torch.mul)
_SHAPES = (Tensor.view, Tensor.reshape, Tensor.unsqueeze)


class _NotPlainError(Exception):
    """A message does something else with its inputs."""


class _OnlyFactors(TorchFunctionMode):
    """Active while a message runs; stops it at the first call that is no product with the row."""

    def __init__(self, row: Tensor) -> None:
        super().__init__()
        self.made = [row]  # kept alive, so that no other tensor takes their identity

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let products with the row through, and changes of shape of anything else."""
        touched = sum(any(value is made for made in self.made) for value in args)
        if not (func in _FACTORS and touched == 1) and not (func in _SHAPES and touched == 0):
            raise _NotPlainError
        out = func(*args, **(kwargs or {}))
        if touched:
            self.made.append(out)
        return out


@dataclass(frozen=True, eq=False)
class PlainMessage:
    """The source's row times the weight of the edge; None is 1."""

    weight_S: Tensor | None


def plain_message(message: Callable[[Tensor], Tensor], ones: Tensor) -> PlainMessage | None:
    """Return what a message is if it is plain; None where it is more than that.

    `ones` stand for the sources' rows, with one column.
    """
    mode = _OnlyFactors(ones)
    try:
        with mode:
            out = message(ones)
    except _NotPlainError:
        return None
    if out is ones:
        return PlainMessage(None)
    if not any(out is made for made in mode.made):
        return None  # something else than a row
    if out.shape != ones.shape or out.dtype != ones.dtype or out.requires_grad:
        return None  # a number for each column too, or numbers that are learnt
    return PlainMessage(out.reshape(ones.numel()))

"""A loss of the user's own: a function of outputs and targets.

Shapes: B rows, C classes, T numbers.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from siafu.errors import ConfigError
from siafu.nn.named_code import named_object

OwnLoss = Callable[[Tensor, Tensor], Tensor]


@cache
def own_loss(name: str) -> OwnLoss:
    """Return the function that FILE.py:function names."""
    found = named_object(name, "loss")
    if not callable(found):
        raise ConfigError(
            "The loss has no such function.", seen=name, fix="check the name after the colon"
        )
    return found


def own_total(name: str, out: Tensor, y: Tensor) -> Tensor:
    """Return the sum over rows of a loss of the user's own.

    It gives one loss per row, which is exact on any number of ranks; one number is taken for the
    mean of the rows.
    """
    found = own_loss(name)(out, y)
    if not isinstance(found, Tensor) or found.dim() not in (0, 1) or not _fits(found, out):
        shown = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            "The loss gives neither one number per row nor their mean.",
            seen=f"{name} gives {shown} for {len(out)} rows",
            fix="return a tensor [rows] (reduction='none'), or its mean",
        )
    return found.sum() if found.dim() else found * len(out)


def _fits(found: Tensor, out: Tensor) -> bool:
    return found.dim() == 0 or len(found) == len(out)


def try_loss(name: str, y: Tensor, width: int) -> None:
    """Raise where a loss can't be learnt from, by what it gives for a few targets."""
    out = torch.zeros(len(y), width, device=y.device, requires_grad=True)
    total = own_total(name, out, y)
    if not total.requires_grad:
        raise ConfigError(
            "The loss does not depend on what the model gives.",
            seen=f"{name} gives a tensor without a gradient",
            fix="compute it from its first argument, outside of no_grad",
        )
    if not bool(total.isfinite()):
        raise ConfigError(
            "The loss is not a number.",
            seen=f"{name} gives {float(total.detach())} for outputs of 0",
            fix="look for a logarithm or a division of 0 in it",
        )

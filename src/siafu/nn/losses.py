"""Losses added up over rows: of one class, of several at once, and of numbers.

Shapes: B rows, C classes, T numbers.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from siafu.nn.own_loss import own_total

LossName = Literal["cross-entropy", "focal", "mse", "mae", "huber"]
NUMBER_LOSSES: tuple[LossName, ...] = ("mse", "mae", "huber")
CLASS_LOSSES: tuple[LossName, ...] = ("cross-entropy", "focal")
_FOCUS = 2.0
"""How fast what is told well already counts less (Lin et al., 2017)."""


def total_loss(out: Tensor, y: Tensor, loss: str, weight_C: Tensor | None = None) -> Tensor:
    """Return the sum of the losses of rows.

    `y` is int64 [B], uint8 [B, C] where several classes may hold, or floats [B, T], NaN for none.
    `weight_C` weighs classes; where several may hold, those that do against those that do not.
    """
    if ":" in loss:
        return own_total(loss, out, y)
    if y.is_floating_point():
        return _of_numbers(out, y, loss)
    if y.dim() == 1:
        return _of_classes(out, y, loss, weight_C)
    target = y.to(out.dtype)
    if loss == "cross-entropy":
        return functional.binary_cross_entropy_with_logits(
            out, target, pos_weight=weight_C, reduction="sum"
        )
    each = functional.binary_cross_entropy_with_logits(
        out, target, pos_weight=weight_C, reduction="none"
    )
    missed = torch.where(target > 0, torch.sigmoid(-out), torch.sigmoid(out))
    return (missed**_FOCUS * each).sum()


def _of_classes(out: Tensor, y: Tensor, loss: str, weight_C: Tensor | None) -> Tensor:
    if loss == "cross-entropy":
        return functional.cross_entropy(out, y, weight=weight_C, reduction="sum")
    each = functional.cross_entropy(out, y, reduction="none")
    total = (1 - torch.exp(-each)) ** _FOCUS * each
    return total.sum() if weight_C is None else (weight_C[y] * total).sum()


def _of_numbers(out: Tensor, y: Tensor, loss: str) -> Tensor:
    known = ~y.isnan()
    said, true = out[known], y[known].to(out.dtype)
    if loss == "mse":
        return functional.mse_loss(said, true, reduction="sum")
    if loss == "mae":
        return functional.l1_loss(said, true, reduction="sum")
    assert loss == "huber", f"nobody computes {loss}"
    return functional.huber_loss(said, true, reduction="sum")

"""Batch normalisation over all nodes of the graph, whoever owns them.

Shapes: N owned rows, D columns.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from siafu.nn.neighbours import Neighbours
from siafu.ops import sum_type

_ROWS_AT_ONCE = 2048
"""Whose products stay in a cache until they are added up."""


def _dot(a_ND: Tensor, b_ND: Tensor) -> Tensor:
    """Return the column sums of a b."""
    rows = _ROWS_AT_ONCE if a_ND.device.type == "cpu" else max(1, len(a_ND))
    total_D = a_ND.new_zeros(a_ND.size(1))
    for a, b in zip(a_ND.split(rows), b_ND.split(rows), strict=True):
        total_D += (a * b).sum(0)
    return total_D


class _OverNodes(torch.autograd.Function):
    """(x - mean) / deviation w + b; rows less their mean are all that backward needs."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_D: Tensor | None,
        bias_D: Tensor | None,
        neighbours: Neighbours,
        count: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean_D = neighbours.total(x_ND) / count
        centred_ND = x_ND - mean_D  # two passes, so that nothing cancels
        variance_D = neighbours.total(_dot(centred_ND, centred_ND)[None]) / count
        scale_D = torch.rsqrt(variance_D + eps)
        ctx.neighbours, ctx.count = neighbours, count
        ctx.save_for_backward(centred_ND, weight_D, scale_D)
        ctx.mark_non_differentiable(mean_D, variance_D)
        factor_D = scale_D if weight_D is None else scale_D * weight_D
        if bias_D is None:
            return centred_ND * factor_D, mean_D, variance_D
        return torch.addcmul(bias_D, centred_ND, factor_D), mean_D, variance_D

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        centred_ND, weight_D, scale_D = ctx.saved_tensors
        sum_D, along_D = grad_ND.sum(0), _dot(grad_ND, centred_ND) * scale_D
        # What the mean and the deviation do: every rank's loss depends on both.
        mean_D, slope_D = (
            ctx.neighbours.total(own_D[None]) / ctx.count for own_D in (sum_D, along_D)
        )
        factor_D = scale_D if weight_D is None else scale_D * weight_D
        out_ND = torch.addcmul(-factor_D * mean_D, centred_ND, -factor_D * scale_D * slope_D)
        out_ND.addcmul_(grad_ND, factor_D)
        _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        of_weights = along_D if needs_weight else None, sum_D if needs_bias else None
        return out_ND, *of_weights, None, None, None


def normalised(
    x_ND: Tensor,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    neighbours: Neighbours,
    *,
    count: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows normalised over the `count` rows of all ranks, and their mean and variance.

    The variance is the biased one; neither it nor the mean has a gradient of its own.
    """
    out: tuple[Tensor, Tensor, Tensor] = _OverNodes.apply(
        x_ND.to(sum_type(x_ND.dtype)), weight_D, bias_D, neighbours, count, eps
    )
    return out


class GraphBatchNorm(nn.Module):
    """What `nn.BatchNorm1d` computes for the whole graph in one process, on any number of ranks."""

    def __init__(self, like: nn.BatchNorm1d) -> None:
        super().__init__()
        self.inner = like

    def forward(self, x_ND: Tensor, neighbours: Neighbours) -> Tensor:
        """Return the normalised rows, updating the running statistics while training."""
        inner, count = self.inner, neighbours.num_nodes
        if not self.training and inner.running_mean is not None:
            return inner(x_ND.to(sum_type(x_ND.dtype)))
        out_ND, mean_D, variance_D = normalised(
            x_ND, inner.weight, inner.bias, neighbours, count=count, eps=inner.eps
        )
        if self.training and inner.running_mean is not None:
            self._update_running(mean_D, variance_D, count)
        return out_ND

    def _update_running(self, mean_D: Tensor, variance_D: Tensor, count: int) -> None:
        inner = self.inner
        assert inner.running_mean is not None
        assert inner.running_var is not None
        assert inner.num_batches_tracked is not None
        inner.num_batches_tracked += 1
        share = inner.momentum
        if share is None:
            share = 1.0 / float(inner.num_batches_tracked)
        inner.running_mean.lerp_(mean_D, share)
        inner.running_var.lerp_(variance_D * (count / max(1, count - 1)), share)

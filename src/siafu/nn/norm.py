"""Batch normalisation over all nodes of the graph, whoever owns them.

Shapes: N owned rows, D columns.
"""

import torch
from torch import Tensor, nn

from siafu.nn.neighbours import Neighbours
from siafu.ops import sum_type


def batch_statistics(x_ND: Tensor, neighbours: Neighbours, count: int) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance over the `count` rows of all ranks.

    Two passes, so that nothing cancels.
    """
    mean_D = neighbours.total(x_ND) / count
    variance_D = neighbours.total((x_ND - mean_D).square()) / count
    return mean_D, variance_D


class GraphBatchNorm(nn.Module):
    """What `nn.BatchNorm1d` computes for the whole graph in one process, on any number of ranks."""

    def __init__(self, like: nn.BatchNorm1d) -> None:
        super().__init__()
        self.inner = like

    def forward(self, x_ND: Tensor, neighbours: Neighbours) -> Tensor:
        """Return the normalised rows, updating the running statistics while training."""
        inner, x_ND = self.inner, x_ND.to(sum_type(x_ND.dtype))
        if not self.training and inner.running_mean is not None:
            return inner(x_ND)
        mean_D, variance_D = batch_statistics(x_ND, neighbours, neighbours.num_nodes)
        if self.training and inner.running_mean is not None:
            self._update_running(mean_D.detach(), variance_D.detach(), neighbours.num_nodes)
        out_ND = (x_ND - mean_D) * torch.rsqrt(variance_D + inner.eps)
        return out_ND if inner.weight is None else torch.addcmul(inner.bias, out_ND, inner.weight)

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

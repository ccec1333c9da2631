"""PyG's aggregations as sums, means, maxima, minima and softmaxes that are joined over blocks.

Shapes: S edges of a call, M rows, W width of a message.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from siafu.nn import Reduce
from siafu.strategy.pyg_refusal import refusal

_DIRECT: dict[str, Reduce] = {
    "SumAggregation": "sum",
    "MeanAggregation": "mean",
    "MaxAggregation": "max",
    "MinAggregation": "min",
}
_SMALLEST_VARIANCE = 1e-5
"""PyG's StdAggregation counts less as 0."""


class Join(Protocol):
    """Joins a layer's messages, after a change of each, over the in-edges of every row."""

    def __call__(self, change: Callable[[Tensor], Any] | None, reduce: Reduce) -> Tensor:
        """Return the joined messages; without `change` they are as the layer makes them."""
        ...


def aggregate(module: Any, join: Join, layer: nn.Module, degree_M: Tensor) -> Tensor:
    """Return what an aggregation of PyG gives, its rows first; each part of it is one walk."""
    kind = type(module).__name__ if _is_pyg(module) else ""
    if kind in _DIRECT:
        return join(None, _DIRECT[kind])
    if kind == "SoftmaxAggregation":
        return join(lambda message: _scores(module, message), "softmax")
    if kind == "VarAggregation":
        return _variance(module, join)
    if kind == "StdAggregation":
        out = _variance(module.var_aggr, join).clamp(min=_SMALLEST_VARIANCE).sqrt()
        return out.masked_fill(out <= math.sqrt(_SMALLEST_VARIANCE), 0.0)
    if kind == "MultiAggregation":
        parts = [aggregate(part, join, layer, degree_M) for part in module.aggrs]
        combined: Tensor = module.combine(parts)
        return combined
    if kind == "DegreeScalerAggregation":
        return _scaled(module, aggregate(module.aggr, join, layer, degree_M), degree_M)
    told = type(module).__name__ if module is not None else "none"
    raise refusal(
        layer, f"its aggregation ({told}) can't be joined from parts", instead="aggr='sum'"
    )


def _is_pyg(module: Any) -> bool:
    return type(module).__module__.startswith("torch_geometric.")


def _scores(module: Any, message: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores that weigh messages, column by column, and the messages."""
    t = module.t.view(-1, module.channels) if module.channels != 1 else module.t
    score = message * t
    return (score.detach() if module.semi_grad and not module.learn else score), message


def _variance(module: Any, join: Join) -> Tensor:
    # Side by side, so that rows are walked over once.
    both = join(lambda message: torch.stack([message, message * message], dim=1), "mean")
    mean, of_squares = both.unbind(dim=1)
    return (of_squares.detach() if module.semi_grad else of_squares) - mean * mean


def _scaled(module: Any, out: Tensor, degree_M: Tensor) -> Tensor:
    degree = degree_M.to(out.dtype).view(-1, *(1,) * (out.dim() - 1))
    log, least = torch.log(degree + 1), degree.clamp(min=1)
    factors = {
        "identity": lambda: torch.ones_like(degree),
        "amplification": lambda: log / module.avg_deg_log,
        "attenuation": lambda: module.avg_deg_log / torch.log(least + 1),
        "linear": lambda: degree / module.avg_deg_lin,
        "inverse_linear": lambda: module.avg_deg_lin / least,
    }
    return torch.cat([out * factors[name]() for name in module.scaler], dim=-1)

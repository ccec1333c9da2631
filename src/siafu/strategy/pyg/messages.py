"""What PyG's layers do on edges, told apart: plain messages, and aggregations joined over blocks.

A plain message is the source's row, as it is or times a number of the edge. Most convolutions send
such messages. Their sums need no rows for the gradient, so rows are fetched once instead of twice.
They are recognised by what a message does with one call's inputs.

An aggregation becomes sums, means, maxima, minima and softmaxes, each joined over the blocks.

Shapes: S edges of a call, M rows, W width of a message.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from siafu.nn import Reduce
from siafu.strategy.pyg.refusal import refusal

_DIRECT: dict[str, Reduce] = {
    "SumAggregation": "sum",
    "MeanAggregation": "mean",
    "MaxAggregation": "max",
    "MinAggregation": "min",
    "MulAggregation": "mul",
}
_SMALLEST_VARIANCE = 1e-5
"""PyG's StdAggregation counts less as 0."""
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
    if kind in _COMPOSED:
        return _COMPOSED[kind](module, join, degree_M)
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
    named = type(module).__name__ if module is not None else "none"
    raise refusal(
        layer, f"its aggregation ({named}) can't be joined from parts", instead="aggr='sum'"
    )


def _power_mean(module: Any, join: Join, degree_M: Tensor) -> Tensor:
    p = module.p.view(-1, module.channels) if module.channels != 1 else module.p
    if isinstance(p, int | float) and p == 1:
        return join(None, "mean")
    limits = {"min": module.min_value, "max": module.max_value}
    mean = join(lambda message: message.clamp(**limits).pow(p), "mean")
    return mean.clamp(**limits).pow(1.0 / p)


def _attentional(module: Any, join: Join, degree_M: Tensor) -> Tensor:
    gate = module.gate_mlp or module.gate_nn
    value = module.mlp or module.nn or (lambda message: message)

    def scored(message: Tensor) -> tuple[Tensor, Tensor]:
        values = value(message)
        scores = gate(message)
        return (scores, values) if scores.size(-1) == 1 else (scores.expand_as(values), values)

    return join(scored, "softmax")


def _deep_sets(module: Any, join: Join, degree_M: Tensor) -> Tensor:
    local, whole = module.local_mlp or module.local_nn, module.global_mlp or module.global_nn
    total = join(local, "sum")
    return total if whole is None else whole(total)


def _variance_preserving(module: Any, join: Join, degree_M: Tensor) -> Tensor:
    total = join(None, "sum")
    count = degree_M.to(total.dtype).sqrt().clamp(min=1).view(-1, *(1,) * (total.dim() - 1))
    return total / count


_COMPOSED: dict[str, Callable[[Any, Join, Tensor], Tensor]] = {
    "PowerMeanAggregation": _power_mean,
    "AttentionalAggregation": _attentional,
    "DeepSetsAggregation": _deep_sets,
    "VariancePreservingAggregation": _variance_preserving,
}


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

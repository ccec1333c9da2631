"""How gradients become steps: the optimiser, the course of its learning rate, and clipping.

Torch's own optimisers without their guards from the compiler, which load it: 1.2 s in each process.
Ops have theirs when there is a compiler (`siafu.ops.compiler_guard`). Steps of ours are never
compiled, so the optimiser needs none.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from siafu.config import ResolvedConfig

_GUARDED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def _unguarded(kind: Any) -> Any:
    """Return a class with the same numbers and the same state."""
    plain = {name: unwrap(getattr(kind, name)) for name in _GUARDED}
    # What is taken off here sets gradients aside too.
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(unwrap(kind.step))})


Adam = _unguarded(torch.optim.Adam)
AdamW = _unguarded(torch.optim.AdamW)
SGD = _unguarded(torch.optim.SGD)


def make_optimiser(
    config: ResolvedConfig, weights: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimiser that the settings name, which clips before it steps if asked to."""
    kind: Any = {"adam": Adam, "adamw": AdamW, "sgd": SGD}[config.optimizer]
    weights = list(weights)
    more: dict[str, Any] = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    if config.optimizer != "sgd" and all(weight.is_cuda for weight in weights):
        more["fused"] = True  # one launch instead of a dozen
    optimiser: torch.optim.Optimizer = kind(
        weights, lr=config.lr, weight_decay=config.weight_decay, **more
    )
    longest = config.clip_norm
    if longest is not None:
        optimiser.register_step_pre_hook(lambda *_: _clip(optimiser, longest))
    return optimiser


def _clip(optimiser: torch.optim.Optimizer, longest: float) -> None:
    """Shorten the gradient of all weights together.

    Every rank has the sum over all ranks by now, so each finds the same length.
    """
    weights: list[Tensor] = [w for group in optimiser.param_groups for w in group["params"]]
    nn.utils.clip_grad_norm_(weights, longest)


@contextmanager
def at_rate_of(
    optimiser: torch.optim.Optimizer, config: ResolvedConfig, epoch: int
) -> Iterator[None]:
    """Have the optimiser step at the learning rate of an epoch; checkpoints keep the full one."""
    for group in optimiser.param_groups:
        group["lr"] = config.lr * rate_factor(config, epoch)
    try:
        yield
    finally:
        for group in optimiser.param_groups:
            group["lr"] = config.lr


def rate_factor(config: ResolvedConfig, epoch: int) -> float:
    """Return the share of the learning rate in an epoch, the first of which is 1."""
    if epoch <= config.warmup:
        return epoch / (config.warmup + 1)
    done = (epoch - config.warmup - 1) / max(1, config.epochs - config.warmup)
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "linear":
        return 1 - done
    return 0.1 ** ((done >= 0.5) + (done >= 0.75)) if config.schedule == "step" else 1.0

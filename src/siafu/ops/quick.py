"""Ops called without torch's dispatcher, which takes longer than a small kernel does.

A custom op is there for `torch.compile`, which sees one call. Outside of it the same functions run
as a plain `autograd.Function`: some 20 us a call on the host instead of some 200.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def quick(
    op: Callable[..., Any],
    compute: Callable[..., Any],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., tuple[Any, ...]],
) -> Callable[..., Any]:
    """Return what `op` computes, differentiable as it is; no tensor may be in a list.

    `save` is what the op is registered with; `backward` too, but that it is given what to call for
    the same computation on gradients.
    """

    class Quick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            out = compute(*(_without_history(value) for value in inputs))
            save(ctx, inputs, out)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(call, ctx, *grads)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*inputs)
        if not needs_gradient(inputs):
            return compute(*inputs)
        return Quick.apply(*inputs)

    return call


def needs_gradient(values: tuple[Any, ...]) -> bool:
    """Return whether what is made of these is to have a gradient."""
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )


def _without_history(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value

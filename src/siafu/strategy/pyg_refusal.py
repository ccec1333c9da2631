"""What is said of a PyG layer that can't be carried out in stages, and what finds it out."""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from siafu.errors import PlanError


def message_passing_class(layer: nn.Module) -> type | None:
    """Return PyG's MessagePassing where a layer is one; PyG itself need not be installed."""
    for kind in type(layer).__mro__:
        if kind.__name__ == "MessagePassing" and kind.__module__.startswith("torch_geometric."):
            return kind
    return None


def refusal(layer: nn.Module, why: str, *, instead: str = "a convolution that splits") -> PlanError:
    """Return what to raise: this layer's work can't be split into blocks."""
    return PlanError(
        "A layer can't be carried out in stages.",
        seen=f"{type(layer).__name__}: {why}",
        fix=f"use stages=1 (strategy 'halo'), or {instead}",
    )


def softmax_refusal(layer: nn.Module) -> PlanError:
    """Return what to raise where a message looks beyond its own edge."""
    return refusal(
        layer,
        "its message works on all in-edges of a vertex at once, as a softmax over them does",
        instead="GATConv, GATv2Conv or TransformerConv, whose softmax is split",
    )


class WholeOnly:
    """Stands for what exists only where all in-edges are at hand; any use of it is refused."""

    def __init__(self, layer: nn.Module) -> None:
        self.__dict__.update(_layer=layer)

    def _refuse(self) -> NoReturn:
        raise softmax_refusal(self._layer)

    def __getattr__(self, name: str) -> Any:
        self._refuse()

    def __index__(self) -> int:
        self._refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse on behalf of the first one among the arguments."""
        given = (*args, *(kwargs or {}).values())
        next(value for value in given if isinstance(value, cls))._refuse()


def check_splits(layer: nn.Module, edge_index: Any) -> None:
    """Raise unless a layer leaves to `message` and an aggregation what it does on edges."""
    kind: Any = type(layer)
    base: Any = message_passing_class(layer)
    if layer.flow != "source_to_target":
        raise PlanError(
            "A layer adds up at the sources of edges, most of which live on other ranks.",
            seen=f"{kind.__name__} with flow={layer.flow!r}",
            fix="use flow='source_to_target'",
        )
    if layer.explain:
        raise refusal(layer, "it is being explained, which needs a message for every edge at once")
    # PyG compiles `propagate` from a template, into modules whose names end so.
    if kind.propagate is not base.propagate and not kind.propagate.__module__.endswith(
        "_propagate"
    ):
        raise refusal(layer, "it has a `propagate` of its own")
    if kind.aggregate is not base.aggregate:
        raise refusal(
            layer, "it has an `aggregate` of its own", instead="aggr='sum', 'mean', 'max'"
        )
    for step in ("message", "aggregate", "message_and_aggregate"):
        for when in ("forward_pre_hooks", "forward_hooks"):
            if getattr(layer, f"_{step}_{when}"):
                raise refusal(layer, f"it has hooks on `{step}`", instead="hooks on `propagate`")
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        raise refusal(layer, "its edges are a sparse matrix", instead="edges as a [2, E] tensor")

"""Foreign modules that ranks can't carry out: exactly at all, or in stages; refused by name.

The former are refused before anything is computed, the latter when the layer is run.
"""

import contextlib
import threading
from collections.abc import Iterator
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint

from siafu.errors import PlanError
from siafu.nn.precision import widened_message

_MIXES_ALL_ROWS = {
    "GraphNorm": "nn.BatchNorm1d",
    "InstanceNorm": "nn.BatchNorm1d",
    "InstanceNorm1d": "nn.BatchNorm1d",
    "PairNorm": "nn.BatchNorm1d",
    "MeanSubtractionNorm": "nn.BatchNorm1d",
    "GraphSizeNorm": "nn.BatchNorm1d",
    "DiffGroupNorm": "nn.BatchNorm1d",
    "HeteroBatchNorm": "nn.BatchNorm1d",
    "TopKPooling": "a node-level model",
    "SAGPooling": "a node-level model",
    "ASAPooling": "a node-level model",
    "GPSConv": "convolutions over edges",
    "MultiheadAttention": "convolutions over edges",
    "PerformerAttention": "convolutions over edges",
    "SGFormerAttention": "convolutions over edges",
    "PolynormerAttention": "convolutions over edges",
    # Its energy is a mean over all rows, and so are the steps it takes down the gradient.
    "EquilibriumAggregation": "aggr.Set2Set or aggr.DeepSetsAggregation",
}
"""Modules whose output mixes rows of all nodes otherwise than over edges, and what to use."""

_PADS_ALIKE = frozenset({"MLPAggregation", "SortAggregation"})
"""Aggregations of PyG that pad to a number of their own, or leave no trace of padding."""


def refuse_inexact(model: nn.Module) -> None:
    """Raise where a module of the model gives on ranks something else than in one process."""
    for name, child in model.named_modules():
        kind, place = type(child).__name__, name or "the model"
        if instead := _instead_of_mixing(child):
            raise PlanError(
                "A module mixes the rows of all nodes, which ranks can't do exactly.",
                seen=f"{place} is a {kind}",
                fix=f"use {instead} instead",
            )
        if _pads_to_largest_degree(child):
            raise PlanError(
                "An aggregation depends on the largest number of in-edges, which ranks do not "
                "share.",
                seen=f"{place} is a {kind}, which pads the in-edges of every node to that number",
                fix="use aggr='mean', 'max' or 'softmax', or aggr.Set2Set instead",
            )
        if "DirGNNConv" in _lineage(child):
            raise PlanError(
                "A layer adds up at the sources of edges, most of which live on other ranks.",
                seen=f"{place} is a {kind}, which follows edges both ways",
                fix="use its inner convolution, on a graph with both directions (--undirected)",
            )
        if "InvertibleModule" in _lineage(child):
            raise _recomputes(f"{place} is a {kind}")


def _lineage(module: nn.Module) -> set[str]:
    """Return the names of a module's class and of all that it is derived from."""
    return {kind.__name__ for kind in type(module).__mro__}


def _instead_of_mixing(module: nn.Module) -> str | None:
    if "LayerNorm" in _lineage(module) and getattr(module, "mode", "node") == "graph":
        return "LayerNorm(mode='node')"
    known = _lineage(module) & _MIXES_ALL_ROWS.keys()
    return _MIXES_ALL_ROWS[min(known)] if known else None


def _pads_to_largest_degree(module: nn.Module) -> bool:
    """True of PyG's aggregations over neighbours in a row, and of a user's made like them."""
    if "Aggregation" not in _lineage(module) or type(module).__name__ in _PADS_ALIKE:
        return False
    forwards = [vars(kind)["forward"] for kind in type(module).__mro__ if "forward" in vars(kind)]
    codes = [getattr(getattr(f, "__wrapped__", f), "__code__", None) for f in forwards]
    return any(code is not None and "to_dense_batch" in code.co_names for code in codes)


def _recomputes(seen: str) -> PlanError:
    return PlanError(
        "A model recomputes layers in backward, where rows of other ranks are out of reach.",
        seen=seen,
        fix="call the layers without checkpoints (ckpt_grad=False); --strategy sar saves memory "
        "by fetching rows again",
    )


_watched = threading.local()


@contextlib.contextmanager
def refusing_checkpoints() -> Iterator[None]:
    """Raise where code inside, on this thread, calls torch's checkpoints.

    Their recomputation would run outside of `RankMode`: without halo rows, with other dropout.
    """
    _install()
    _watched.is_on = True
    try:
        yield
    finally:
        _watched.is_on = False


def _install() -> None:
    # What `checkpoint` calls, not itself: users import that by name.
    if not hasattr(torch_checkpoint, "_siafu_watches"):
        inner = "_checkpoint_without_reentrant_generator"
        setattr(torch_checkpoint, inner, _refusing(getattr(torch_checkpoint, inner)))
        reentrant: Any = torch_checkpoint.CheckpointFunction
        reentrant.forward = staticmethod(_refusing(reentrant.forward))
        torch_checkpoint._siafu_watches = True  # type: ignore[attr-defined]


def _refusing(function: Any) -> Any:
    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if getattr(_watched, "is_on", False):
            raise _recomputes("the model calls torch.utils.checkpoint")
        return function(*args, **kwargs)

    return watched


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
        "its message works on all in-edges of a node at once, otherwise than by one `softmax`",
        instead="import softmax from torch_geometric.utils and call it once in `message`",
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
            hooks = getattr(layer, f"_{step}_{when}").values()
            if any(hook is not widened_message for hook in hooks):
                raise refusal(layer, f"it has hooks on `{step}`", instead="hooks on `propagate`")
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        raise refusal(layer, "its edges are a sparse matrix", instead="edges as a [2, E] tensor")

"""What the forward of a user's own model is given beside `x` and `edge_index`, everywhere alike."""

import inspect
from collections.abc import Collection, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from siafu.errors import PlanError
from siafu.shard import Shard

EdgeArgument = Literal["edge_weight", "edge_attr", "edge_type"]
_EDGE_ARGUMENTS: tuple[EdgeArgument, ...] = get_args(EdgeArgument)

_HOW_TO_HAVE = {
    "edge_weight": "name the column of weights (`siafu ingest --edge-weight COLUMN`)",
    "edge_attr": "name the columns of edge features (`siafu ingest --edge-attr COLUMN`)",
    "edge_type": "name the column of types (`siafu ingest --edge-type COLUMN`)",
}


def edge_arguments(module: nn.Module, shard: Shard) -> tuple[EdgeArgument, ...]:
    """Return what the model is given of the edges: all that it names and the graph has.

    An argument with a default is given where the graph has it, as on the whole graph so in every
    minibatch; `**kwargs` is given nothing.
    """
    named = inspect.signature(module.forward).parameters
    return tuple(
        name for name in _EDGE_ARGUMENTS if name in named and shard.reader(name) is not None
    )


def unread_of_edges(module: nn.Module, shard: Shard) -> list[EdgeArgument]:
    """Return what the graph has of its edges and the model's forward does not name."""
    named = inspect.signature(module.forward).parameters
    has = [name for name in _EDGE_ARGUMENTS if shard.reader(name) is not None]
    return [name for name in has if name not in named]


def as_given(module: nn.Module, columns: Mapping[EdgeArgument, Tensor | None]) -> dict[str, Tensor]:
    """Return the columns as a model's layers take them: types as int64, absent ones left out.

    Numbers are float64 where the model's weights are.
    """
    kinds = {weight.dtype for weight in module.parameters() if weight.is_floating_point()}
    is_double = kinds == {torch.float64}
    found = {name: column for name, column in columns.items() if column is not None}
    return {
        name: column.long() if name == "edge_type" else (column.double() if is_double else column)
        for name, column in found.items()
    }


def check_forward(module: nn.Module, given: Collection[str], graph: str) -> None:
    """Raise unless the model can be called with `x`, `edge_index` and what is given of edges."""
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes = f"{type(module).__name__}.forward({', '.join(str(p.name) for p in parameters)})"
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise PlanError(
            "The model's forward does not take features and edges.",
            seen=takes,
            fix="let it begin with forward(self, x, edge_index)",
        )
    rest = [p for p in parameters if p not in positional[:2]]
    required = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in required if p.default is p.empty and p.name not in given]
    if missing:
        name = missing[0]
        has = _HOW_TO_HAVE.get(name)
        raise PlanError(
            f"The model's forward requires {name}, which "
            + ("the graph does not have." if has else "it is not given."),
            seen=f"{takes} on {graph}",
            fix=(f"{has}, or " if has else "") + f"give it a default: {name}=None",
        )

"""A model of the user's own: finding it, making it, and what it must give back."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from siafu.config import RunConfig
from siafu.errors import ConfigError
from siafu.nn.named_code import named_object
from siafu.nn.options import OWN_ARGUMENTS


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeFacts:
    """What a model may have to know of the edges when it is made."""

    width: int = 0
    """Features of an edge; 0 for none."""
    num_types: int = 0


@dataclass(frozen=True, slots=True)
class OutputShape:
    """What a model gives for each node: rows of `width` numbers; None lets it be any."""

    width: int | None
    what: str = "classes"
    """What the numbers are of."""

    def checked(self, out: Any, num_rows: int, module: nn.Module) -> Tensor:
        """Return the output of a model on `num_rows` nodes; raise where it can't be trained on."""
        name = type(module).__name__
        fix = f"let {name}.forward return one tensor [nodes, {self.width or 'width'}] of floats"
        if not isinstance(out, Tensor):
            raise ConfigError("The model gives no tensor.", seen=_shown(name, out), fix=fix)
        if out.dim() != 2 or not out.is_floating_point():
            raise ConfigError(
                "The model gives no rows of numbers.", seen=_shown(name, out), fix=fix
            )
        if len(out) != num_rows:
            raise ConfigError(
                "The model does not give one row for each node.",
                seen=f"{len(out)} rows of {name} for {num_rows} nodes",
                fix=f"{fix}, in the order of x",
            )
        if self.width is not None and out.size(1) != self.width:
            raise ConfigError(
                f"The model's output is not as wide as the graph has {self.what}.",
                seen=f"{out.size(1)} columns of {name}, {self.width} {self.what}",
                fix=f"let it take out_channels and end in rows of that width ({self.width} here)",
            )
        if torch.is_grad_enabled() and module.training and not out.requires_grad:
            raise ConfigError(
                "The model's output does not depend on its weights.",
                seen=f"{name}.forward gives a tensor without a gradient",
                fix="compute it from parameters that require gradients, outside of no_grad",
            )
        return out


def _shown(name: str, out: Any) -> str:
    if not isinstance(out, Tensor):
        return f"{name} gives a {type(out).__name__}"
    return f"{name} gives a tensor {list(out.shape)} of {str(out.dtype).removeprefix('torch.')}"


OFFERED = ("in_channels", "out_channels", *OWN_ARGUMENTS.values(), "edge_dim", "num_relations")
"""All that a class may take; the last two where edges have features or types."""


def _own_class(config: RunConfig) -> Any:
    factory = named_object(config.model)
    if not callable(factory):
        raise ConfigError(
            "The model has no such class.", seen=config.model, fix="check the name after the colon"
        )
    return factory


def arguments_taken(config: RunConfig) -> Collection[str]:
    """Return the names of what the user's own class takes."""
    return inspect.signature(_own_class(config)).parameters


def own_model(
    config: RunConfig, in_width: int, out_width: int, edges: EdgeFacts | None = None
) -> nn.Module:
    """Return an instance of the class that `FILE.py:Class` or `package.module:Class` names.

    Where the class has a default for a setting, that counts unless the setting was asked for.
    """
    factory = _own_class(config)
    offered: dict[str, Any] = {"in_channels": in_width, "out_channels": out_width}
    settings = {key: getattr(config, name) for name, key in OWN_ARGUMENTS.items()}
    asked = {key for name, key in OWN_ARGUMENTS.items() if name in config.model_fields_set}
    if config.chosen.unit == "macrobatch":  # as many hops are sampled
        asked.add("num_layers")
    if edges is not None and edges.width:
        offered["edge_dim"] = edges.width
    if edges is not None and edges.num_types:
        offered["num_relations"] = edges.num_types
    model = _made(factory, offered | settings, set(settings) - asked, config.model)
    if not isinstance(model, nn.Module):
        raise ConfigError("Not a torch module.", seen=config.model, fix="name an nn.Module class")
    _check_weights(model, config.model)
    return model


def _made(factory: Any, offered: dict[str, Any], unsaid: set[str], model: str) -> Any:
    """Return what the factory makes of what it takes; of the `unsaid` what it has to be given."""
    accepted = inspect.signature(factory).parameters.values()
    named = [p for p in accepted if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in named if p.default is p.empty or p.name not in unsaid]
    chosen = {name: offered[name] for name in needed if name in offered}
    missing = [p.name for p in named if p.default is p.empty and p.name not in chosen]
    if missing:
        raise ConfigError(
            "The model can't be made.",
            seen=f"{model} requires {', '.join(missing)}",
            fix=f"let it take some of {', '.join(offered)}; others need defaults",
        )
    return factory(**chosen)


def as_given(model: nn.Module, file: Path) -> nn.Module:
    """Return a model with the weights of the instance that the user gave; raise if they differ."""
    state = load_file(file)
    check_shapes(model, {name: list(tensor.shape) for name, tensor in state.items()})
    model.load_state_dict(state)
    return model


def check_shapes(model: nn.Module, given: dict[str, list[int]]) -> None:
    """Raise where a model that was made again differs from the user's instance."""
    name = type(model).__name__
    made = {place: list(tensor.shape) for place, tensor in model.state_dict().items()}
    place = next((p for p in {**given, **made} if given.get(p) != made.get(p)), None)
    if place is not None:
        raise ConfigError(
            "The instance can't be made again on its ranks.",
            seen=f"{place} is {_size(given, place)} in it, {_size(made, place)} in the {name} that "
            "is made of what it keeps, of this data and of its defaults",
            fix="keep its arguments in __init__ under their names (self.width = width); or give "
            f"the class, or a function: def make(in_channels, out_channels): return {name}(...)",
        )


def _size(shapes: dict[str, list[int]], place: str) -> str:
    return str(shapes[place]) if place in shapes else "missing"


def _check_weights(model: nn.Module, name: str) -> None:
    lazy = [place for place, weight in model.named_parameters() if is_lazy(weight)]
    if lazy:
        # Their shape comes with the first batch; ranks would draw unlike weights, or none.
        raise ConfigError(
            "The model's widths must be known when it is made.",
            seen=f"{lazy[0]} of {name} takes its shape from the first input",
            fix="let the class take in_channels and pass it on, instead of -1",
        )
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigError(
            "The model has nothing to train.",
            seen=f"{name} has no parameters that require gradients",
            fix="make its layers in __init__, as attributes (or in an nn.ModuleList)",
        )


class WholeNetwork(Protocol):
    """What infers over the whole graph."""

    @property
    def wanted(self) -> OutputShape:
        """What the model must give."""
        ...

    def logits(self) -> Tensor:
        """Return one row of scores for each owned node."""
        ...

    def embeddings(self) -> Tensor:
        """Return one hidden row for each owned node."""
        ...

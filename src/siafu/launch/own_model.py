"""A model or a loss given as an object: as a setting, and as files of the run."""

import inspect
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from siafu.config import RunConfig
from siafu.engine import OFFERED, check_shapes
from siafu.errors import ConfigError
from siafu.graph import writing
from siafu.launch.own_code import is_library, trust_named
from siafu.launch.source import code_of
from siafu.record import RunFolder

_SCRATCH = "siafu-model-"
_CODE, _START = "model_code.py", "start.safetensors"
_OF_DATA = ("in_channels", "out_channels")


@contextmanager
def model_named(model: Any) -> Iterator[str]:
    """Yield the setting for a model; what is not a name lies in files while inside."""
    if isinstance(model, str):
        yield model
        return
    if not isinstance(model, type | nn.Module | FunctionType):
        raise ConfigError(
            "This is no model.",
            seen=f"model={model!r}"[:200],
            fix="give a name, FILE.py:Class, a class, or an instance of torch.nn.Module",
        )
    kind = type(model) if isinstance(model, nn.Module) else model
    if not isinstance(model, nn.Module) and is_library(kind.__module__):
        yield f"{kind.__module__}:{kind.__name__}"
        return
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch:
        code = Path(scratch) / _CODE
        if isinstance(model, nn.Module):
            code.write_text(_code_of_instance(model))
            state = model.state_dict().items()
            save_file(
                {name: tensor.cpu().contiguous().clone() for name, tensor in state},
                code.with_name(_START),
            )
            yield f"{code}:{_function(kind)}"
        else:
            code.write_text(code_of(kind))
            yield f"{code}:{kind.__name__}"


@contextmanager
def loss_named(loss: Any) -> Iterator[str | None]:
    """Yield the setting for a loss; a function's source lies in a file while inside."""
    if loss is None or isinstance(loss, str):
        yield loss
        return
    if not isinstance(loss, FunctionType):
        raise ConfigError(
            "This is no loss.",
            seen=f"loss={loss!r}"[:200],
            fix="give a name, FILE.py:function, or a function of outputs and targets",
        )
    if is_library(loss.__module__):
        yield f"{loss.__module__}:{loss.__name__}"
        return
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch:
        code = Path(scratch) / "loss_code.py"
        code.write_text(code_of(loss))
        yield f"{code}:{loss.__name__}"


def is_given(model: str) -> bool:
    """Return whether a setting names code that was given as an object, not by its name."""
    return Path(model.rpartition(":")[0]).parent.name.startswith(_SCRATCH)


def settled(config: RunConfig, folder: RunFolder) -> RunConfig:
    """Return the settings with the files of code that was given as an object in the run."""
    places: dict[str, str] = {}
    for setting in ("model", "loss"):
        given = getattr(config, setting) or ""
        if is_given(given):
            place, _, name = given.rpartition(":")
            with writing(folder.path):
                for file in Path(place).parent.iterdir():
                    shutil.copyfile(file, folder.path / file.name)
            places[setting] = f"{(folder.path / Path(place).name).absolute()}:{name}"
            trust_named(places[setting])
    return config.model_copy(update=places)


def _function(kind: Any) -> str:
    """Return the name of the function that makes a model like the instance that was given."""
    return f"{kind.__name__}_as_given"


def _code_of_instance(model: nn.Module) -> str:
    """Return code that makes the instance again: its class, its arguments, its weights."""
    kind = type(model)
    imported = f"from {kind.__module__} import {kind.__name__}\n"
    given, asked = _arguments(model)
    call = [f"{name}={value!r}" for name, value in given.items()]
    call += [f"{name}={name}" for name in asked]
    return f"""from pathlib import Path

from siafu.engine import as_given

{imported if is_library(kind.__module__) else code_of(kind)}

def {_function(kind)}({", ".join(asked)}):
    model = {kind.__name__}({", ".join(call)})
    return as_given(model, Path(__file__).with_name({_START!r}))
"""


def _arguments(model: nn.Module) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a class as its instance keeps them, and those that siafu passes.

    Others are taken to be what their defaults are.
    """
    given: dict[str, Any] = {}
    asked = []
    for one in inspect.signature(type(model)).parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        value = getattr(model, one.name, one.empty)
        value = value.p if isinstance(value, nn.Dropout) else value
        if isinstance(value, int | float | str | None):
            given[one.name] = value
        elif one.name in OFFERED and (one.default is one.empty or one.name in _OF_DATA):
            asked.append(one.name)
        elif one.default is one.empty:
            raise ConfigError(
                "The instance can't be made again on its ranks.",
                seen=f"{type(model).__name__} requires {one.name}, which it does not keep",
                fix=f"keep it in __init__ (self.{one.name} = {one.name}), or give the class",
            )
    if not asked:
        with torch.random.fork_rng(devices=[]):
            again = type(model)(**given)
        check_shapes(again, {name: list(part.shape) for name, part in model.state_dict().items()})
    return given, asked

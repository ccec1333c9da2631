"""Flags made from settings, so that both have the same names, help and limits."""

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from siafu.config import RunConfig, owner_of


def with_settings(command: Any, names: Sequence[str]) -> Any:
    """Return the command with one option for each setting, in place of its `**flags`."""
    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=option_of(name, panel=owner_of(name).panel),
        )
        for name in names
    ]
    return with_parameters(command, made)


def with_parameters(command: Any, made: Sequence[inspect.Parameter]) -> Any:
    """Return the command with these parameters in place of its `**flags`."""
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    command.__signature__ = signature.replace(parameters=[*own, *made])
    command.__annotations__ = {p.name: p.annotation for p in [*own, *made]}
    return command


def option_of(name: str, *, panel: str, hidden: bool = False) -> Any:
    """Return the annotation of the flag that sets this setting."""
    field = RunConfig.model_fields[name]
    note = "" if field.default is None else f" (default: {str(field.default).lower()})"
    option: OptionInfo = typer.Option(
        help=f"{field.description}{note}",
        show_default=False,
        hidden=hidden,
        rich_help_panel=panel,
    )
    # A switch is one on the command line, whatever else files may say.
    annotation: Any = bool if bool in get_args(field.annotation) else field.annotation
    return Annotated[annotation | None, option]


def given_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings whose flags were typed."""
    return {name: value for name, value in flags.items() if value is not None}

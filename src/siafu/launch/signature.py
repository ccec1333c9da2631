"""Signatures that tell every setting: what IPython completes, and `help` shows."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from siafu.config import RunConfig

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def with_settings(settings: type) -> Callable[[AnyFunction], AnyFunction]:
    """Have a function's signature name what its `**` takes: the fields of a TypedDict."""

    def named(function: AnyFunction) -> AnyFunction:
        plain = inspect.signature(function)
        own = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=RunConfig.model_fields[name].default,
                annotation=kind,
            )
            for name, kind in get_type_hints(settings).items()
        ]
        function.__signature__ = plain.replace(parameters=own + more)  # type: ignore[attr-defined]
        return function

    return named

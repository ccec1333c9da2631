"""Signatures that tell every setting: what IPython completes, and `help` shows."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_type_hints

from siafu.config import RunConfig
from siafu.launch.python_words import speaking_python

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def with_settings(settings: type) -> Callable[[AnyFunction], AnyFunction]:
    """Have a function's signature name what its `**` takes, the fields of a TypedDict, and its
    errors name them as arguments."""

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

        @functools.wraps(function)
        def called(*arguments: Any, **settings: Any) -> Any:
            with speaking_python():
                return function(*arguments, **settings)

        called.__signature__ = plain.replace(parameters=own + more)  # type: ignore[attr-defined]
        return cast("AnyFunction", called)

    return named

"""Code of the user's own by name: FILE.py:Name, or package.module:Name."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from siafu.errors import ConfigError


def named_object(name: str, what: str = "model") -> Any:
    """Return the class or function that a name leads to; None where its module has none such.

    What the module's own code raises is the user's, and goes up as it is.
    """
    place, _, inner = name.rpartition(":")
    return getattr(_module_at(place, name, what), inner, None)


def _module_at(place: str, name: str, what: str) -> Any:
    if not place.endswith(".py"):
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)  # as `python -m` does for ranks of their own
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not error.name or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise no_such_file(name, str(error), what) from error
    if not Path(place).is_file():
        raise no_such_file(name, "no such file", what)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # From the file itself: bytecode beside it may be of something else than was looked at.
    try:
        code = compile(Path(place).read_bytes(), place, "exec")
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError) and error.filename:
            raise
        raise ConfigError(
            f"The {what}'s file is no Python source.",
            seen=f"{place}: {error}",
            fix="name a file of Python code in UTF-8",
        ) from error
    exec(code, module.__dict__)
    return module


def no_such_file(name: str, why: str, what: str = "model") -> ConfigError:
    """Return the error for code of the user's own that is not where it should be."""
    kind = "Class" if what == "model" else "function"
    return ConfigError(
        f"The {what}'s file can't be loaded.",
        seen=f"{name}: {why}",
        fix=f"give FILE.py:{kind}, or package.module:{kind}",
    )

"""Code of the user's own by name: FILE.py:Name, or package.module:Name."""

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from siafu.errors import ConfigError, did_you_mean


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


def check_name_in_file(name: str, what: str = "model") -> None:
    """Raise where a FILE.py:Class can't define the class, found without running the file.

    What can't be told so, as names that another module brings, is left to those who run it.
    """
    place, _, inner = name.rpartition(":")
    tree = _tree_of(place)
    if tree is None:
        return
    defined, bound = _defined(tree, what), _bound_names(tree)
    if bound is not None and inner not in bound:
        kind = "class" if what == "model" else "function"
        raise ConfigError(
            f"The {what}'s file has no such {kind}.",
            seen=f"{name}{did_you_mean(inner, defined)}",
            fix=f"{place} has: {', '.join(defined)}" if defined else f"write {inner} in {place}",
        )


def defined_in(place: str, what: str = "model") -> list[str]:
    """Return the classes, or functions, that a file defines, found without running it."""
    tree = _tree_of(place)
    return [] if tree is None else _defined(tree, what)


def forward_takes(name: str) -> list[str]:
    """Return what the forward of a FILE.py:Class takes by name, found without running the file.

    Nothing where the text of the class does not tell, as where it inherits its forward.
    """
    place, _, inner = name.rpartition(":")
    tree = _tree_of(place)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == inner:
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name == "forward":
                    return [found.arg for found in (*one.args.args, *one.args.kwonlyargs)]
    return []


def _tree_of(place: str) -> ast.Module | None:
    if not place.endswith(".py"):
        return None
    try:
        return ast.parse(Path(place).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def _defined(tree: ast.Module, what: str) -> list[str]:
    kinds = ast.ClassDef if what == "model" else ast.FunctionDef
    return [node.name for node in tree.body if isinstance(node, kinds)]


def _bound_names(tree: ast.Module) -> set[str] | None:
    """Return the names that a module may have; None where its text does not tell them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return None if found & {"*", "__getattr__", "globals", "setattr", "exec"} else found


def no_such_file(name: str, why: str, what: str = "model") -> ConfigError:
    """Return the error for code of the user's own that is not where it should be."""
    kind = "Class" if what == "model" else "function"
    return ConfigError(
        f"The {what}'s file can't be loaded.",
        seen=f"{name}: {why}",
        fix=f"give FILE.py:{kind}, or package.module:{kind}",
    )

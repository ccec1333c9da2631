"""Code of a notebook or script as a file that ranks can run: a class or function and what it uses.

Ranks are processes of their own, so a class of `__main__` reaches them as source: its own, that of
the user's functions and classes it names, the imports and the constants. Nothing is pickled, and
what has no source, as a tensor that a method reads from outside, is refused by name.
"""

import ast
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from siafu.errors import ConfigError
from siafu.launch.own_code import is_library

_FIX = "put it into a file and give FILE.py:NAME"


class SourceError(ConfigError):
    """Code that can't be handed to ranks as source."""


def code_of(thing: type | Callable[..., Any]) -> str:
    """Return a module's text that defines a class or a function of the user's."""
    return _Collector().collected(thing)


class _Collector:
    """Definitions that depend on each other, each once and after those it needs."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.known: dict[str, Any] = {}

    def collected(self, thing: Any) -> str:
        self._define(thing.__name__, thing)
        return (
            "\n".join(sorted(set(self.imports.values())))
            + "\n\n\n"
            + "\n\n".join(self.parts.values())
        )

    def _define(self, name: str, thing: Any) -> None:
        if name in self.known:
            if self.known[name] is not thing:
                raise SourceError(
                    "Two things in the model's code have one name.",
                    seen=name,
                    fix=f"rename one of them, or {_FIX}",
                )
            return
        self.known[name] = thing
        source, around = _source(thing), _namespace(thing)
        for used in _outer_names(source):
            if used != name and used in around:
                self._bring(used, around[used], thing)
        for module, chain in _dotted(source, around):
            _import_chain(self.imports, module, chain)
        self.parts[name] = source.rstrip() + "\n"

    def _bring(self, name: str, value: Any, user: Any) -> None:
        """Have a name that a definition uses defined before it."""
        if isinstance(value, ModuleType):
            if not is_library(value.__name__):
                raise SourceError(
                    "The model uses a module of yours, which its ranks may not find.",
                    seen=f"{user.__qualname__} uses {value.__name__}",
                    fix=f"import the names it uses from there one by one, or {_FIX}",
                )
            self.imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, type | FunctionType) or hasattr(value, "__module__"):
            home = sys.modules.get(getattr(value, "__module__", None) or "")
            inner = getattr(value, "__name__", name)
            if home is not None and is_library(home.__name__):
                if getattr(home, inner, None) is value:
                    self.imports[name] = f"from {home.__name__} import {inner} as {name}"
                    return
            elif isinstance(value, type | FunctionType) and inner == name:
                self._define(name, value)
                return
            raise _not_source(name, value, user)
        elif _is_plain(value):
            self.known[name] = value
            self.parts[name] = f"{name} = {value!r}\n"
        else:
            raise _not_source(name, value, user)


def _not_source(name: str, value: Any, user: Any) -> SourceError:
    return SourceError(
        "The model's code uses something that can't be handed to its ranks.",
        seen=f"{user.__qualname__} reads {name}, a {type(value).__name__}",
        fix=f"make it in __init__, or a buffer of the module; or {_FIX}",
    )


def _is_plain(value: Any) -> bool:
    """Return whether the text of a value makes it again."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError):
        return False


def _functions(thing: Any) -> list[FunctionType]:
    """Return the functions that a class or function is defined with."""
    if isinstance(thing, FunctionType):
        return [thing]
    inside = (getattr(value, "__func__", value) for value in vars(thing).values())
    return [f for f in inside if isinstance(f, FunctionType) and f.__module__ == thing.__module__]


def _namespace(thing: Any) -> dict[str, Any]:
    """Return what the names around a definition mean."""
    found: dict[str, Any] = dict(vars(sys.modules.get(thing.__module__, ModuleType(""))))
    for function in _functions(thing):
        found |= function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if name != "__class__":
                found[name] = cell.cell_contents
    return found


def _source(thing: Any) -> str:
    """Return the text of a definition, from a file or from a cell of a notebook."""
    try:
        if isinstance(thing, FunctionType):
            text = textwrap.dedent(inspect.getsource(thing))
            is_whole = isinstance(ast.parse(text).body[0], ast.FunctionDef)
            return text if is_whole else _no_source(thing)
        return _class_source(thing)
    except (OSError, TypeError, SyntaxError):
        return _no_source(thing)


def _class_source(thing: type) -> str:
    """Return the text of a class; notebooks know that of its methods alone."""
    functions = _functions(thing)
    if not functions:
        return textwrap.dedent(inspect.getsource(thing))
    code = functions[0].__code__
    lines = linecache.getlines(code.co_filename, functions[0].__globals__)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or 0):
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    return _no_source(thing)


def _no_source(thing: Any) -> str:
    name = getattr(thing, "__qualname__", repr(thing))
    raise SourceError(
        "The source of the model's code can't be found.",
        seen=f"{name} of {getattr(thing, '__module__', 'nowhere')}",
        fix=f"define it with class or def in a cell or a script, or {_FIX}",
    )


def _outer_names(source: str) -> list[str]:
    """Return the names that a definition takes from around it."""
    top = symtable.symtable(source, "<own>", "exec")
    found: dict[str, None] = {}

    def walk(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            is_outer = symbol.is_global() or (table is top and symbol.is_referenced())
            if is_outer or symbol.is_free():
                found[symbol.get_name()] = None
        for child in table.get_children():
            walk(child)

    walk(top)
    return list(found)


def _dotted(source: str, around: dict[str, Any]) -> Iterator[tuple[ModuleType, list[str]]]:
    """Yield the modules that a definition names, each with the attributes it goes on by."""
    for node in ast.walk(ast.parse(source)):
        chain: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.insert(0, inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name):
            module = around.get(inner.id)
            if isinstance(module, ModuleType):
                yield module, chain


def _import_chain(imports: dict[str, str], module: ModuleType, chain: list[str]) -> None:
    """Have submodules imported that are reached as attributes of their package."""
    path = module.__name__
    for attribute in chain:
        path = f"{path}.{attribute}"
        if path not in sys.modules:
            return
        imports[path] = f"import {path}"

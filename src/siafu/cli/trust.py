"""Asking before Python is run that a folder or a file of settings names."""

import sys
from collections.abc import Callable
from typing import TypeVar

import typer

from siafu.cli.show import say
from siafu.launch.own_code import UntrustedModelError

_Made = TypeVar("_Made")


def confirmed(call: Callable[[], _Made]) -> _Made:
    """Return what `call` does; a model that is not trusted is asked for, where someone can answer.

    It raises before anything is done, so that it can be called again.
    """
    try:
        return call()
    except UntrustedModelError as error:
        if not _someone_can_answer():
            raise
        say(f"{error.problem}\n  {error.seen}")
        if not typer.confirm("Run it, and trust this file from now on?", err=True):
            raise
        error.source.remember()
        return call()


def _someone_can_answer() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()

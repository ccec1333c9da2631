"""What a call from Python says: nothing, lines, or in a notebook one line that follows a run."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from siafu.launch.callbacks import OnEpoch
from siafu.record.progress import Say, told

_WIDTH = 30


def in_notebook() -> bool:
    """Return whether the caller is a cell of a notebook; a shell of IPython is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def sayer(quiet: bool | None) -> Say:
    """Return what remarks go to; None is quiet, warnings apart, except in a notebook."""
    if in_notebook() and not quiet:
        return lambda line: _write(f"{line}\n")
    return told(quiet is not False)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def following(
    quiet: bool | None, epochs: int, on_epoch: OnEpoch | None
) -> Iterator[tuple[bool, OnEpoch | None]]:
    """Yield whether ranks are to be silent, and what is called after an epoch.

    In a notebook that is one line which is written anew, and gone at the end: what ranks print
    would not reach the cell.
    """
    if quiet or not in_notebook():
        yield quiet is not False, on_epoch
        return
    display = importlib.import_module("IPython.display")
    handle = display.display(display.Pretty("preparing"), display_id=True)

    def follow(epoch: int, metrics: dict[str, Any]) -> bool | None:
        handle.update(display.Pretty(line_of(epoch, epochs, metrics)))
        return None if on_epoch is None else on_epoch(epoch, metrics)

    try:
        yield True, follow
    finally:
        handle.update(display.Pretty(""))


def line_of(epoch: int, epochs: int, metrics: dict[str, Any]) -> str:
    """Return how far a training is in one line."""
    done = _WIDTH * epoch // epochs
    score = f"  val {metrics['val']:.4g}" if metrics.get("val") is not None else ""
    bar = "━" * done + "─" * (_WIDTH - done)
    return f"epoch {epoch} of {epochs} {bar} loss {metrics['loss']:.4f}{score}"

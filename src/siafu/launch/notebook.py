"""What a call from Python says: lines, in a notebook one more that follows a run, or nothing."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from siafu.launch.callbacks import OnEpoch
from siafu.launch.python_words import in_python
from siafu.record.progress import Say, told

_WIDTH = 30


def in_notebook() -> bool:
    """Return whether the caller is a cell of a notebook; a shell of IPython is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def sayer(*, quiet: bool) -> Say:
    """Return what remarks go to, stderr; of quiet calls warnings alone."""
    # As text in a notebook: a console would draw each as a page of its own.
    write = _write if in_notebook() and not quiet else told(quiet)
    return lambda line: write(in_python(line))


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def following(
    quiet: bool, epochs: int, on_epoch: OnEpoch | None
) -> Iterator[tuple[bool, OnEpoch | None]]:
    """Yield whether ranks are to be silent, and what is called after an epoch.

    In a notebook that is one line which is written anew, and gone at the end: what ranks print
    would not reach the cell.
    """
    if quiet or not in_notebook():
        yield quiet, on_epoch
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

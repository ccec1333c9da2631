"""How long work tells a caller where it stands; the command line draws bars from it."""

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with the phase, what is done of it and, where known, its total."""


def silent(phase: str, done: int, total: int | None) -> None:
    """Ignore what is reported."""

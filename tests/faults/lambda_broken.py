"""A function for the emulator that dies."""

from typing import Any


def handler(event: Any, context: Any) -> Any:
    """Die instead of answering."""
    raise RuntimeError("broken on purpose")

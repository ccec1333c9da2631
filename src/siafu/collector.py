"""Python's garbage collector, kept from looking at modules while they are loaded."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_rests() -> Iterator[None]:
    """Hold the collector back for a while: loading torch and siafu leaves nothing to collect.

    Looking through half a million new objects again and again took a seventh of the start.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

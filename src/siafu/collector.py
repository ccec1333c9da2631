"""Python's garbage collector, kept from looking at modules: half a million objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_rests() -> Iterator[None]:
    """Hold the collector back while modules are loaded, which leaves nothing to collect."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def spare_collector() -> None:
    """Take all there is now out of the collector's sight, for a process of ours that has begun.

    With the rest above this saves 0.9 s: rounds while loading and, at the end, one over everything.
    Not for a user's process: what they made before would stay for good.
    """
    gc.freeze()

"""Ranks that make one folder together: the first leads, the others do what it tells them.

Here is a crew of one, which does all itself; `comm` has the one of several ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from siafu.graph.array_stream import Array

Told = dict[str, Any]
"""What a task is told, as JSON holds it."""
Help = Callable[[Told, Any], Any]
"""What a rank does of a task: one item of it, given what all are told."""


class Crew:
    """Who makes a folder: this process alone."""

    rank, size = 0, 1

    def share(
        self, task: str, work: Help, told: Told, items: Sequence[Any], *, at_once: int = 1
    ) -> Iterator[Any]:
        """Yield what comes of each item, in order; items are done by whoever is free.

        `work` is what this rank does of them, `at_once` how many it does side by side. What is made
        goes into files that all ranks see; items and answers are small.
        """
        del task
        if at_once == 1:
            yield from (work(told, item) for item in items)
            return
        with ThreadPoolExecutor(at_once) as threads:
            yield from threads.map(lambda item: work(told, item), items)

    def check_sees(self, folder: Path) -> None:
        """Raise unless all ranks see the same folder there."""

    @contextmanager
    def together(self, task: str, told: Told) -> Iterator[None]:
        """Have all ranks do the task at the same time as what is inside."""
        del task, told
        yield

    def joined(self, mine: Array) -> Array:
        """Return the arrays of all ranks one after another; inside of `together` alone."""
        return mine

    def added(self, mine: Array) -> Array:
        """Return the sum of the arrays of all ranks; inside of `together` alone."""
        return mine


ALONE = Crew()

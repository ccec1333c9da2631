"""How many workers a rank wants: enough that its graph tasks never starve, and no more.

Tensor tasks return as graph tasks. With too many workers they pile up before this rank's threads:
a long graph queue, no tensor task waiting. With too few those threads have nothing to do while
tensor tasks wait. Between the two lies the number of workers looked for (Thorpe et al., 2021).
"""

from dataclasses import dataclass
from typing import Literal

from siafu.errors import ConfigError

_FIRST_WORKERS = 100
_WINDOW = 20
"""Observations whose mean is acted on."""
_MOST_CUT = 0.25
"""The share of the workers that one step takes away at most."""
_RISE_SHARE = 1 / 16
"""Of the intervals: how many workers one step adds at most."""
_SHRINKING = 0.05
"""A queue that lost this share since the last window is left to empty."""
_MOST_HOLD = 32
"""Windows without a cut after a cut that proved too much; doubles up to this."""

Direction = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank sees of its queues at one moment."""

    graph_waiting: float
    """Graph tasks that wait for this rank's threads."""
    tensor_waiting: float
    """Tensor tasks that wait for a worker."""


_NO_LOAD = Load(0, 0)


class Autotuner:
    """Adds workers one step at a time, takes them away by a share (AIMD).

    Steps shrink when they turn back and grow while they go on, so the number settles, and yet
    follows when the work changes. A cut that starved the graph tasks is tried again only after a
    pause that doubles.
    """

    def __init__(self, *, intervals: int, most: int = _FIRST_WORKERS, threads: int = 1) -> None:
        """Start with min(intervals, most, 100) workers, for `threads` that run graph tasks."""
        if min(intervals, most, threads) < 1:
            seen = f"intervals={intervals}, most={most}, threads={threads}"
            raise ConfigError("Tuning needs numbers above 0.", seen=seen, fix="use 1 or more")
        self._most, self._threads = min(intervals, most), threads
        self.wanted = min(self._most, _FIRST_WORKERS)
        self._most_rise = max(1, round(_RISE_SHARE * self._most))
        self._cut, self._rise = _MOST_CUT, self._most_rise
        self._hold, self._held = 1, 0
        """Windows to hold still after the next cut too many; windows left of such a pause."""
        self._last: Direction = 0
        self._window: list[Load] = []
        self._before = _NO_LOAD

    def observe(self, load: Load) -> int:
        """Return how many workers are wanted, now that this was seen.

        Observations come at a steady pace, such as one a tick. The answer changes at the end of a
        window, if at all.
        """
        self._window.append(load)
        if len(self._window) == _WINDOW:
            mean = Load(
                sum(load.graph_waiting for load in self._window) / _WINDOW,
                sum(load.tensor_waiting for load in self._window) / _WINDOW,
            )
            self._move(self._direction(mean))
            self._before = mean
            self._window.clear()
        return self.wanted

    def _direction(self, mean: Load) -> Direction:
        """Return whether fewer or more are needed; between two levels, neither."""
        graph, tensor = mean.graph_waiting, mean.tensor_waiting
        if graph > 2 * self._threads and tensor < 1:
            return 0 if _is_shrinking(graph, self._before.graph_waiting) else -1
        if graph < self._threads / 2 and tensor > 1:
            return 0 if _is_shrinking(tensor, self._before.tensor_waiting) else 1
        return 0

    def _move(self, direction: Direction) -> None:
        self._held = max(0, self._held - 1)
        if direction == 1:
            self._add()
        elif direction == -1 and not self._held:
            self._take_away()

    def _add(self) -> None:
        if self._last == -1:
            self._cut, self._rise = self._cut / 2, max(1, self._rise // 2)
            self._hold = min(_MOST_HOLD, 2 * self._hold)
        elif self._last == 1:
            self._rise = min(self._most_rise, 2 * self._rise)
        self._held = self._hold
        self.wanted = min(self._most, self.wanted + self._rise)
        self._last = 1

    def _take_away(self) -> None:
        if self._last == -1:
            self._cut = min(_MOST_CUT, 2 * self._cut)
        self.wanted = max(1, self.wanted - max(1, round(self._cut * self.wanted)))
        self._last = -1


def _is_shrinking(now: float, before: float) -> bool:
    return now < before - max(1.0, _SHRINKING * before)

"""The number of workers that a tuner settles on, beside a sweep over all numbers."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import pytest

from siafu.elastic.pools.cloud import CloudModel
from siafu.elastic.runner import Autotuner, Load
from siafu.errors import ConfigError


@dataclass(frozen=True)
class Pipeline:
    """Intervals that go from this rank's threads to workers and back, for ever."""

    intervals: int
    threads: int
    graph_seconds: float
    """Of one graph task, on average; drawn between half and one and a half of it."""
    tensor_seconds: float
    megabytes: float = 0.0
    """Of a tensor task, there and back; their time depends on the workers in use."""
    slowed_after: float = float("inf")
    """From then on graph tasks take three times as long."""


@dataclass(frozen=True)
class Outcome:
    """What came of a simulated run, over its second half."""

    rate: float
    """Intervals a second."""
    workers: list[int]


MODEL = CloudModel(bandwidth_alone=800e6, bandwidth_crowded=200e6)
TICK = 0.1


class Simulation:
    """A queueing model of a pipeline: events on a heap, no real time."""

    def __init__(self, pipeline: Pipeline, workers: int) -> None:
        self._pipeline, self.workers = pipeline, workers
        self._draws = random.Random(5)
        self._events: list[tuple[float, int, str]] = []
        self._count, self._now, self.done = 0, 0.0, 0
        self._graph_waiting, self._graph_busy = pipeline.intervals, 0
        self._tensor_waiting, self._tensor_busy = 0, 0

    def run_until(self, until: float) -> Load:
        """Let time pass and return what the rank sees then."""
        self._begin()
        while self._events and self._events[0][0] <= until:
            self._now, _, kind = heapq.heappop(self._events)
            if kind == "graph":
                self._graph_busy -= 1
                self._tensor_waiting += 1
            else:
                self._tensor_busy -= 1
                self._graph_waiting += 1
                self.done += 1
            self._begin()
        self._now = until
        return Load(self._graph_waiting, self._tensor_waiting)

    def _begin(self) -> None:
        pipeline = self._pipeline
        while self._graph_waiting and self._graph_busy < pipeline.threads:
            self._graph_waiting -= 1
            self._graph_busy += 1
            slowness = 3 if self._now > pipeline.slowed_after else 1
            self._end("graph", slowness * pipeline.graph_seconds)
        while self._tensor_waiting and self._tensor_busy < self.workers:
            self._tensor_waiting, self._tensor_busy = (
                self._tensor_waiting - 1,
                self._tensor_busy + 1,
            )
            num_bytes = int(1e6 * pipeline.megabytes)
            transfer = MODEL.transfer_seconds(num_bytes, self._tensor_busy)
            self._end("tensor", pipeline.tensor_seconds + transfer)

    def _end(self, kind: str, seconds: float) -> None:
        self._count += 1
        due = self._now + seconds * self._draws.uniform(0.5, 1.5)
        heapq.heappush(self._events, (due, self._count, kind))


def simulate(
    pipeline: Pipeline, workers: int, wanted: Callable[[Load], int] | None = None, ticks: int = 6000
) -> Outcome:
    """Run with a fixed number of workers, or with what `wanted` says at every tick."""
    simulation = Simulation(pipeline, workers)
    done_before, seen = 0, []
    for tick in range(ticks):
        load = simulation.run_until((tick + 1) * TICK)
        if wanted is not None:
            simulation.workers = wanted(load)
        if tick == ticks // 2:
            done_before = simulation.done
        if tick >= ticks // 2:
            seen.append(simulation.workers)
    return Outcome((simulation.done - done_before) / (ticks / 2 * TICK), seen)


def best(pipeline: Pipeline) -> tuple[float, int]:
    """Return the best rate of a sweep, and the fewest workers that come within 3 % of it."""
    numbers = sorted({*range(1, 12), *range(12, pipeline.intervals + 1, 2), pipeline.intervals})
    rates = {n: simulate(pipeline, n, ticks=1000).rate for n in numbers}
    most = max(rates.values())
    return most, min(n for n, rate in rates.items() if rate >= 0.97 * most)


PIPELINES = {
    "graph tasks need about 20 workers": Pipeline(64, 1, 0.05, 1.0),
    "two threads, about 40 workers": Pipeline(96, 2, 0.05, 1.0),
    "bandwidth that falls": Pipeline(100, 2, 0.04, 0.3, megabytes=10.0),
    "few workers suffice": Pipeline(32, 1, 0.1, 0.25),
    "all workers are needed": Pipeline(48, 2, 0.02, 1.0),
    "few intervals": Pipeline(4, 1, 0.05, 1.0),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_tuner_lands_near_the_best_of_a_sweep(name: str) -> None:
    pipeline = PIPELINES[name]
    best_rate, fewest = best(pipeline)
    tuner = Autotuner(intervals=pipeline.intervals, threads=pipeline.threads)
    tuned = simulate(pipeline, tuner.wanted, tuner.observe)
    figures = f"best {best_rate:.1f}/s at {fewest}, tuned {tuned.rate:.1f}/s"
    figures += f" at {mean(tuned.workers):.1f} ({min(tuned.workers)} to {max(tuned.workers)})"
    print(figures)
    assert tuned.rate >= 0.9 * best_rate, figures
    assert mean(tuned.workers) <= 1.2 * fewest + 1, figures
    changes = sum(a != b for a, b in zip(tuned.workers, tuned.workers[1:], strict=False))
    assert changes <= 25, f"{changes} changes in 3000 ticks; {figures}"


def test_a_tuner_follows_when_graph_tasks_become_slower() -> None:
    pipeline = Pipeline(64, 1, 0.05, 1.0, slowed_after=200)
    tuner = Autotuner(intervals=64)
    tuned = simulate(pipeline, tuner.wanted, tuner.observe, ticks=12000)
    assert mean(tuned.workers) <= 1.2 * 20 / 3 + 2
    assert tuned.rate >= 0.9 * 20 / 3


def observe_often(tuner: Autotuner, load: Load, times: int = 20) -> int:
    return [tuner.observe(load) for _ in range(times)][-1]


def test_it_starts_with_the_intervals_and_stays_within_limits() -> None:
    assert Autotuner(intervals=7).wanted == 7
    assert Autotuner(intervals=700).wanted == 100
    assert Autotuner(intervals=700, most=30).wanted == 30
    tuner = Autotuner(intervals=16, most=12)
    assert observe_often(tuner, Load(50, 0), 4000) == 1
    assert observe_often(tuner, Load(0, 50), 4000) == 12


def test_balanced_queues_change_nothing() -> None:
    tuner = Autotuner(intervals=40)
    for load in (Load(0, 0), Load(1, 3), Load(30, 30), Load(2, 0)):
        assert observe_often(tuner, load, 500) == 40


def test_a_queue_that_empties_by_itself_is_left_alone() -> None:
    tuner = Autotuner(intervals=40)
    assert observe_often(tuner, Load(40, 0)) == 30
    assert observe_often(tuner, Load(30, 0)) == 30
    assert observe_often(tuner, Load(20, 0)) == 30
    assert observe_often(tuner, Load(20, 0)) == 22


def test_after_a_cut_too_many_it_waits_and_cuts_less() -> None:
    tuner = Autotuner(intervals=40)
    crowded, starving = Load(20, 0), Load(0, 20)
    assert observe_often(tuner, crowded) == 30
    assert observe_often(tuner, starving) == 31
    assert observe_often(tuner, crowded) == 31
    assert observe_often(tuner, crowded) == 27, "an eighth, no longer a quarter"
    assert observe_often(tuner, starving) == 28
    assert observe_often(tuner, crowded, 60) == 28, "three windows now"
    assert observe_often(tuner, crowded) == 26


def test_numbers_must_make_sense() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Autotuner(intervals=0)

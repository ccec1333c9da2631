"""How far a run is, what it cost, and what it came to."""

import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from siafu.comm import World
from siafu.config import ResolvedConfig
from siafu.engine.workload import Details
from siafu.record import TRAINING_LANE, counted


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run came to."""

    score: dict[str, float]
    """The score that counts, by split."""
    metric: str
    best_epoch: int
    losses: list[float]
    epochs: int
    stopped_by_patience: int
    ended: str
    """Why no further epoch was trained, in words."""
    seconds_per_epoch: float
    bytes_sent: dict[str, int]
    """By purpose, of all ranks."""
    evaluation: dict[str, Any]
    """What scoring took of it."""
    peak_mb: list[float]
    """Of each rank: what was alive on its device, or resident."""
    ranks: int
    backend: str
    """What carries rows between ranks: gloo or nccl, none for one rank."""
    rank_seconds: dict[str, list[float]]
    """Of each rank, by phase, since its process began: see `PhaseSeconds`."""
    traffic: list[list[int]]
    """Bytes of rows that each rank (row) has sent to each (column)."""
    strategy: str
    choices: dict[str, Any]
    exactness: str
    widths: list[dict[str, Any]]
    kept: list[dict[str, Any]]
    """Rows that ranks keep from epoch to epoch, by exchange: of changes and of late rows."""
    model: str
    data: str
    run: str
    reserved_mb: list[float] | None = None
    """Of each rank's GPU, what torch had taken at the peak: `peak_mb` and what it kept beside."""
    task: str | None = None
    scores: Details | None = None
    """All scores, where there are more than the one that counts."""
    quality: dict[str, Any] | None = None
    """Tables of the answers about val and test: by class or target, confusion, calibration."""
    sampling: dict[str, Any] | None = None
    pipeline: dict[str, Any] | None = None
    bill: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is known, by name."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        told = {name: value for name, value in known.items() if value is not None}
        return told if self.task is not None else {**told, "bill": self.bill}


@dataclass(slots=True)
class Progress:
    """How far a run is, and its best so far; all of it goes into a checkpoint."""

    epochs: int = 0
    best_epoch: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)
    best_merit: float = -math.inf
    """What the best epoch was chosen by, the higher the better."""
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    is_enough: bool = False
    """Whether a callback has ended the training."""
    budget_spent: str = ""
    """Why a further epoch would cost too much, in words."""

    def is_stale(self, patience: int) -> bool:
        """True when nothing better has been found for `patience` epochs."""
        known = patience > 0 and bool(self.best_scores)
        return known and self.epochs - self.best_epoch >= patience

    def patience_spent(self, config: ResolvedConfig) -> int:
        """Return the epochs without gain that ended a run before its last; 0 where none did."""
        ended = self.epochs < config.epochs and self.is_stale(config.patience)
        return self.epochs - self.best_epoch if ended else 0

    def reason(self, config: ResolvedConfig) -> str:
        """Return in words why a run that came to its end did."""
        done, spent = counted(self.epochs, "epoch"), self.patience_spent(config)
        if self.is_enough and self.epochs < config.epochs:
            return f"stopped after {done}: a callback said so"
        if self.budget_spent and self.epochs < config.epochs:
            return f"stopped after {done}: {self.budget_spent}"
        if spent:
            return f"stopped after {done}: no better for {spent}"
        return f"all {done} done" if self.epochs > 1 else f"{done} done"

    def is_over(self, config: ResolvedConfig) -> bool:
        """True when no epoch is left to train."""
        ended = self.is_enough or bool(self.budget_spent)
        return ended or self.epochs >= config.epochs or self.is_stale(config.patience)


PHASES = ("first epoch", "computing", "waiting", "scoring", "waiting while scoring")
"""The first epoch is apart: kernels are compiled or loaded in it, and ranks wait for that."""


@dataclass(slots=True)
class PhaseSeconds:
    """Where the time of this rank went since its process began, by the names of `PHASES`."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def counted(self, world: World, work: str, waiting: str) -> Iterator[None]:
        """Count the time inside as `work`, less that of waiting for others."""
        waited, started = world.meter.seconds_waited, time.perf_counter()
        yield
        synchronise(world)
        spent, waited = time.perf_counter() - started, world.meter.seconds_waited - waited
        self.seconds[work] += spent - waited
        self.seconds[waiting] += waited
        if (trace := world.trace) is not None:
            name = world.step if work == "computing" else f"{work}, {world.step}"
            trace.add(name, "phase", TRAINING_LANE, start=trace.now() - spent, seconds=spent)

    def of_ranks(self, world: World) -> dict[str, list[float]]:
        """Return the seconds of each rank; every rank calls this together."""
        table = world.gather_numbers(list(self.seconds.values()))
        columns = zip(*table, strict=True)
        return {name: list(column) for name, column in zip(self.seconds, columns, strict=True)}


@dataclass(slots=True)
class ScoringCost:
    """What scoring costs beside training: counters of this rank since its process began."""

    passes: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0

    @contextmanager
    def counted(self, world: World, passes: int = 1) -> Iterator[None]:
        """Count what happens inside as so many evaluations."""
        before, started = sum(world.meter.bytes_sent.values()), time.perf_counter()
        yield
        synchronise(world)
        self.passes += passes
        self.seconds += time.perf_counter() - started
        self.bytes_sent += sum(world.meter.bytes_sent.values()) - before

    def report(self, world: World) -> dict[str, Any]:
        """Return passes, seconds of the slowest rank, bytes of all; every rank calls this."""
        table = world.gather_numbers([self.seconds, float(self.bytes_sent)])
        return {
            "passes": self.passes,
            "seconds": max(row[0] for row in table),
            "bytes_sent": int(sum(row[1] for row in table)),
        }


def over_budget(name: str, ahead: int, now: float, then: float, most: float) -> str:
    """Return why no further epoch is trained, in words; `name` is the setting that limits it."""
    shown = "${:.3g}".format if name == "max_dollars" else "{:,.0f} calls".format
    told = f"{counted(ahead, 'more epoch')} would bring {shown(now)} to {shown(then)}"
    return f"{told}, above --{name.replace('_', '-')} {most:g}"


def traffic_and_peaks(
    world: World, purposes: tuple[str, ...]
) -> tuple[dict[str, int], list[float]]:
    """Return the bytes that all ranks sent, by purpose, and the peak memory of each in MiB."""
    sent = [float(world.meter.bytes_sent.get(purpose, 0)) for purpose in purposes]
    table = world.gather_numbers([*sent, peak_bytes(world) / 2**20])
    by_purpose = [int(sum(column)) for column in list(zip(*table, strict=True))[:-1]]
    peaks = [round(row[-1], 1) for row in table]
    return dict(zip(purposes, by_purpose, strict=True)), peaks


def traffic_matrix(world: World) -> list[list[int]]:
    """Return the bytes of rows that each rank has sent to each; every rank calls this together."""
    mine = [float(world.meter.bytes_to.get(peer, 0)) for peer in range(world.size)]
    return [[int(value) for value in row] for row in world.gather_numbers(mine)]


def peak_bytes(world: World) -> int:
    """Return this rank's peak memory: the device's where it trains on one, else resident."""
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated(world.device)
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: its maximum is inherited from the process that started this one.
        lines = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(next(lines).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reserved_mb(world: World) -> list[float] | None:
    """Return the MiB that torch took of each rank's GPU at most; None on CPUs.

    Other programs miss that, and `--memory` is held to it. Every rank calls this together.
    """
    if world.device.type != "cuda":
        return None
    rows = world.gather_numbers([torch.cuda.max_memory_reserved(world.device) / 2**20])
    return [round(row[0], 1) for row in rows]


def synchronise(world: World) -> None:
    """Wait until the device has done all that it was told."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)

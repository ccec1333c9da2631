"""Memory that ran out, explained: what was predicted, what grew past it, and what would help."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from siafu.comm import World
from siafu.config import RunConfig
from siafu.errors import BudgetError, RankError, SiafuError
from siafu.launch.foreseen import outlook_of, setting_of
from siafu.launch.local import KILLED_FOR_MEMORY
from siafu.plan import Outlook, memory_in_use, shown_bytes
from siafu.plan.memory import FEATURES, GRAPH, PROCESS

_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "Unable to allocate")
_HELD = (PROCESS, GRAPH, FEATURES)
_HELPS = 0.85
"""A change is worth telling where it needs that much of the memory at most."""
_GREW = 1.15

_held_by_rank: dict[int, int] = {}


def note_held(world: World) -> None:
    """Keep what this rank holds now that its part is open, before it trains."""
    _held_by_rank[world.rank] = memory_in_use(world)


def is_shortage(error: BaseException) -> bool:
    """Return whether an error says that memory could not be had."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


@contextmanager
def explaining_kills(config: RunConfig, parts: str) -> Iterator[None]:
    """Tell what would need less memory where the kernel has killed a rank for want of it."""
    try:
        yield
    except RankError as error:
        advice = changes(config, parts) if error.began_as == KILLED_FOR_MEMORY else ""
        if not advice:
            raise
        raise RankError(
            error.problem,
            seen=error.seen + what_grew(config, parts, None),
            fix=f"end other programs, or {advice}",
            began_as=error.began_as,
            is_lost=error.is_lost,
            lost=error.lost,
        ) from error


@contextmanager
def explaining(config: RunConfig, parts: str, world: World) -> Iterator[None]:
    """Raise a BudgetError that explains it where memory runs out inside."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SiafuError) or not is_shortage(error):
            raise
        rank, now = world.rank, memory_in_use(world)
        grew = what_grew(config, parts, rank, now=now, held=_held_by_rank.get(rank))
        raise BudgetError(
            f"Rank {rank} has run out of memory.",
            seen=f"{str(error).splitlines()[0][:200]}; it held {shown_bytes(now)}{grew}",
            fix=changes(config, parts) or "use more ranks, a narrower model or --strategy sar",
        ) from error


def what_grew(
    config: RunConfig, parts: str, rank: int | None, *, now: int = 0, held: int | None = None
) -> str:
    """Return what was predicted for a rank, and which kind of memory is past it."""
    told = _predicted(config, parts, rank)
    if told is None:
        return ""
    before = sum(told.memory[kind] for kind in _HELD)
    training = {kind: size for kind, size in told.memory.items() if kind not in _HELD}
    text = f", {shown_bytes(told.memory_bytes)} were predicted"
    if held is not None and held > _GREW * before:
        return (
            text
            + f": what it held before training grew past {shown_bytes(before)}, "
            + (f"to {shown_bytes(held)}")
        )
    largest = max(training, key=lambda kind: training[kind])
    if held is not None and now - held > _GREW * sum(training.values()):
        return text + (
            f": training grew past {shown_bytes(sum(training.values()))}, "
            f"most of which are {largest} ({shown_bytes(training[largest])})"
        )
    return text + f", most of it {largest} ({shown_bytes(training[largest])})"


def changes(config: RunConfig, parts: str) -> str:
    """Return the two cheapest changes that need less memory, with what is predicted of them."""
    now = _predicted(config, parts, None)
    if now is None:
        return ""
    ranks, hidden = config.ranks, config.resolved().hidden
    tries: list[dict[str, Any]] = [
        {"strategy": "sar"},
        {"ranks": 2 * ranks},
        {"ranks": 2 * ranks, "strategy": "sar"},
        {"hidden": max(1, hidden // 2)},
        {"strategy": "batchgnn"},
    ]
    found = []
    for change in tries:
        if change.get("strategy") == config.strategy:
            continue
        with suppress(SiafuError):
            other = _predicted(config.model_copy(update=change), parts, None)
            if other is not None and other.memory_bytes <= _HELPS * now.memory_bytes:
                found.append((other.seconds, change, other))
    found.sort(key=lambda one: one[0])
    return " or ".join(_told(change, other, now) for _, change, other in found[:2])


def _told(change: dict[str, Any], other: Outlook, now: Outlook) -> str:
    flags = " ".join(f"--{name} {value}" for name, value in change.items())
    return (
        f"{flags} ({shown_bytes(other.memory_bytes)} per rank instead of "
        f"{shown_bytes(now.memory_bytes)}, {other.seconds / max(1e-9, now.seconds):.2g} times the "
        "seconds)"
    )


def _predicted(config: RunConfig, parts: str, rank: int | None) -> Outlook | None:
    """Return the forecast for a rank, or for the largest; None where nothing can be told."""
    with suppress(OSError, ValueError, KeyError, SiafuError):
        at = setting_of(config, Path(parts), rank=rank)
        return None if at is None else outlook_of(at, config)
    return None

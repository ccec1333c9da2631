"""From the settings of a run to a rank's pool, watched and counted."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from siafu.comm import World
from siafu.config import RunConfig
from siafu.elastic.dispatch import Dispatcher
from siafu.elastic.local_pool import LocalPool
from siafu.elastic.pool import Deliver, Pool
from siafu.elastic.pool_use import PoolUse
from siafu.errors import ConfigError, PoolError


def open_runner(
    config: RunConfig, pool: str, intervals: int, world: World, deliver: Deliver
) -> tuple[Dispatcher, PoolUse]:
    """Return the pool of that name, watched, and what will have been asked of it."""
    use = PoolUse()
    make = _MAKERS[pool]
    workers = _workers(config, pool, intervals)

    def make_pool(deliver_to: Deliver) -> Pool:
        return make(config, world, workers, use.counting(deliver_to))

    def say(line: str) -> None:
        sys.stderr.write(f"rank {world.rank}: {line}\n")
        sys.stderr.flush()

    return Dispatcher(make_pool, deliver, say=say), use


def _workers(config: RunConfig, pool: str, intervals: int) -> int:
    """Return how many workers to begin with."""
    if config.pool_workers == "auto":
        cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return max(1, min(intervals, cores if pool in ("none", "process") else _MOST_WORKERS))
    try:
        count = int(config.pool_workers)
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigError(
            "The number of workers can't be read.",
            seen=f"pool_workers={config.pool_workers}",
            fix="use a number from 1, or auto",
        )
    return count


_MOST_WORKERS = 100
"""Workers a rank begins with at most, where they cost nothing until they are asked."""


def _local(config: RunConfig, world: World, workers: int, deliver: Deliver) -> Pool:
    return LocalPool(deliver, workers=workers)


def _process(config: RunConfig, world: World, workers: int, deliver: Deliver) -> Pool:
    module = _imported("process_pool", "")
    pool: Pool = module.ProcessPool(deliver, workers=workers, deadline_seconds=config.deadline)
    return pool


def _imported(name: str, extra: str) -> Any:
    """Return a module of a pool whose packages may not be installed."""
    try:
        return import_module(f"siafu.elastic.{name}")
    except ModuleNotFoundError as error:
        raise PoolError(
            "The pool's packages are not installed.",
            seen=f"no module {error.name}",
            fix=f"pip install 'siafu[{extra}]'",
        ) from error


_MAKERS: dict[str, Callable[[RunConfig, World, int, Deliver], Pool]] = {
    "none": _local,
    "process": _process,
}

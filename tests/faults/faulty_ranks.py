"""Ranks that go wrong at a place in their code, and a launcher that is killed while it prepares.

Run: python -m tests.faults.faulty_ranks --warm SOCKET, which is `siafu.launch` but for the faults.
FAULT in a rank's environment tells which: KIND PLACE RANK.
"""

import errno
import json
import os
import runpy
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist

import siafu
from siafu.checkpoint import checkpoint
from siafu.comm import World
from siafu.engine import Trainer, infer
from siafu.engine.dynamic import infer as dynamic_infer
from siafu.graph.folder import FolderWriter
from siafu.launch import fit as _  # noqa: F401 - loads what a fork needs
from siafu.launch import rank, ranks
from siafu.record import RunFolder
from tests.harness import skip_sync

FIT = "fit"
"""The first argument of a fork that is to be a launcher."""
SHORT_SECONDS = 1.0
"""How long the others wait for a rank that has stopped: from then on only."""
_VISIT = {"epoch": 2, "saving": 2}
"""Which visit of a place is the bad one, the first where it is not here."""
_visits: Counter[str] = Counter()
_is_short = False


def reach(place: str) -> None:
    """Go wrong, if that is to happen here and now."""
    global _is_short
    _visits[place] += 1
    kind, where, who = os.environ.get("FAULT", "no fault -").split()
    if where != place or _visits[place] != _VISIT.get(place, 1):
        return
    if who != os.environ["RANK"]:
        if kind == "stop":
            _is_short = True  # of messages; and of sums:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SHORT_SECONDS))
    elif kind == "raise":
        raise ZeroDivisionError(f"a mistake while {place}")
    elif kind in ("full", "unwritable"):
        number = errno.ENOSPC if kind == "full" else errno.EROFS
        raise OSError(number, os.strerror(number))
    else:
        os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)


def _before(owner: Any, name: str, place: str) -> None:
    """Have a function reach a place before it does anything."""
    inner: Callable[..., Any] = getattr(owner, name)

    @wraps(inner)
    def outer(*arguments: Any, **settings: Any) -> Any:
        reach(place)
        return inner(*arguments, **settings)

    setattr(owner, name, outer)


def _at_the_end(owner: Any, name: str, place: str) -> None:
    """Have what is written in a context reach a place when all is there but its name."""
    inner: Callable[..., Any] = getattr(owner, name)

    @contextmanager
    def outer(*arguments: Any, **settings: Any) -> Iterator[Any]:
        with inner(*arguments, **settings) as written:
            yield written
            reach(place)

    setattr(owner, name, outer)


def _step(trainer: Trainer) -> float:
    """Run an epoch that reaches its place where gradients are there and weights still the old."""
    inner, is_reached = trainer.optimiser.step, False

    def step(*arguments: Any, **settings: Any) -> Any:
        nonlocal is_reached
        if not is_reached:
            is_reached = True
            reach("epoch")
        return inner(*arguments, **settings)

    trainer.optimiser.step = step  # type: ignore[method-assign]
    try:
        return _epoch(trainer)
    finally:
        trainer.optimiser.step = inner  # type: ignore[method-assign]


def _save(trainer: Trainer, folder: RunFolder) -> None:
    """Save; the others of rank 0, which writes, reach the place of its writing too."""
    if trainer.world.rank != 0:
        reach("saving")
    _saving(trainer, folder)


def _main(*arguments: str, **settings: Any) -> int:
    """Be a rank, or a launcher that prepares data."""
    if arguments[0] != FIT:
        return _rank(*arguments, **settings)
    ranks.begin_loading = lambda config: None
    siafu.fit(**json.loads(arguments[1]))
    return 0


os.fsync = skip_sync
_epoch, _rank, _whole = Trainer.step, rank.main, World.wait_timeout
_saving = Trainer._save
Trainer.step, rank.main = _step, _main  # type: ignore[method-assign, assignment]
Trainer._save = _save  # type: ignore[method-assign]
World.wait_timeout = property(  # type: ignore[assignment]
    lambda world: timedelta(seconds=SHORT_SECONDS) if _is_short else _whole.fget(world)  # type: ignore[attr-defined]
)
_before(FolderWriter, "finish", "prepare")
_before(rank, "work", "start")
_at_the_end(checkpoint, "write_folder", "saving")
for module in (infer, dynamic_infer):
    _at_the_end(module, "replacing", "predicting")

if __name__ == "__main__":
    runpy.run_module("siafu.launch", run_name="__main__")

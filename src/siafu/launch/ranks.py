"""Doing a job: on this process, on ranks that are started for it here, or on Ray."""

import importlib
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from siafu.comm import World
from siafu.config import RunConfig, make_config, read_run_config, write_config
from siafu.engine.device_memory import one_run
from siafu.errors import NoRoomError, RankError, StoreError
from siafu.graph import scratch_folder, writing
from siafu.launch.callbacks import Answering, OnEpoch
from siafu.launch.cut import Say
from siafu.launch.local import run_ranks, threads_for
from siafu.launch.out_of_memory import explaining_kills
from siafu.launch.rank import (
    COMPILING_TOLD_VARIABLE,
    Job,
    prepare_process,
    saves_memory,
    work,
)
from siafu.launch.rank_checks import ANSWER, CHECK, GRAPH, check_ranks
from siafu.launch.recut import has_damaged_parts
from siafu.launch.run_state import resume_command
from siafu.launch.warm import warm_process
from siafu.memory import ARENAS_VARIABLE
from siafu.ops import (
    HUGE_PAGES_VARIABLE,
    num_threads,
    set_threads,
    telling_compilation,
    warm_up,
    warm_up_sampling,
    warm_up_wire,
)
from siafu.record import RunFolder, clear_rests


def under_torchrun() -> bool:
    """True when another launcher already started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def joined(config: RunConfig) -> World:
    """Return the ranks of this process, which is made ready to be one of them."""
    prepare_process(config)
    return World.join(
        device=config.device, backend=config.backend, deadline_seconds=config.deadline
    )


def checked_ranks(num_ranks: int, device: str) -> dict[str, Any]:
    """Return what ranks find out of each other: those of torchrun, or some started here."""
    if under_torchrun():
        with World.join(device=device) as world:
            return check_ranks(world) | {"rank": world.rank}
    with scratch_folder() as scratch:
        folder = RunFolder(scratch / "check")
        folder.path.mkdir()
        write_config(make_config(data=GRAPH, ranks=num_ranks, device=device), folder.config)
        threads = {"OMP_NUM_THREADS": str(threads_for(num_ranks))}
        job = Job(verb=CHECK, parts="").to_text()
        run_ranks(num_ranks, folder.path, job, variables=threads)
        found: dict[str, Any] = json.loads((folder.path / ANSWER).read_text())
        return found


def begin_loading(config: RunConfig) -> None:
    """Have a process load what local ranks need, while this one prepares their data."""
    if config.ranks > 1 and config.launcher == "local":
        warm_process(_loading_variables(config))


def _loading_variables(config: RunConfig) -> dict[str, str]:
    """Return what ranks are to find in their environment when they load torch."""
    threads = {"OMP_NUM_THREADS": str(threads_for(config.ranks, config.threads))}
    threads[ARENAS_VARIABLE] = os.environ.get(ARENAS_VARIABLE, "1")
    return threads | ({HUGE_PAGES_VARIABLE: "1"} if saves_memory(config) else {})


Again = Callable[[RunConfig, bool], Job]
"""Of settings, and whether the data is to be cut anew in any case."""


def carry_out(
    folder: RunFolder,
    config: RunConfig,
    job: Job,
    say: Say,
    on_epoch: OnEpoch | None = None,
    again: Again | None = None,
) -> None:
    """Do a job on this process, or on ranks that are started for it, to its end.

    `on_epoch` is called in this process after epochs of a training. Where a rank is lost, a
    training goes on from its newest checkpoint as often as is allowed: `again` returns the job to
    go on with, on as many ranks as the settings it is given say. Where its own parts are damaged it
    is asked for new ones, once.
    """
    is_remade = False
    for restarts in itertools.count(1):
        try:
            _work_on_ranks(folder, config, job, say, on_epoch)
        except (RankError, NoRoomError, StoreError) as error:
            if again is not None and not is_remade and has_damaged_parts(folder, error):
                line = f"{error.problem} ({error.seen}) The data is cut anew."
                say(line)
                with writing(folder.path):
                    folder.note_warning(line)
                job, is_remade = again(config, True), True
                continue
            if isinstance(error, StoreError):
                raise
            ranks = _ranks_left(config, error)
            if again is None or ranks == 0 or restarts > config.max_restarts:
                raise
            where = f", on {ranks} ranks" if ranks != config.ranks else ""
            line = f"{error.problem} ({error.seen}) Restart {restarts} of {config.max_restarts}"
            line = " ".join(f"{line}{where}.".split())
            say(line)
            with writing(folder.path):
                folder.note_warning(line)
            config = make_config(**{**read_run_config(folder.config), "ranks": ranks})
            job = again(config, False)
        else:
            return


def _ranks_left(config: RunConfig, error: RankError | NoRoomError) -> int:
    """Return how many ranks a training may go on with after it lost some; 0 where it may not."""
    if isinstance(error, NoRoomError):
        has_room = config.min_ranks is not None and error.room >= config.min_ranks
        return _in_groups(config, error.room) if has_room else 0
    if not error.is_lost:
        return 0
    if config.min_ranks is None:
        return config.ranks
    left = _in_groups(config, config.ranks - len(error.lost))
    return left if left >= config.min_ranks else config.ranks


def _in_groups(config: RunConfig, ranks: int) -> int:
    """Return the most ranks up to these that can be dealt to the groups of nodes of a run."""
    return ranks - ranks % max(1, config.node_parts)


def _work_on_ranks(
    folder: RunFolder, config: RunConfig, job: Job, say: Say, on_epoch: OnEpoch | None
) -> None:
    """Do a job once."""
    if config.ranks == 1 and config.launcher == "local":
        threads = num_threads()
        try:
            with joined(config) as world, one_run(world.device):
                work(folder, job, world, on_epoch)
        finally:
            set_threads(threads)  # the caller's own, who may go on with other work
    else:
        compiling: list[str] = []

        def tell(line: str) -> None:
            compiling.append(line)
            say(line)

        with telling_compilation(tell):
            warm_up()
            if config.chosen.wire != 32 or config.feature_bits != 32:
                warm_up_wire()
            if config.chosen.unit == "macrobatch":
                warm_up_sampling()
        variables = _loading_variables(config)
        if compiling:  # ranks compile what is left, and need not say so again
            variables[COMPILING_TOLD_VARIABLE] = "1"
        if config.launcher == "ray":
            on_ray = importlib.import_module("siafu.launch.ray")  # who has no Ray needs none
            on_ray.run_ranks_on_ray(config, folder.path, job.to_text(), variables)
        else:
            answering = None if on_epoch is None else Answering(folder, on_epoch)
            job = replace(job, asks=answering is not None)
            again = f"go on with `{resume_command(folder.path)}`" if job.verb == "train" else None
            try:
                with explaining_kills(config, job.parts):
                    run_ranks(
                        config.ranks,
                        folder.path,
                        job.to_text(),
                        variables=variables,
                        again=again,
                        meanwhile=answering,
                    )
            except BaseException:
                clear_rests()
                raise
            finally:
                if answering is not None:
                    answering.close()

"""One call from data to a trained model: prepare, start the ranks, gather the result."""

import itertools
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Unpack

from siafu.checkpoint import has_checkpoint
from siafu.comm import DEFAULT_DEADLINE_SECONDS, World, choose_device
from siafu.config import RunConfig, make_config, read_run_config
from siafu.errors import ConfigError
from siafu.graph import at_hand, folder_kind, origin_of, writing
from siafu.ingest import given_data, is_kept_frame
from siafu.launch.apart import settings_of_first, shared_job, shared_result
from siafu.launch.automatic import with_chosen_strategy
from siafu.launch.callbacks import OnEpoch
from siafu.launch.checks import check_enough, check_restarts, check_run, with_strategy, with_task
from siafu.launch.cut import Say, told_classes_of_parts
from siafu.launch.foreseen import note_forecast
from siafu.launch.host_room import check_host, check_host_with_parts
from siafu.launch.learnt import save_schema
from siafu.launch.notebook import following, sayer
from siafu.launch.own_code import model_to_run, trust_named
from siafu.launch.own_model import is_given, loss_named, model_named, settled
from siafu.launch.prepare import prepare_parts, preparing, wait_for_preparation, with_ranks_of_parts
from siafu.launch.rank import Job, work
from siafu.launch.rank_checks import check_alike
from siafu.launch.ranks import Again, begin_loading, carry_out, joined, under_torchrun
from siafu.launch.recut import other_cut
from siafu.launch.result_warnings import result_warnings
from siafu.launch.run import Run
from siafu.launch.run_state import (
    begun_run,
    check_epochs,
    clear_unfinished,
    describe,
    is_prepared,
    note_phases,
    parts_of,
    resume_command,
    resumed_job,
    save_job,
    working_on,
)
from siafu.launch.settings import Settings
from siafu.launch.signature import with_settings
from siafu.launch.taking_up import MAY_CHANGE, Opened, begun_at, changes_to, opened_again
from siafu.launch.warnings import data_warnings, lone_warnings, machine_warnings
from siafu.partitioning import open_parts
from siafu.plan import Link, measured_link
from siafu.record import BEFORE_TRAINING, PhaseProgress, RunFolder, counted
from siafu.strategy import AUTO


@with_settings(Settings)
def fit(
    data: Any = None,
    *,
    nodes: Any = None,
    edges: Any = None,
    x: Any = None,
    y: Any = None,
    on_epoch: OnEpoch | None = None,
    quiet: bool = False,
    **settings: Unpack[Settings],
) -> Run:
    """Train on `data` and return the run; settings are those of `siafu train`, by the same names.

    `data` is whatever `siafu.load` or `siafu.load_dynamic` takes or returns, or a parts folder; or
    two tables, `nodes` and `edges`, as files or as frames of pandas, polars or Arrow. A sparse
    matrix or an `edge_index` has its features `x` and labels `y` beside it. `on_epoch(epoch,
    metrics)` is called here after every epoch; where it returns True, that epoch is the last.
    What `siafu train` tells, columns, dropped edges, warnings and progress, goes to stderr, in a
    notebook into its cell; `quiet=True` leaves all but warnings out.

    >>> run = siafu.fit("planted", model="gat", ranks=4, epochs=50)
    >>> run.score["test"], run.predictions
    >>> run = siafu.fit(nodes=customers, edges=payments, label="is_fraud", model="sage")
    """
    given = given_data(data, nodes=nodes, edges=edges, x=x, y=y)
    source = given.source
    name = source if isinstance(source, str | Path) else getattr(source, "name", None)
    data_name = str(name or type(source).__name__)
    default = RunConfig.model_fields["model"].default
    with (
        model_named(settings.pop("model", default)) as model,
        loss_named(settings.pop("loss", None)) as loss,
    ):
        config = make_config(
            data=data_name, model=model, loss=loss, **{**settings, **given.columns}
        )
        say = sayer(quiet=quiet)
        if config.launcher == "ray":  # whose ranks ask nobody
            return start_run(config, data=source, say=say, quiet=quiet, on_epoch=on_epoch)
        with following(quiet, config.epochs, on_epoch) as (is_silent, called):
            return start_run(config, data=source, say=say, quiet=is_silent, on_epoch=called)


def start_run(
    config: RunConfig,
    *,
    data: Any = None,
    say: Say,
    quiet: bool = False,
    on_epoch: OnEpoch | None = None,
    goes_on: bool = False,
) -> Run:
    """Prepare the data and train as configured, on this process or on new ranks.

    With `goes_on`, a run that was begun at `out` with the same settings is resumed.
    """
    data = at_hand(config.data if data is None else data)
    config = with_strategy(data, with_task(data, config, say), say)
    check_run(data, config)
    _check_callback(config, on_epoch)
    for code in (config.model, config.loss or ""):
        if not is_given(code):
            trust_named(code)
    if under_torchrun():
        return _run_as_rank(config, data, say, quiet, on_epoch, goes_on)
    if goes_on and (begun := begun_at(config)) is not None:
        changes = changes_to(begun, config)
        return resume_run(begun.path, changes, say=say, quiet=quiet, on_epoch=on_epoch)
    choose_device(config.device, 0)
    config = with_ranks_of_parts(data, config)
    check_host(config)
    folder = _new_folder(config)
    with _working_on(folder, is_new=True, say=say):
        say(f"Run: {folder.path}")
        begin_loading(config)
        job = _prepare(folder, data, config, say, quiet)
        if config.strategy == AUTO:
            config = make_config(**read_run_config(folder.config))
        if config.ranks > 1:
            say(f"Starting {counted(config.ranks, 'rank')} ...")
        again = _going_on(folder, data, say, quiet)
        carry_out(folder, config, job, say, on_epoch, again)
        return Run(folder.path, folder.read_result())


def resume_run(
    path: Path,
    changes: dict[str, Any],
    *,
    say: Say = lambda line: None,
    quiet: bool = False,
    on_epoch: OnEpoch | None = None,
) -> Run:
    """Go on with a run from its newest whole checkpoint; `changes` may raise the number of epochs.

    On another number of ranks its data is cut anew. One that was stopped while its data was
    prepared goes on with that.
    """
    folder = RunFolder(path)
    if under_torchrun():
        changes = {**changes, "ranks": int(os.environ["WORLD_SIZE"])}
        deadline = float(changes.get("deadline", DEFAULT_DEADLINE_SECONDS))
        config = make_config(
            **settings_of_first(lambda: _settings_to_resume(path, changes), deadline)
        )
        _check_callback(config, on_epoch)
        with joined(config) as world:
            opened = Opened(folder, config, is_new=False)
            return _work_as_rank(
                config,
                config.data,
                lambda: opened,
                world,
                say=say,
                quiet=quiet,
                on_epoch=on_epoch,
            )
    config = make_config(**_settings_to_resume(path, changes))
    _check_callback(config, on_epoch)
    check_host(config)
    with _working_on(folder, is_new=False, say=say):
        job = _next_job(folder, config.data, config, say, quiet)
        if config.strategy == AUTO:  # it was stopped before one was chosen
            config = make_config(**read_run_config(folder.config))
        again = _going_on(folder, config.data, say, quiet)
        carry_out(folder, config, job, say, on_epoch, again)
        return Run(folder.path, folder.read_result())


def _settings_to_resume(path: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings with those that are to change; raise where they may not."""
    folder, free = begun_run(path), set(MAY_CHANGE)
    # The first epoch may have failed for want of memory.
    free |= set() if has_checkpoint(folder.checkpoints) else {"memory"}
    settings = read_run_config(folder.config)
    begun = make_config(**settings)
    for setting in ("model", "loss"):
        found, named = getattr(begun, setting) or "", changes.get(setting)
        model_to_run(found, named, resume_command(path), path, f"--{setting}")
        free |= {setting} if ":" in found else set()
    fixed = sorted(set(changes) - free)
    if fixed:
        raise ConfigError(
            "A resumed run keeps its settings.",
            seen=f"--resume with {', '.join(fixed)}",
            fix=f"only {', '.join(MAY_CHANGE)} may change (before the first checkpoint the memory "
            "too)",
        )
    config = make_config(**{**settings, **changes})
    check_restarts(config)
    check_epochs(folder, config)
    return {**settings, **changes}


def _going_on(folder: RunFolder, data: Any, say: Say, quiet: bool) -> Again:
    """Return what makes the job of a training that lost ranks, on those that settings tell."""
    return lambda config, anew: _next_job(folder, data, config, say, quiet, anew=anew)


def _check_callback(config: RunConfig, on_epoch: OnEpoch | None) -> None:
    if on_epoch is not None and config.launcher == "ray":
        raise ConfigError(
            "A callback needs ranks of this process, or of this machine.",
            seen="on_epoch with --launcher ray",
            fix="leave one of them out, or read run.metrics afterwards",
        )


def _next_job(
    folder: RunFolder,
    data: Any,
    config: RunConfig,
    say: Say,
    quiet: bool,
    link: Link | None = None,
    *,
    anew: bool = False,
) -> Job:
    """Return what the ranks are to do now: go on, or begin where the data was not prepared yet."""
    with other_cut(folder, config, anew=anew):
        if not is_prepared(folder):
            data = at_hand(data)
            # Its settings were checked when it began: what an earlier version took goes on.
            job = _prepare(folder, data, config, say, quiet, link, anew=anew)
            if not has_checkpoint(folder.checkpoints) and not folder.is_finished:
                return job
    note_phases(folder, {})
    return resumed_job(folder, config, quiet, say)


def _prepare(
    folder: RunFolder,
    data: Any,
    config: RunConfig,
    say: Say,
    quiet: bool,
    link: Link | None = None,
    *,
    anew: bool = False,
) -> Job:
    """Return what the ranks are to do, once there are parts for them."""
    is_named = isinstance(data, str | Path)
    config = settled(config, folder)
    if is_named:  # who is killed now can prepare them again
        describe(folder, config)
    clear_unfinished(folder)
    parts, seconds = folder.parts, {}
    if not parts.exists():
        go_on = f"run `{resume_command(folder.path)}`"
        progress = PhaseProgress(quiet=quiet, spans=BEFORE_TRAINING, live=folder.live)
        parts = prepare_parts(
            data, config, parts, say=say, progress=progress, go_on=go_on, anew=anew
        )
        progress.times.end()
        seconds = progress.times.seconds
    chosen = with_chosen_strategy(config, parts, say, link)
    if not is_named or chosen is not config:
        describe(folder, chosen)
    config = chosen
    check_host_with_parts(config, parts)
    note_forecast(folder, config, parts, link)
    save_schema(folder, parts)
    # Where parts lie elsewhere, nobody reads more than his own.
    is_here = folder_kind(parts) != "parts" or open_parts(parts).is_here
    if folder_kind(parts) == "parts" and config.task != "link" and is_here:
        for line in told_classes_of_parts(parts, of_edges=config.task == "edge"):
            say(line)
    odd = data_warnings(parts, config) if is_here else []
    _warn(folder, [*machine_warnings(config), *lone_warnings(config), *odd], say)
    job = Job(verb="train", parts=origin_of(parts) or str(parts.absolute()), quiet=quiet)
    save_job(folder, job)
    note_phases(folder, seconds)
    return job


def _warn(folder: RunFolder, warnings: list[str], say: Say) -> None:
    with writing(folder.path):
        for line in warnings:
            folder.note_warning(line)
            say(f"Warning: {line}")


def _working_on(folder: RunFolder, *, is_new: bool, say: Say) -> AbstractContextManager[None]:
    return working_on(folder, is_new=is_new, say=say, at_end=lambda: _warn_of_result(folder, say))


def _warn_of_result(folder: RunFolder, say: Say) -> None:
    parts = Path(parts_of(folder))
    if folder_kind(parts) == "parts" and open_parts(parts).is_here:
        found = result_warnings(parts, read_run_config(folder.config), folder.read_result())
        _warn(folder, found, say)


def _new_folder(config: RunConfig) -> RunFolder:
    stem = Path(config.data).name.split(".")[0].replace(":", "-") or "graph"
    told = config.label or config.edge_label or config.task
    if is_kept_frame(config.data) and told:  # which has no name of its own
        stem = re.sub(r"[^\w]+", "-", told).strip("-")[:40] or stem
    model = config.model.rpartition(":")[2].lower()
    return RunFolder.create(Path(config.out) if config.out else None, f"{stem}-{model}")


def _run_as_rank(
    config: RunConfig,
    data: Any,
    say: Say,
    quiet: bool,
    on_epoch: OnEpoch | None,
    goes_on: bool,
) -> Run:
    """Train as one of torchrun's ranks; rank 0 prepares, all must reach the run folder.

    Ranks that torchrun started again go on with the run that the earlier ones began.
    """
    size = int(os.environ["WORLD_SIZE"])
    if "ranks" in config.model_fields_set and config.ranks != size:
        raise ConfigError(
            "The number of ranks is the launcher's.",
            seen=f"--ranks {config.ranks}, but it started {size}",
            fix="leave --ranks out, or start as many processes",
        )
    config = config.model_copy(update={"ranks": size})
    with joined(config) as world:
        key = f"run/{next(_NUMBERS)}"

        def open_run() -> Opened:
            if world.lasting is not None and world.lasting.check([key]):
                earlier = RunFolder(Path(world.lasting.get(key).decode()))
                if earlier.config.exists():
                    return opened_again(earlier, {}, size)
                if earlier.path.exists():  # of data in memory nothing is written before it is cut
                    return Opened(earlier, config, is_new=True)
            if goes_on and (begun := begun_at(config)) is not None:
                return opened_again(begun, changes_to(begun, config), size)
            folder = _new_folder(config)
            if world.lasting is not None:
                world.lasting.set(key, str(folder.path.absolute()))
            return Opened(folder, config, is_new=True)

        return _work_as_rank(config, data, open_run, world, say=say, quiet=quiet, on_epoch=on_epoch)


_NUMBERS = itertools.count()
"""Of the runs that this process starts, alike whenever torchrun starts it again."""


def _work_as_rank(
    config: RunConfig,
    data: Any,
    open_run: Callable[[], Opened],
    world: World,
    *,
    say: Say,
    quiet: bool,
    on_epoch: OnEpoch | None = None,
) -> Run:
    """Do this rank's share of a run that rank 0 opens."""
    check_enough(config, world.size)
    check_alike(world)
    is_auto = world.gather_numbers([float(config.strategy == AUTO)])[0][0]
    link = measured_link(world) if is_auto else None
    if world.rank != 0:
        wait_for_preparation(world)
        return _share_work("", None, world, None)
    with ExitStack() as stack:
        with preparing(world):
            run = open_run()
            stack.enter_context(_working_on(run.folder, is_new=run.is_new, say=say))
            say(f"Run: {run.folder.path}")
            job = _next_job(run.folder, data, run.config, say, quiet, link)
        return _share_work(str(run.folder.path.absolute()), job, world, on_epoch)


def _share_work(path: str, job: Job | None, world: World, on_epoch: OnEpoch | None) -> Run:
    """Do this rank's share of rank 0's job at rank 0's path, and wait for the others."""
    with shared_job(path, job, world) as (place, folder, own):
        work(folder, own, world, on_epoch)
        world.step = "the end"
        return Run(place, shared_result(folder, world), world.rank == 0)

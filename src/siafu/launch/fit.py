"""One call from data to a trained model: prepare, start the ranks, gather the result."""

import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from siafu.checkpoint import has_checkpoint, newest_checkpoint
from siafu.comm import World, choose_device
from siafu.config import RunConfig, make_config, read_config, write_config
from siafu.errors import ConfigError, StoreError
from siafu.graph import partial_path, writing
from siafu.launch.checks import check_run
from siafu.launch.cut import Say
from siafu.launch.local import run_ranks, threads_for
from siafu.launch.preparation import preparing, wait_for_preparation
from siafu.launch.prepare import prepare_parts, with_ranks_of_parts
from siafu.launch.rank import Job, prepare_process, saves_memory, work
from siafu.ops import (
    HUGE_PAGES_VARIABLE,
    num_threads,
    set_threads,
    warm_up,
    warm_up_sampling,
    warm_up_wire,
)
from siafu.plan import named_strategy
from siafu.record import RunFolder


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its folder and what it reported."""

    path: Path
    result: dict[str, Any]
    is_first_rank: bool = True
    """False on the other ranks under torchrun: one of them is enough to print."""

    @property
    def accuracy(self) -> dict[str, float]:
        """Scores of train, val and test vertices, or edges, at the best validation epoch."""
        scores: dict[str, float] = self.result["accuracy"]
        return scores

    @property
    def predictions(self) -> pa.Table:
        """One row a vertex: original id, prediction, confidence, label, split.

        Where edges are predicted, one a held-out edge: src, dst, score, split.
        """
        return pq.read_table(RunFolder(self.path).predictions)


def fit(data: Any, *, quiet: bool = True, **settings: Any) -> Run:
    """Train on `data` (whatever `siafu.load` takes, or a parts folder) and return the run."""
    name = data if isinstance(data, str | Path) else getattr(data, "name", type(data).__name__)
    config = make_config(data=str(name), **settings)
    return start_run(config, data=data, say=lambda line: None, quiet=quiet)


def start_run(
    config: RunConfig,
    *,
    data: Any = None,
    say: Say,
    quiet: bool = False,
    folder: RunFolder | None = None,
) -> Run:
    """Prepare the data and train as configured, on this process or on new ranks.

    `folder` is that of a run that was stopped before its data was prepared.
    """
    data = config.data if data is None else data
    check_run(data, config)
    if under_torchrun():
        return _run_as_rank(config, data, say, quiet)
    choose_device(config.device, 0)
    config = with_ranks_of_parts(data, config)
    with _folder_of(config, folder) as folder:
        job = _prepare(folder, data, config, say, quiet)
        if config.ranks > 1:
            say(f"Starting {config.ranks} ranks ...")
        try:
            return _carry_out(folder, config, job)
        except KeyboardInterrupt:
            say(_how_to_go_on(folder))
            raise


def resume_run(
    path: Path, changes: dict[str, Any], *, say: Say = lambda line: None, quiet: bool = False
) -> Run:
    """Go on with a run from its newest checkpoint; `changes` may raise the number of epochs.

    One that was stopped while its data was prepared goes on with that.
    """
    folder = RunFolder(path) if is_half_prepared(RunFolder(path)) else existing_run(path)
    free = {"epochs", "patience", "deadline", "threads", "launcher", "ray_address"}
    # The first epoch may have failed for want of memory.
    free |= set() if has_checkpoint(folder.checkpoints) else {"memory"}
    fixed = sorted(set(changes) - free)
    if fixed:
        raise ConfigError(
            "A resumed run keeps its settings.",
            seen=f"--resume with {', '.join(fixed)}",
            fix="only epochs, patience, deadline, threads and the launcher may change (before the "
            "first checkpoint the memory too)",
        )
    config = make_config(**{**read_config(folder.config), **changes})
    if under_torchrun():
        with _joined(config) as world:
            # Rank 0 says which: it may be done with preparing before another rank looks.
            if world.share_text("prepare" if is_half_prepared(folder) else ""):
                return _prepare_and_share(config, config.data, folder, world, say=say, quiet=quiet)
            job = _resumed_job(folder, quiet)
            if world.rank == 0:
                _save_resumed(folder, config, job, say)
            return _share_work(str(path.absolute()), job, world)
    if is_half_prepared(folder):
        return start_run(config, say=say, quiet=quiet, folder=folder)
    job = _resumed_job(folder, quiet)
    _save_resumed(folder, config, job, say)
    return _carry_out(folder, config, job)


def _resumed_job(folder: RunFolder, quiet: bool) -> Job:
    has_begun = has_checkpoint(folder.checkpoints)
    if folder.weights.exists():  # a finished run is not trained all over again
        newest_checkpoint(folder.checkpoints)
    return Job(verb="train", parts=_parts_of(folder), resume=has_begun, quiet=quiet)


def _save_resumed(folder: RunFolder, config: RunConfig, job: Job, say: Say) -> None:
    """Note the settings; without a checkpoint forget the epochs that were trained before."""
    _save_config(folder, config)
    if not job.resume:
        say("No checkpoint was written yet: starting at the first epoch, with the data as it is.")
        with writing(folder.metrics):
            folder.keep_metrics(0)


def is_half_prepared(folder: RunFolder) -> bool:
    """True where a run was stopped while its data was cut, or just after."""
    if folder.job.exists() or not folder.config.exists():
        return False
    return partial_path(folder.parts).exists() or folder.parts.exists()


def _prepare(folder: RunFolder, data: Any, config: RunConfig, say: Say, quiet: bool) -> Job:
    """Return what the ranks are to do, once there are parts for them."""
    command = f"siafu train --resume {folder.path}"
    parts = folder.parts
    if parts.exists():
        shutil.rmtree(partial_path(parts), ignore_errors=True)
    else:
        try:
            parts = prepare_parts(
                data, config, parts, say=say, quiet=quiet, go_on=f"run `{command}`"
            )
        except KeyboardInterrupt:
            if is_half_prepared(folder):
                say(f"Stopped; what was prepared is kept. Go on with: {command}")
            raise
    job = Job(verb="train", parts=str(parts.absolute()), quiet=quiet)
    _save_job(folder, job)
    return job


def infer(
    path: Path,
    target: Path,
    *,
    data: Any = None,
    embeddings: bool = False,
    overwrite: bool = False,
    say: Say,
) -> Path:
    """Write predictions of a finished run for its own graph or another; return their folder.

    The folder appears when all ranks are done, and not at all when one fails.
    """
    folder = existing_run(path)
    if not folder.weights.exists():
        raise StoreError("The run is not finished.", seen=str(path), fix="resume it first")
    if under_torchrun():
        raise ConfigError(
            "Inference starts its ranks itself.",
            seen=f"infer under torchrun, {os.environ['WORLD_SIZE']} ranks",
            fix="run the same command without torchrun",
        )
    _check_free(target, overwrite=overwrite)
    config = make_config(**read_config(folder.config))
    parent = target.absolute().parent
    with writing(target):
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".siafu-", dir=parent) as scratch:
        parts = Path(_parts_of(folder))
        if data is not None:
            own = Path(scratch) / "data.parts"
            parts = prepare_parts(data, config, own, say=say, draw_masks=False)
        made = Path(scratch) / "predictions"
        job = Job(
            verb="infer", parts=str(parts.absolute()), embeddings=embeddings, target=str(made)
        )
        _carry_out(folder, config, job)
        with writing(target):
            if target.exists():
                target.rename(Path(scratch) / "old")
            made.rename(target)
    return target


def _check_free(target: Path, *, overwrite: bool) -> None:
    """Raise unless predictions may be put at `target`: never in place of anything else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if overwrite and target.is_dir() and all(p.suffix == ".parquet" for p in target.iterdir()):
        return
    if overwrite:
        raise StoreError(
            "The target holds more than predictions.", seen=str(target), fix="name another --out"
        )
    raise StoreError(
        "The target exists already.",
        seen=str(target),
        fix="name another folder with --out, or pass --overwrite",
    )


def existing_run(path: Path) -> RunFolder:
    """Return the run folder at `path`, refusing anything else."""
    folder = RunFolder(path)
    if not folder.config.exists():
        raise StoreError("No run there.", seen=str(path), fix="name a folder that train wrote")
    if not folder.job.exists():
        kept = is_half_prepared(folder)
        raise StoreError(
            "The run was stopped before its data was prepared.",
            seen=f"{path}; the work so far {'is kept' if kept else 'was not kept'}",
            fix=f"go on with `siafu train --resume {path}`" if kept else "start it again",
        )
    return folder


def under_torchrun() -> bool:
    """True when another launcher already started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def _folder_of(config: RunConfig, folder: RunFolder | None) -> Iterator[RunFolder]:
    """Yield the run folder, a new one where none is given.

    It is removed when the run fails before its first epoch, unless preparing it can go on.
    """
    stem = Path(config.data).name.split(".")[0].replace(":", "-") or "graph"
    model = config.model.rpartition(":")[2].lower()
    if folder is None:
        folder = RunFolder.create(Path(config.out) if config.out else None, f"{stem}-{model}")
    try:
        _save_config(folder, config.resolved())
        with writing(folder.path):
            folder.write_environment()
        yield folder
    except BaseException:
        if not (folder.metrics.exists() or folder.parts.exists() or is_half_prepared(folder)):
            folder.discard()
        raise


def _how_to_go_on(folder: RunFolder) -> str:
    """Return what a user who stopped a run can do with it."""
    saved = sorted(folder.checkpoints.glob("epoch-*"))
    if not saved:
        return (
            "Stopped before the first checkpoint (--checkpoint-every sets how often one is made)."
        )
    epoch = int(saved[-1].name.removeprefix("epoch-"))
    return f"Stopped; epoch {epoch} is saved. Go on with: siafu train --resume {folder.path}"


def _save_config(folder: RunFolder, config: RunConfig) -> None:
    with writing(folder.config):
        write_config(config, folder.config)


def _save_job(folder: RunFolder, job: Job) -> None:
    with writing(folder.path):
        folder.job.write_text(job.to_text())


def _parts_of(folder: RunFolder) -> str:
    """Return the parts a run was trained on; its own stay with it when it is moved."""
    if folder.parts.exists():
        return str(folder.parts.absolute())
    return Job.from_text(folder.job.read_text()).parts


def _carry_out(folder: RunFolder, config: RunConfig, job: Job) -> Run:
    if config.ranks == 1 and config.launcher == "local":
        threads = num_threads()
        try:
            with _joined(config) as world:
                work(folder, job, world)
        finally:
            set_threads(threads)  # the caller's own, who may go on with other work
    else:
        warm_up()
        if named_strategy(config).wire != 32 or config.feature_bits != 32:
            warm_up_wire()
        if named_strategy(config).unit == "macrobatch":
            warm_up_sampling()
        threads = threads_for(config.ranks, config.threads)
        variables = {HUGE_PAGES_VARIABLE: "1"} if saves_memory(config) else {}
        if config.launcher == "ray":
            on_ray = importlib.import_module("siafu.launch.ray")  # who has no Ray needs none
            on_ray.run_ranks_on_ray(config, folder.path, job.to_text(), variables)
        else:
            run_ranks(
                config.ranks, folder.path, job.to_text(), threads=threads, variables=variables
            )
    result = json.loads(folder.result.read_text()) if job.verb == "train" else {}
    return Run(folder.path, result)


def _run_as_rank(config: RunConfig, data: Any, say: Say, quiet: bool) -> Run:
    """Train as one of torchrun's ranks; rank 0 prepares, all must reach the run folder."""
    size = int(os.environ["WORLD_SIZE"])
    if "ranks" in config.model_fields_set and config.ranks != size:
        raise ConfigError(
            "The number of ranks is the launcher's.",
            seen=f"--ranks {config.ranks}, but it started {size}",
            fix="leave --ranks out, or start as many processes",
        )
    config = config.model_copy(update={"ranks": size})
    with _joined(config) as world:
        return _prepare_and_share(config, data, None, world, say=say, quiet=quiet)


def _prepare_and_share(
    config: RunConfig,
    data: Any,
    folder: RunFolder | None,
    world: World,
    *,
    say: Say,
    quiet: bool,
) -> Run:
    if world.rank != 0:
        wait_for_preparation(world)
        return _share_work("", None, world)
    with ExitStack() as stack:
        with preparing(world):
            folder = stack.enter_context(_folder_of(config, folder))
            job = _prepare(folder, data, config, say, quiet)
        return _share_work(str(folder.path.absolute()), job, world)


def _joined(config: RunConfig) -> World:
    prepare_process(config)
    return World.join(device=config.device, deadline_seconds=config.deadline)


def _share_work(path: str, job: Job | None, world: World) -> Run:
    """Do this rank's share of rank 0's job at rank 0's path, and wait for the others."""
    world.step = "start"
    folder = existing_run(Path(world.share_text(path)))
    work(folder, Job.from_text(world.share_text(job.to_text() if job else "")), world)
    world.step = "the end"
    world.check_agreement("run folder", str(folder.path))
    return Run(folder.path, json.loads(folder.result.read_text()), world.rank == 0)

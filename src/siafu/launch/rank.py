"""What one rank does: join the others, open its shard, train or infer, tell how it failed."""

import ctypes
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from siafu.comm import World, bring_files
from siafu.config import ResolvedConfig, RunConfig, make_config, read_run_config
from siafu.engine import Trainer, begin, load_network, write_embeddings, write_predictions
from siafu.engine.device_memory import held_by_shard, naming_what_is_held
from siafu.engine.edges import EdgeNetwork, write_edges
from siafu.engine.infer import keeping_passes
from siafu.engine.pairs import write_pairs
from siafu.engine.workload import Workload
from siafu.errors import BudgetError, SiafuError, StoreError, Terminated
from siafu.files import fetched_bytes, write_text_atomically
from siafu.graph import at_hand, first_fault, folder_kind, origin_of, writing
from siafu.launch.callbacks import OnEpoch, await_answer, told_of
from siafu.launch.device_room import held_to_budget
from siafu.launch.dynamic import begin_on_dynamic, infer_on_dynamic
from siafu.launch.local import (
    ERRORS_VARIABLE,
    RankFailure,
    note_doings,
    tell_place_when_asked,
    threads_for,
)
from siafu.launch.opening import open_part
from siafu.launch.out_of_memory import explaining
from siafu.launch.own_code import told_as_the_users
from siafu.launch.rank_checks import CHECK, check_alike, write_check
from siafu.launch.sinks import open_sinks
from siafu.launch.warnings import LossWatch, PaceWatch
from siafu.minibatch import HeldOut, has_held_out, hold_out_of_shard
from siafu.nn import Draws
from siafu.ops import set_threads, spare_memory, spare_page_faults, telling_compilation
from siafu.partitioning import open_parts
from siafu.record import BEFORE_TRAINING, Pace, ProgressLine, RunFolder, Trace, Watch, write_joined
from siafu.record.progress import CUTTING, QUIET_SECONDS
from siafu.record.watch import WRITING
from siafu.shard import Shard
from siafu.signals import TERMINATED_CODE, ending_cleanly, heeding
from siafu.strategy import unread_of_edges

_PR_SET_PDEATHSIG = 1
COMPILING_TOLD_VARIABLE = "SIAFU_COMPILING_TOLD"
"""Set where the launcher has said that kernels are compiled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the ranks of a run are to do now."""

    verb: str
    """train or infer."""
    parts: str
    resume: bool = False
    quiet: bool = False
    embeddings: bool = False
    target: str = ""
    """Where inference writes."""
    pairs: str = ""
    """Numbers of the pairs of nodes to score, where some are asked for."""
    asks: bool = False
    """Whether rank 0 asks the process that started it, after every epoch, if it is to go on."""
    model: str = ""
    """Where a model of the user's own is now; the run's own setting where not given."""
    memory: str = ""
    """What a rank may take while it infers, likewise."""

    def settings(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return a run's own settings with what the job has otherwise."""
        return own | {k: v for k, v in (("model", self.model), ("memory", self.memory)) if v}

    def to_text(self) -> str:
        """Return the job as one line, to hand to other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Job":
        """Return the job that `to_text` wrote."""
        try:
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            raise StoreError(
                "What the run was asked to do (job.json) can't be read.",
                seen=first_fault(error),
                fix="start the run again in another folder with --out",
            ) from error


def work(folder: RunFolder, job: Job, world: World, on_epoch: OnEpoch | None = None) -> None:
    """Do this rank's share of a job; `on_epoch` is called here after epochs of a training."""
    if job.verb == CHECK:
        write_check(world, folder)
        return
    config = make_config(**job.settings(read_run_config(folder.config))).resolved()
    world.trace = Trace(world.rank) if config.trace else None
    alike = replace(job, parts="", target="", pairs="")  # where they lie may differ by machine
    world.check_agreement("settings", config.model_dump_json() + repr(alike))
    job = replace(job, parts=str(at_hand(job.parts)))
    with (
        explaining(config, job.parts, world),
        told_as_the_users(config.model, config.loss, world),
        held_to_budget(config, world),
    ):
        is_dynamic = folder_kind(Path(job.parts)) == "dynamic"
        if job.verb == "train":
            start = begin_on_dynamic if is_dynamic else _begin
            if job.asks:
                on_epoch = _asking(folder, world)
            say = _say_nothing if job.quiet or world.rank != 0 else _say
            _train(start(config, folder, job, world, say), folder, job, on_epoch)
        elif is_dynamic:
            infer_on_dynamic(config, folder, job, world)
        else:
            _infer(config, folder, job, world)
        if job.target:
            bring_files(world, Path(job.target), "*")


def _begin(
    config: ResolvedConfig, folder: RunFolder, job: Job, world: World, say: Callable[[str], None]
) -> Trainer:
    """Return the training of a static graph."""
    shard = open_part(config, job.parts, world, say, trains=True)
    held_out = None
    if config.task == "link":
        shard, held_out = _without_held_out(config, job, shard)
    resumed = folder.checkpoints if job.resume else None
    held = partial(held_by_shard, shard)
    try:
        with naming_what_is_held(world.device, config.chosen.unit, held):
            return begin(config, shard, resumed, held_out, say, lambda: open_parts(job.parts))
    except BudgetError as error:
        if job.resume or config.memory is None or not folder.parts.exists():
            raise
        # Cut for this run: neither it nor what it took is lost.
        go_on = f"siafu train --resume {quote(str(folder.path))}"
        again = f"; the cut is kept: go on with `{go_on}` and a larger --memory"
        raise BudgetError(error.problem, seen=error.seen, fix=error.fix + again) from None


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _say_nothing(line: str) -> None:
    pass


def _asking(folder: RunFolder, world: World) -> OnEpoch:
    return lambda epoch, told: await_answer(folder, epoch, world.deadline_seconds)


def _train(trainer: Trainer, folder: RunFolder, job: Job, on_epoch: OnEpoch | None) -> None:
    try:
        _train_on(trainer, folder, job, on_epoch)
    except BaseException:
        trainer.abandon()
        raise


def _train_on(trainer: Trainer, folder: RunFolder, job: Job, on_epoch: OnEpoch | None) -> None:
    config, world, workload = trainer.config, trainer.world, trainer.workload
    is_first, predicts = world.rank == 0, config.inference == "full"
    if is_first and folder.metrics.exists():  # its checkpoint may be an older one
        with writing(folder.metrics):
            folder.keep_metrics(trainer.progress.epochs)
    said_before = COMPILING_TOLD_VARIABLE in os.environ
    with (
        ProgressLine(
            quiet=job.quiet or not is_first, live=folder.live if is_first else None
        ) as line,
        _watched(trainer, folder, line) as watch,
        telling_compilation(_say_nothing if said_before else line.say, watch.compiling),
        open_sinks(config, folder, trainer.progress.epochs, line.warn, is_first=is_first) as sinks,
        keeping_passes(workload.network, folder.inference, world),
    ):
        losses, paces = _loss_watch(trainer), PaceWatch(world.named)
        if ":" in config.model and not trainer.progress.epochs:
            _tell_unread(workload, line)

        def show(row: dict[str, Any]) -> bool | None:
            of_loss = losses.note(row["epoch"], row["loss"])
            for warning in filter(None, (of_loss, paces.note(trainer.rank_seconds))):
                folder.note_warning(warning)
                line.warn(warning)
            sinks.row(row, workload.metrics[0])
            watch.end_epoch(f"loss {row['loss']:.4f}  {workload.note_of(row)}".rstrip())
            return None if on_epoch is None else on_epoch(row["epoch"], told_of(row))

        with heeding() as is_told:
            result = trainer.train(folder, show, is_told)
        told = result.to_json() | _fetched(job, world)
        if world.trace is not None:
            write_joined(world.trace, folder.path, world.size, lambda: _meet(folder, world))
        if is_first:  # before predictions: what fails there loses nothing
            with writing(folder.path):
                workload.save_weights(folder.weights)
                folder.write_result(told)
            sinks.end(told)
        if predicts:
            with watch.writing(), trainer.naming_what_is_held():
                workload.write_predictions(folder.predictions)
                bring_files(world, folder.predictions, "*")
            world.step = "the end"
            world.gather_numbers([0.0])  # a rank that stands still while it writes is noticed
    trainer.close()


def _fetched(job: Job, world: World) -> dict[str, Any]:
    """Return what each rank has fetched of data that lies under a URL."""
    if origin_of(Path(job.parts)) is None:
        return {}
    rows = world.gather_numbers([float(fetched_bytes())])
    return {"fetched_bytes": [int(row[0]) for row in rows]}


def _meet(folder: RunFolder, world: World) -> None:
    bring_files(world, folder.path, "trace-*.json")
    world.gather_numbers([1.0])


def _tell_unread(workload: Workload, line: ProgressLine) -> None:
    """Say which columns of the edges a model of the user's own passes over."""
    shard, module = getattr(workload, "shard", None), workload.module
    if isinstance(shard, Shard) and (names := unread_of_edges(module, shard)):
        line.say(
            f"{type(module).__name__} does not read {' and '.join(names)} of the edges: a forward "
            "is given what it names."
        )


def _loss_watch(trainer: Trainer) -> LossWatch:
    """Return what follows the loss, from where a resumed run left it."""
    losses, lr = trainer.progress.losses, trainer.config.lr or 0.0
    lowest = min(losses, default=math.inf)
    return LossWatch(lr, trainer.workload.guessed_loss, lowest, begins=not losses)


@contextmanager
def _watched(trainer: Trainer, folder: RunFolder, line: ProgressLine) -> Iterator[Watch]:
    """Follow a training; rank 0 notes the seconds of its phases, however it ends."""
    config, is_first = trainer.config, trainer.world.rank == 0
    predicts = config.inference == "full"
    pace = Pace(
        config.epochs,
        done=trainer.progress.epochs,
        eval_every=config.eval_every if config.is_scored else 0,
        writes=predicts,
    )
    at, before = folder.last_phase() if is_first else (0.0, 0.0)
    starting = {"starting": max(0.0, time.time() - at)}
    low = BEFORE_TRAINING[CUTTING][1] if before >= QUIET_SECONDS else 0.0
    watch = Watch(pace, line, low=low, bound="at most " if config.patience else "")
    trainer.watch = watch
    try:
        yield watch
    finally:
        if is_first:
            with suppress(OSError):  # of a full disk that ends the run, or of one that is done
                folder.note_phases(starting | watch.times.seconds)


def _without_held_out(config: ResolvedConfig, job: Job, shard: Shard) -> tuple[Shard, HeldOut]:
    """Return the shard to train on, and this rank's share of the edges to evaluate on."""
    if has_held_out(job.parts):
        return shard, HeldOut.load(job.parts).share(shard)
    return hold_out_of_shard(shard, config.split, config.seed)


def _infer(config: ResolvedConfig, folder: RunFolder, job: Job, world: World) -> None:
    with ProgressLine(quiet=job.quiet or world.rank != 0) as line:
        line.show(WRITING)
        shard = open_part(config, job.parts, world, line.say, trains=False)
        held = partial(held_by_shard, shard)
        with naming_what_is_held(world.device, config.chosen.unit, held):
            _write_inferred(config, folder, job, shard, line)


def _write_inferred(
    config: ResolvedConfig, folder: RunFolder, job: Job, shard: Shard, line: ProgressLine
) -> None:
    draws = Draws(seed=config.seed, training=False)
    network, shard = load_network(config, shard, draws, folder.weights, line.say)
    with keeping_passes(network, folder.inference, shard.world):
        _write_answers(config, job, network, shard, draws)


def _write_answers(
    config: ResolvedConfig, job: Job, network: Any, shard: Shard, draws: Draws
) -> None:
    target = Path(job.target)
    if job.pairs:
        write_pairs(network, shard, draws, open_parts(job.parts).ids, Path(job.pairs), target)
    elif config.task == "link":
        write_embeddings(network, shard, draws, target)
    elif isinstance(network, EdgeNetwork) and job.embeddings:
        write_embeddings(network.nodes, shard, draws, target)
    elif isinstance(network, EdgeNetwork):
        write_edges(network, shard, draws, open_parts(job.parts), target)
    else:
        write_predictions(network, shard, draws, target, embeddings=job.embeddings)


def prepare_process(config: RunConfig) -> None:
    """Set threads and allocator for a rank, before its first large tensor."""
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    set_threads(threads_for(local_ranks, config.threads))
    # Who asks for less memory is given less, at the price of page faults.
    spare_memory() if saves_memory(config) else spare_page_faults()


def saves_memory(config: RunConfig) -> bool:
    """True when the run's strategy was chosen to need less memory, or its memory is limited."""
    return config.memory is not None or config.chosen.stages != 1


def _end_with_parent() -> None:
    """Have the kernel end this rank when its launcher dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ.get("SIAFU_PARENT", os.getppid())):
        sys.exit(1)


def _tell(error: BaseException, rank: int) -> None:
    ours = (error.problem, error.seen, error.fix) if isinstance(error, SiafuError) else None
    is_told_to_end = isinstance(error, KeyboardInterrupt | Terminated)
    failure = RankFailure(
        rank=rank,
        time=time.time(),
        kind=type(error).__name__,
        text=str(error.__cause__ or "at once") if is_told_to_end else str(error),
        traceback="".join(traceback.format_exception(error)),
        user_error=ours,
    )
    text = json.dumps(asdict(failure))
    write_text_atomically(Path(os.environ[ERRORS_VARIABLE]) / f"rank{rank}.json", text)


Sharing = Callable[[str, Job, World], AbstractContextManager[tuple[Path, RunFolder, Job]]]


def main(run: str, job_text: str, settings: str = "", *, sharing: Sharing) -> int:
    """Run this rank's share of a job and return the exit code; `settings` where a node of Ray may
    not see the run's folder: `sharing` brings what it needs."""
    _end_with_parent()
    folder, job, rank = RunFolder(Path(run)), Job.from_text(job_text), int(os.environ["RANK"])
    tell_place_when_asked(rank)
    try:
        with ending_cleanly():
            told = json.loads(settings) if settings else read_run_config(folder.config)
            with _joined(make_config(**job.settings(told)), rank) as world, ExitStack() as stack:
                if settings:
                    check_alike(world)
                    _, folder, job = stack.enter_context(sharing(str(folder.path), job, world))
                work(folder, job, world)
    except (KeyboardInterrupt, Terminated) as error:
        if getattr(error, "rank_was_told", True):  # else the rank that was told tells
            _tell(error, rank)
        os._exit(TERMINATED_CODE)
    except Exception as error:  # noqa: BLE001 - every failure is told to the launcher
        _fail(error, rank)
    return 0


def _joined(config: RunConfig, rank: int) -> World:
    prepare_process(config)
    world = World.join(
        device=config.device,
        backend=config.backend,
        deadline_seconds=config.deadline,
        give_up=lambda error: _fail(error, rank),
    )
    world.doing = note_doings(rank)
    return world


def _fail(error: Exception, rank: int) -> NoReturn:
    _tell(error, rank)
    # Peers may still wait for this rank; leaving at once closes its sockets and frees them.
    sys.stderr.flush()
    os._exit(2 if isinstance(error, SiafuError) else 1)

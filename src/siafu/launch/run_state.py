"""How far a run is by its folder, how to go on with it, and holding it for one process."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from siafu.checkpoint import (
    checkpoints_in,
    clear_leftovers,
    has_checkpoint,
    moment_of,
    newest_checkpoint,
)
from siafu.config import RunConfig, write_config
from siafu.errors import ConfigError, SiafuError, StoreError, Terminated
from siafu.files import write_text_atomically
from siafu.graph import LockedError, at_hand, locked, partial_path, writing
from siafu.launch.rank import Job
from siafu.record import RunFolder
from siafu.report import write_report

Say = Callable[[str], None]


def existing_run(path: Path) -> RunFolder:
    """Return the folder of a run whose data is prepared, refusing anything else."""
    folder = begun_run(path)
    if not is_prepared(folder):
        raise StoreError(
            "The run was stopped before its data was prepared.",
            seen=str(path),
            fix=f"go on with `{resume_command(path)}`",
        )
    return folder


def begun_run(path: Path) -> RunFolder:
    """Return the folder of a run, be its data prepared or not."""
    folder = RunFolder(path)
    if not folder.config.exists():
        raise StoreError("No run there.", seen=str(path), fix="name a folder that train wrote")
    return folder


def is_prepared(folder: RunFolder) -> bool:
    """Return whether the ranks of a run have been told what to do, on which data."""
    return _job_of(folder) is not None


def parts_of(folder: RunFolder) -> str:
    """Return where the parts lie that a run was trained on: of a URL, what is here of them."""
    return str(at_hand(named_parts(folder)))


def named_parts(folder: RunFolder) -> str:
    """Return the parts a run was trained on; its own stay with it when it is moved."""
    if folder.parts.exists():
        return str(folder.parts.absolute())
    job = _job_of(folder)
    assert job is not None, "existing_run comes first"
    return job.parts


def _job_of(folder: RunFolder) -> Job | None:
    try:
        return Job.from_text(folder.read_job())
    except StoreError:  # none yet, or damaged: it is made again
        return None


def save_job(folder: RunFolder, job: Job) -> None:
    """Note what the ranks are to do: from now on the data is prepared."""
    with writing(folder.path):
        write_text_atomically(folder.job, job.to_text())


def save_config(folder: RunFolder, config: RunConfig) -> None:
    """Note the settings."""
    with writing(folder.config):
        write_config(config, folder.config)


def describe(folder: RunFolder, config: RunConfig) -> None:
    """Note the settings, and the machine that they are for."""
    save_config(folder, config.resolved())
    with writing(folder.path):
        folder.write_environment()


def note_phases(folder: RunFolder, seconds: dict[str, float]) -> None:
    """Note what phases took."""
    with writing(folder.path):
        folder.note_phases(seconds)


def resume_command(path: Path) -> str:
    """Return the command that goes on with a run."""
    return f"siafu train --resume {shlex.quote(str(path))}"


def how_to_go_on(folder: RunFolder) -> str:
    """Return what a user who stopped a run can do with it."""
    command = resume_command(folder.path)
    if not folder.path.exists():
        return "Stopped; nothing was kept."
    if not is_prepared(folder):
        kept = "what was prepared is kept" if has_data(folder) else "no data was prepared yet"
        return f"Stopped; {kept}. Go on with: {command}"
    saved = checkpoints_in(folder.checkpoints)
    if not saved:
        return (
            f"Stopped before the first checkpoint; the data stays prepared. Go on with: {command}"
        )
    epochs, steps = moment_of(saved[-1])
    what = f"step {steps:,} of epoch {epochs + 1}" if steps else f"epoch {epochs}"
    return f"Stopped; {what} is saved. Go on with: {command}"


def check_epochs(folder: RunFolder, config: RunConfig) -> None:
    """Refuse to go on with a run to fewer epochs than it has: those after would be lost."""
    saved = checkpoints_in(folder.checkpoints)
    done = moment_of(saved[-1])[0] if saved else 0
    if config.epochs < done:
        raise ConfigError(
            "The run has more epochs than that already.",
            seen=f"--epochs {config.epochs}, where epoch {done} is saved in {folder.path}",
            fix=f"give --epochs above {done}, or leave it out; the run as it is can be used",
        )


def has_data(folder: RunFolder) -> bool:
    """Return whether a run holds data that was prepared for it, wholly or in part."""
    return folder.parts.exists() or partial_path(folder.parts).exists()


def discard_if_empty(folder: RunFolder) -> None:
    """Remove the folder of a run that failed before its data was prepared, with nothing kept."""
    if not (is_prepared(folder) or has_data(folder) or folder.metrics.exists()):
        folder.discard()


def resumed_job(folder: RunFolder, config: RunConfig, quiet: bool, say: Say) -> Job:
    """Return what the ranks are to do to go on with a run, once its folder is ready for that."""
    clear_leftovers(folder.checkpoints)
    has_begun = has_checkpoint(folder.checkpoints)
    epochs = 0
    if has_begun or folder.is_finished:  # a finished run is not trained all over again
        epochs = moment_of(newest_checkpoint(folder.checkpoints, say))[0]
    save_config(folder, config.resolved())
    if has_begun:
        say(f"Going on after epoch {epochs} of {config.epochs}.")
    else:
        say("No checkpoint was written yet: starting at the first epoch, with the data as it is.")
    with writing(folder.metrics):
        folder.keep_metrics(epochs)
    return Job(verb="train", parts=named_parts(folder), resume=has_begun, quiet=quiet)


@contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """Hold a run for this process: two at once would write over each other's epochs."""
    with ExitStack() as stack:
        try:
            with writing(folder.path):
                stack.enter_context(locked(folder.path / "lock"))
        except LockedError as error:
            raise StoreError(
                "Another process works on this run.",
                seen=f"{folder.path} is held by {error}",
                fix="wait for it to end, or end it",
            ) from error
        yield


def clear_unfinished(folder: RunFolder) -> None:
    """Remove what killed processes left of data, but for what can be gone on with."""
    if folder.parts.exists():
        shutil.rmtree(partial_path(folder.parts), ignore_errors=True)
    for leftover in folder.path.glob(f".{folder.parts.name}.*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def working_on(
    folder: RunFolder, *, is_new: bool, say: Say, at_end: Callable[[], None]
) -> Iterator[None]:
    """Hold the run, and tell how to go on with it when the work inside is stopped or fails.

    A folder that was made for it goes then, unless data was prepared in it. `at_end` is called when
    all is done.
    """
    try:
        with held(folder):
            try:
                yield
            except BaseException as error:
                if is_new:  # while it is held: whoever else waits for it must not lose his
                    discard_if_empty(folder)
                _draw(folder, error)
                raise
            at_end()
            say(f"Report: {_draw(folder, None)}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | Terminated):
            say(how_to_go_on(folder))
        elif is_new and folder.path.exists() and resume_command(folder.path) not in str(error):
            for line in _what_is_left(folder, error):
                error.add_note(line)  # which is told after the error itself
        raise


def _what_is_left(folder: RunFolder, error: BaseException) -> Iterator[str]:
    """Yield what can be done with a run that failed."""
    if _may_be_mended(folder, error):
        yield f"What was done is kept. To go on: {resume_command(folder.path)}"
    if folder.parts.exists():
        parts = shlex.quote(str(folder.parts))
        yield f"To use its data with other settings: siafu train {parts}"


def _may_be_mended(folder: RunFolder, error: BaseException) -> bool:
    """Return whether going on may end otherwise: a run keeps its settings, and its data once cut.

    Only memory may be given anew, for want of which a run fails otherwise.
    """
    kind = getattr(error, "began_as", "") or type(error).__name__
    faults = ("ConfigError", "PlanError", *(("DataError",) if is_prepared(folder) else ()))
    return kind not in faults


def _draw(folder: RunFolder, error: BaseException | None) -> Path:
    """Write the page of a run, with what ended it, and return its place.

    A run is not lost for want of a page: what can't be written is left out.
    """
    if is_prepared(folder):
        with suppress(OSError, SiafuError):
            folder.note_failure(error if isinstance(error, SiafuError) else None)
            if error is None:
                folder.live.unlink(missing_ok=True)
            write_report([folder.path], folder.report)
    return folder.report

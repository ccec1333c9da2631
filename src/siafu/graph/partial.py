"""A folder made in steps, so that hours of work survive a kill or a full disk.

What is made for `X` is kept in `X.partial` until it is complete: the new folder itself, scratch
files, and the state, which tells the job, the steps that ended and the arrays complete by then.
The same job goes on from there; a step that had not ended is done again.
"""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic import BaseModel

from siafu.errors import CommError, SiafuError, StoreError
from siafu.files import (
    LockedError,
    clear_unheld,
    locked,
    publish,
    read_json,
    temporary_beside,
    write_text_atomically,
)
from siafu.graph.array_stream import Array
from siafu.graph.crew import ALONE, Crew
from siafu.graph.folder import FolderWriter, check_free, unwritable
from siafu.graph.manifest import ArrayEntry

STEP_SECONDS = 10.0
"""The state is not written more often: what it tells of has to be on the disk before."""
NOTE_SECONDS = 60.0
"""Time between notes within a long step."""
_STATE = "state.json"

JobFacts = dict[str, Any]
"""What is asked for and from which files, as JSON holds it; equal jobs make equal folders."""


def partial_path(target: Path) -> Path:
    """Return where a folder is while it is made in steps."""
    return target.with_name(f"{target.name}.partial")


class _FolderState(BaseModel):
    """What `FolderWriter.state` returns."""

    kind: str
    facts: dict[str, Any]
    arrays: dict[str, ArrayEntry]
    children: dict[str, "_FolderState"]


class _StepState(BaseModel):
    ended: bool
    facts: dict[str, Any]


class _State(BaseModel):
    job: dict[str, Any] | None
    steps: dict[str, _StepState]
    folder: _FolderState


class Partial:
    """The steps of one job, and the writer of the folder they make."""

    def __init__(self, path: Path, kind: str, job: JobFacts | None, crew: Crew = ALONE) -> None:
        self.path, self.scratch, self.crew = path, path / "scratch", crew
        self._job, self._steps = job, dict[str, Any]()
        self._written = time.monotonic()
        self._unsynced = list[Path]()
        self._discarded, self._needless = list[Path](), list[Path]()
        self.scratch.mkdir(exist_ok=True)
        (path / "new").mkdir(exist_ok=True)
        self.writer = FolderWriter(path / "new", kind)

    @property
    def ended(self) -> list[str]:
        """The steps that ended, also those of an earlier process."""
        return [name for name, facts in self._steps.items() if facts.get("ended")]

    def has(self, step: str) -> bool:
        """Return whether a step ended."""
        return bool(self._steps.get(step, {}).get("ended"))

    def facts(self, step: str) -> dict[str, Any]:
        """Return what was noted of a step; nothing where it has not begun."""
        return dict(self._steps.get(step, {}).get("facts", {}))

    def end(self, step: str, **facts: Any) -> None:
        """Note that a step ended; what it made is never made again."""
        self._record(step, facts, ended=True)

    def note(self, step: str, **facts: Any) -> None:
        """Note how far a step is."""
        self._record(step, facts, ended=False)

    @property
    def is_kept(self) -> bool:
        """Whether what is done stays for another process when this one ends."""
        return self._job is not None

    @property
    def is_due(self) -> bool:
        """Whether a long step should make a note: nothing is ever read by a job without a name."""
        return self.is_kept and time.monotonic() - self._written >= NOTE_SECONDS

    def save(
        self, step: str, arrays: dict[str, Array], *, ended: bool = True, **facts: Any
    ) -> None:
        """Note a step together with arrays, which replace those it noted before."""
        if not self.is_kept:
            return
        self.forget(step)
        stamp = secrets.token_hex(4)
        for name, array in arrays.items():
            file = self.scratch / f"{step}.{name}.{stamp}.npy"
            np.save(file, array)
            self._unsynced.append(file)
        self._record(step, facts | {"stamp": stamp}, ended=ended)

    def sync(self, *files: Path) -> None:
        """Bring scratch files to the disk before the next state, which needs them, is written."""
        self._unsynced += files

    def load(self, step: str, name: str) -> Array | None:
        """Return an array that the step saved, memory-mapped; None where it saved none."""
        stamp = self.facts(step).get("stamp")
        if stamp is None:
            return None
        file = self.scratch / f"{step}.{name}.{stamp}.npy"
        try:
            return np.load(file, mmap_mode="r" if file.stat().st_size > 128 else None)
        except (OSError, ValueError, EOFError) as error:
            raise _unreadable(self.path, f"{file}: {error}") from error

    def forget(self, step: str) -> None:
        """Remove the arrays of a step, once others make them needless."""
        stamp = self.facts(step).get("stamp")
        self.discard(*self.scratch.glob(f"{step}.*.{stamp}.npy"))

    def discard(self, *paths: Path) -> None:
        """Remove files or folders once the next note is written, which has no need of them."""
        self._discarded += paths

    def _remove_needless(self) -> None:
        for path in self._needless:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self._needless.clear()

    def _record(self, step: str, facts: dict[str, Any], *, ended: bool) -> None:
        self._steps[step] = {"ended": ended, "facts": facts}
        self._needless += self._discarded
        self._discarded.clear()
        if not self.is_kept:
            self._remove_needless()
        elif time.monotonic() - self._written >= STEP_SECONDS:
            self.write_state()

    def hold(self) -> None:
        """Let the folder stay from now on, though no step has ended: other work goes on in it."""
        if not (self.path / _STATE).exists():
            self.write_state()

    def write_state(self) -> None:
        """Write job, steps and complete arrays, at once, then remove what they have no need of."""
        if not self.is_kept:
            return
        for path in self._unsynced:
            with path.open("rb+") as file:
                sync(file)
        self._unsynced.clear()
        state = {"job": self._job, "steps": self._steps, "folder": self.writer.state()}
        write_text_atomically(self.path / _STATE, json.dumps(state))
        self._written = time.monotonic()
        self._remove_needless()

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from an earlier state."""
        self._steps = state["steps"]
        self.writer.restore(state["folder"])


def sync(file: IO[bytes]) -> None:
    """Bring what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def make_in_steps(
    target: Path | str,
    kind: str,
    *,
    job: JobFacts | None = None,
    overwrite: bool = False,
    go_on: str = "run the same command again",
    crew: Crew = ALONE,
) -> Iterator[Partial]:
    """Yield the steps so far; on success the folder appears at `target` at once.

    With a job, what was done stays in `X.partial` when the process is killed, stopped or can't
    write, and goes when the data turns out wrong. Without one nothing ever stays. `go_on` tells the
    user how to go on with what stayed. Others of a `crew` write into it what they are told to.
    """
    target = Path(target)
    kept = None if job is None else partial_path(target)
    path = kept or temporary_beside(target)
    try:
        _clear_leftover(target, path)
        clear_unheld(target.parent, f".{target.name}.*.tmp", _LOCK)  # of processes that were killed
        check_free(target, overwrite)
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            crew.check_sees(path)
            yield from _steps(target, path, kind, job, overwrite, crew)
    except OSError as error:
        how = None if kept is None else f"{go_on}: it goes on from {kept.name}"
        raise unwritable(target, error, go_on=how) from error


def _steps(
    target: Path, path: Path, kind: str, job: JobFacts | None, overwrite: bool, crew: Crew
) -> Iterator[Partial]:
    partial = None
    try:
        partial = _begin(path, kind, job, overwrite, crew)
        yield partial
        partial.writer.finish()
        publish(path / "new", target)
        shutil.rmtree(path, ignore_errors=True)
    except BaseException as error:
        # What could not be written may be written later, also by ranks that are there again; wrong
        # data stays wrong.
        spoilt = isinstance(error, SiafuError) and not isinstance(error, CommError)
        spoilt = spoilt and not isinstance(error.__cause__, OSError)
        if partial is not None:
            partial.writer.abandon()
            with suppress(OSError):  # the disk may be full; then an earlier state stands
                partial.write_state()
        if job is None or (partial is not None and spoilt):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _begin(path: Path, kind: str, job: JobFacts | None, overwrite: bool, crew: Crew) -> Partial:
    state = _read_state(path)
    job = None if job is None else json.loads(json.dumps(job))
    if state is not None and state["job"] != job:
        if not overwrite:
            raise _other_job(path, state["job"], job or {})
        state = None
    if state is None:
        for inside in path.iterdir():
            if inside.name != _LOCK:
                shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
    partial = Partial(path, kind, job, crew)
    if state is not None:
        partial.take_up(state)
    return partial


def _read_state(path: Path) -> dict[str, Any] | None:
    try:
        return _State.model_validate(read_json(path / _STATE, follow=False)).model_dump()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"{path / _STATE}: {error}") from error


def _unreadable(path: Path, seen: str) -> StoreError:
    return StoreError(
        "The unfinished work can't be read.",
        seen=seen,
        fix=f"remove {path} and run the command again",
    )


def _clear_leftover(target: Path, path: Path) -> None:
    # A kill after the folder took its place and before the rest was removed.
    if target.exists() and (path / _STATE).exists() and not (path / "new").exists():
        shutil.rmtree(path, ignore_errors=True)


_LOCK = "lock"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder for this process; the system lets go of it when the process ends."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path / _LOCK))
        except LockedError as error:
            raise StoreError(
                "Another process is making this folder.",
                seen=f"{path} is in use by {error}",
                fix="wait for it to end, or name another target",
            ) from error
        yield


def _other_job(path: Path, began: JobFacts, asked: JobFacts) -> StoreError:
    keys = [key for key in began | asked if began.get(key) != asked.get(key)]
    shown = "; ".join(
        f"{key} was {_short(began.get(key))}, now {_short(asked.get(key))}" for key in keys
    )
    return StoreError(
        "Unfinished work of another command, or on data that changed since, is there.",
        seen=f"{path}: {shown}",
        fix=f"run the command it was begun with to go on, or start anew with --overwrite "
        f"(or after removing {path})",
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def file_facts(*roots: Path) -> list[list[Any]]:
    """Return the path, size and time of every file below: equal where nothing was changed."""
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*"))]
    found = [(file, file.stat()) for file in sorted(files) if file.is_file()]
    return [[str(file.absolute()), facts.st_size, facts.st_mtime_ns] for file, facts in found]

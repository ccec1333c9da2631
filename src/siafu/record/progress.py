"""Showing progress: a live bar on a terminal, else plain lines; and the words of such lines."""

import difflib
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
)
from rich.progress import Progress as Bar
from rich.progress import Task as Shown
from rich.text import Text

Progress = Callable[[str, int, int | None], None]
"""Called by long work with the phase, what is done of it and, where known, its total."""

Say = Callable[[str], None]
"""Called with sentences for the user."""

LINE_EVERY_SECONDS = 5.0
QUIET_SECONDS = 2.0
"""What takes less is not worth a line."""

# One console for bars and remarks: a remark is printed above a bar that is shown, not into it.
# Names are printed as they are: brackets and colons in them mean nothing.
notes = Console(stderr=True, highlight=False, markup=False, emoji=False)


def silent(phase: str, done: int, total: int | None) -> None:
    """Ignore what is reported: the progress of a caller that did not ask."""


def say_nothing(sentence: str) -> None:
    """Ignore what is said."""


class _TimeLeft(ProgressColumn):
    """Time left, once there are two steps to tell it by."""

    def render(self, task: Shown) -> Text:
        if task.finished or task.time_remaining is None:
            return Text("")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02} left")


class ProgressLine:
    """Progress of one activity; use as a context manager. Writes to stderr.

    Its bar vanishes at the end, however that comes.
    """

    def __init__(self, label: str, total: int | None, *, quiet: bool = False) -> None:
        self.label, self.total, self.quiet = label, total, quiet
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._started = self._last = time.monotonic()
        self._printed_at = -1

    def __enter__(self) -> Self:
        if notes.is_terminal and not self.quiet:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                _TimeLeft(),
                TextColumn("{task.fields[note]}", markup=False),
                console=notes,
                transient=True,
            )
            self._task = self._bar.add_task(self.label, total=self.total, note="")
            self._bar.start()
        return self

    def update(self, done: int, note: str = "", *, total: int | None = None) -> None:
        """Show that `done` of the total is done; a plain line at most every few seconds."""
        self.total = total if total is not None else self.total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self.total, note=note)
        elif not self.quiet and self._is_due(done):
            of = f"/{self.total}" if self.total is not None else ""
            notes.print(f"{self.label} {done}{of} {note}".rstrip(), soft_wrap=True)
            self._last, self._printed_at = time.monotonic(), done

    def remark(self, note: str) -> None:
        """Show what is done beside the steps that are counted; a bar alone shows it."""
        if self._bar is not None:
            self._bar.update(self._task, note=note)

    def say(self, line: str) -> None:
        """Print a remark that stays, above the bar where there is one."""
        if not self.quiet:
            notes.print(line, soft_wrap=True)

    def _is_due(self, done: int) -> bool:
        now = time.monotonic()
        ended = done == self.total and now - self._started >= QUIET_SECONDS
        return done != self._printed_at and (ended or now - self._last >= LINE_EVERY_SECONDS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class PhaseProgress:
    """A callback (phase, done, total) that draws one progress line a phase."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._phase = ""
        self._line: ProgressLine | None = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if phase != self._phase:
            self.close()
            self._phase = phase
            self._line = ProgressLine(phase, total, quiet=self._quiet).__enter__()
        assert self._line is not None
        self._line.update(done, total=total)

    def close(self) -> None:
        """Finish the line that is open."""
        if self._line is not None:
            self._line.__exit__(None, None, None)
        self._line = None


def clear_rests() -> None:
    """Take away a bar that a rank which was ended left on the terminal."""
    if notes.is_terminal:
        notes.file.write("\r\x1b[2K\x1b[?25h")  # this line, and the cursor is seen again
        notes.file.flush()


def counted(count: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(words: Sequence[str], most: int = 8) -> str:
    """Return the first words, comma between, and how many more there are."""
    rest = [f"and {len(words) - most:,} more"] if len(words) > most else []
    return ", ".join([*words[:most], *rest])


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the nearest known name, or nothing when none is near."""
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]!r}? " if near else ""

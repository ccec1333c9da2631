"""Showing progress: one live bar on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

LINE_EVERY_SECONDS = 5.0
QUIET_SECONDS = 2.0
"""What takes less is not worth a line."""


class ProgressLine:
    """Progress of one activity; use as a context manager. Writes to stderr."""

    def __init__(
        self, label: str, total: int | None, *, quiet: bool = False, passing: bool = False
    ) -> None:
        self.label, self.total, self.quiet = label, total, quiet
        self._passing = passing  # the bar vanishes at the end
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started = self._last = time.monotonic()
        self._printed_at = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self.quiet:
            columns: tuple[ProgressColumn, ...]
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            note = TextColumn("{task.fields[note]}")
            columns = (*columns, TimeRemainingColumn(), note)
            self._bar = Progress(*columns, console=self._console, transient=self._passing)
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
            self._console.print(f"{self.label} {done}{of} {note}".rstrip(), soft_wrap=True)
            self._last, self._printed_at = time.monotonic(), done

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
            self._line = ProgressLine(phase, total, quiet=self._quiet, passing=True).__enter__()
        assert self._line is not None
        self._line.update(done, total=total)

    def close(self) -> None:
        """Finish the line that is open."""
        if self._line is not None:
            self._line.__exit__(None, None, None)
        self._line = None

"""Showing progress: a live bar on a terminal, else plain lines; and the words of such lines."""

import difflib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
)
from rich.progress import Progress as Bar
from rich.progress import Task as Shown
from rich.text import Text

from siafu.record.live import LiveFile
from siafu.record.phases import Clock, PhaseTimes, duration

Progress = Callable[[str, int, int | None], None]
"""Called by long work with the phase, what is done of it and, where known, its total."""

Say = Callable[[str], None]
"""Called with sentences for the user."""

LINE_EVERY_SECONDS = 5.0
QUIET_SECONDS = 2.0
"""What took less before training does not count as a share of all."""

# One console for bars and remarks: a remark is printed above a bar that is shown, not into it.
# Names are printed as they are: brackets and colons in them mean nothing.
notes = Console(stderr=True, highlight=False, markup=False, emoji=False)


def silent(phase: str, done: int, total: int | None) -> None:
    """Ignore what is reported: the progress of a caller that did not ask."""


def told(quiet: bool) -> Say:
    """Return what has Python's users told all that is said, or warnings alone."""

    def say(sentence: str) -> None:
        if not quiet or sentence.startswith("Warning: "):
            notes.print(sentence, soft_wrap=True)

    return say


def say_nothing(sentence: str) -> None:
    """Ignore what is said."""


class _Share(ProgressColumn):
    """How much of all is done."""

    def render(self, task: Shown) -> Text:
        return Text("" if task.total is None else f"{100 * task.completed:3.0f} %")


class _TimeLeft(ProgressColumn):
    """Time left, which goes down between two reports."""

    def render(self, task: Shown) -> Text:
        until = task.fields["until"]
        left = 0.0 if until is None else until - time.monotonic()
        return Text(f"{task.fields['bound']}{duration(left)} left" if left >= 1 else "")


class ProgressLine:
    """How far all is and what is done now; use as a context manager. Writes to stderr.

    Its bar vanishes at the end, however that comes.
    """

    def __init__(self, *, quiet: bool = False, live: Path | None = None) -> None:
        """`live` is a file that is told the same, be all else quiet."""
        self.quiet = quiet
        self._live = None if live is None else LiveFile(live)
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._last = time.monotonic()
        self._printed = ""

    def __enter__(self) -> Self:
        if notes.is_terminal and not self.quiet:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                _Share(),
                _TimeLeft(),
                TextColumn("{task.fields[note]}", markup=False),
                console=notes,
                transient=True,
            )
            fields: dict[str, Any] = {"note": "", "until": None, "bound": ""}
            self._task = self._bar.add_task("", total=None, **fields)
        return self

    def show(
        self,
        what: str,
        share: float | None = None,
        *,
        left: float | None = None,
        bound: str = "",
        note: str = "",
    ) -> None:
        """Show what is done now, the share of all that is done and the seconds that are left.

        Without a terminal it is a plain line at most every few seconds.
        """
        if self._live is not None:
            self._live.tell(what, share, left, bound)
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=what,
                completed=share or 0.0,
                total=None if share is None else 1.0,
                until=None if left is None else time.monotonic() + left,
                bound=bound,
                note=note,
            )
            self._bar.start()  # with something to show, and but once
        elif not self.quiet and time.monotonic() - self._last >= LINE_EVERY_SECONDS:
            told = [what, *([] if share is None else [f"{100 * share:.0f} %"])]
            told += [f"{bound}{duration(left)} left"] if left is not None and left >= 1 else []
            line = "  ".join([*told, note]).rstrip()
            if line != self._printed:
                notes.print(line, soft_wrap=True)
            self._last, self._printed = time.monotonic(), line

    def say(self, line: str) -> None:
        """Print a remark that stays, above the bar where there is one."""
        if not self.quiet:
            notes.print(line, soft_wrap=True)

    def warn(self, line: str) -> None:
        """Print a warning, also where no progress is shown."""
        notes.print(f"Warning: {line}", soft_wrap=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


_CUTTING = {
    "assign": "assigning nodes",
    "cluster": "finding clusters",
    "place": "placing nodes, pass",
    "compare": "comparing cuts",
    "score": "counting cut edges",
    "fingerprint": "hashing the graph",
    "nodes": "writing nodes",
    "edges": "writing edges",
    "parts": "writing parts",
}
"""Steps of cutting, in words."""

READING, CUTTING = "reading data", "cutting"
ALONE = {READING: (0.0, 0.5), CUTTING: (0.5, 1.0)}
BEFORE_TRAINING = {READING: (0.0, 0.1), CUTTING: (0.1, 0.2)}
"""What preparing data makes of all: nobody knows yet how long the training will take."""


class PhaseProgress:
    """A callback (step, done, total) that shows the steps of reading and cutting on one line.

    It closes itself between steps of different phases, so that what is said is never in a bar.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        spans: dict[str, tuple[float, float]] = ALONE,
        live: Path | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._quiet, self._spans, self._live = quiet, spans, live
        self._step, self._phase, self._number = "", READING, -1
        self._line: ProgressLine | None = None
        self.times = PhaseTimes(clock)
        self.times.begin(READING)

    def __call__(self, step: str, done: int, total: int | None) -> None:
        if step != self._step:
            self._begin(step)
        if self._line is None:
            self._line = ProgressLine(quiet=self._quiet, live=self._live).__enter__()
        counts = "" if not total else f", {100 * done / total:.0f} %"
        phase = "reading tables" if self._phase == READING else self._phase
        self._line.show(f"{phase}: {_in_words(step)}{counts}", self.share(done, total))

    def _begin(self, step: str) -> None:
        phase = CUTTING if step.split()[0] in _CUTTING else READING
        if phase != self._phase:
            self.close()
            self.times.end()
            self.times.begin(phase)
            self._number = -1
        self._step, self._phase, self._number = step, phase, self._number + 1

    def share(self, done: int, total: int | None) -> float:
        """Return how much of all is done: each step takes half of what is left of its phase."""
        low, high = self._spans[self._phase]
        part = min(1.0, done / total) if total else 0.0
        return high - (high - low) * (1 - part / 2) / 2**self._number

    def close(self) -> None:
        """Take the line away."""
        if self._line is not None:
            self._line.__exit__(None, None, None)
        self._line = None


def _in_words(step: str) -> str:
    name, _, number = step.partition(" ")
    if name not in _CUTTING:
        return step.removeprefix("reading ")
    words = _CUTTING[name]
    return f"{words} {number}" if number else words.removesuffix(", pass")


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
    # A word of several is nearer than a longer word: start is start_station, not started_at.
    whole = [word for word in lowered if name.lower() in re.split(r"[\W_]+", word)]
    near = whole or difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)
    near = [word for word in near if lowered[word] != name]
    near.sort(key=lambda word: sorted(word) != sorted(name.lower()))  # letters in another order
    return f"did you mean {lowered[near[0]]!r}? " if near else ""

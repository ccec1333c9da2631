"""Following a training: what is done now, its share of all, the time left, seconds by phase."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from siafu.record.phases import Clock, Pace, PhaseTimes
from siafu.record.progress import ProgressLine

TRAINING, EVALUATING, COMPILING = "training", "evaluating", "compiling kernels"
WRITING = "writing predictions"


class Watch:
    """Told by a trainer what it does; shows it on a line, where there is one to show it on."""

    def __init__(
        self,
        pace: Pace | None = None,
        line: ProgressLine | None = None,
        *,
        low: float = 0.0,
        bound: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        """`low` is the share of all that was done before; `bound` stands before the time left."""
        self.pace = pace or Pace(0)
        self.times = PhaseTimes(clock)
        self._line, self._low, self._bound = line, low, bound
        self._share, self._note = low, ""
        self._what = ""
        self._epoch, self._before = 0, 0.0
        self._thread = threading.get_ident()

    @contextmanager
    def training(self, epoch: int) -> Iterator[None]:
        """Follow the steps of an epoch."""
        self._epoch, self._before = epoch, self.times.of(TRAINING)
        self._show(self._named())
        with self.times.phase(TRAINING):
            yield
        self.pace.trained(self.times.of(TRAINING) - self._before)

    def step(self, done: int, total: int) -> None:
        """Show that a step of the epoch is done."""
        self.pace.step(done, total, self.times.of(TRAINING) - self._before)
        self._show(f"{self._named()}, step {done:,} of {total:,}")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Follow an evaluation."""
        before = self.times.of(EVALUATING)
        self._show(EVALUATING)
        with self.times.phase(EVALUATING):
            yield
        self.pace.scored(self.times.of(EVALUATING) - before)

    def writing(self) -> AbstractContextManager[None]:
        """Follow the writing of predictions."""
        self._show(WRITING)
        return self.times.phase(WRITING)

    def saving(self) -> AbstractContextManager[None]:
        """Count the writing of a checkpoint, which is too short to be shown."""
        return self.times.phase("writing checkpoints")

    def end_epoch(self, note: str) -> None:
        """Show what the epoch came to."""
        self._note = note
        self._show(self._named())

    def compiling(self, begins: bool) -> None:
        """Count and show that kernels are compiled, by the thread that trains."""
        if threading.get_ident() != self._thread:
            return
        if begins:
            self.times.begin(COMPILING)
            self._draw(f"{COMPILING}, once")
        else:
            self.times.end()
            self._draw(self._what)

    def _named(self) -> str:
        return f"epoch {self._epoch} of {self.pace.epochs}"

    def _show(self, what: str) -> None:
        self._what = what
        self._draw(what)

    def _draw(self, what: str) -> None:
        if self._line is None:
            return
        if (done := self.pace.share()) is not None:
            share = self._low + (1 - self._low) * done
            self._share = max(self._share, share)  # a slower epoch takes nothing back
        left = self.pace.left()
        self._line.show(what, self._share, left=left, bound=self._bound, note=self._note)

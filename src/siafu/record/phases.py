"""Where the time of a run goes, and how long the rest of it takes. Every clock can be a fake one.

Seconds are told by phase: `reading tables`, `cutting`, `training`, `evaluating` and so on. What is
left is learnt from the epochs that are done; a first guess stands in for what was not seen yet.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]

EVALUATION_GUESS = 0.4
"""Of an epoch's training: a pass forward alone, before the first one was timed."""
_RECENT = 8
"""Epochs that the pace is told by: a machine may become busier, or idle."""


class PhaseTimes:
    """Seconds by phase; one phase at a time, and what is inside another counts there no more."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = clock()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside for a phase, and no longer for the one around it."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def begin(self, name: str) -> None:
        """Count for this phase from now on."""
        self._settle()
        self._open.append(name)

    def end(self) -> None:
        """Go back to the phase around this one."""
        self._settle()
        self._open.pop()

    def of(self, name: str) -> float:
        """Return the seconds of a phase so far, also while it goes on."""
        self._settle()
        return self.seconds.get(name, 0.0)

    def _settle(self) -> None:
        now = self._clock()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


class Pace:
    """How long the rest of a training takes, by the epochs and evaluations that are done.

    The first of each is left out as soon as there is another: it warms caches up.
    """

    def __init__(
        self, epochs: int, *, done: int = 0, eval_every: int = 0, writes: bool = False
    ) -> None:
        """`eval_every` 0: nothing is scored. `writes`: predictions are, once, at the end."""
        self.epochs, self.done = epochs, done
        self._every, self._writes = eval_every, writes
        self._trained: deque[float] = deque(maxlen=_RECENT)
        self._scored: deque[float] = deque(maxlen=_RECENT)
        self._step = (0, 0)
        self._elapsed = 0.0
        """Seconds of the epoch that goes on."""

    def step(self, done: int, total: int, elapsed: float) -> None:
        """Note that so many steps of the present epoch took so many seconds."""
        self._step, self._elapsed = (done, total), elapsed

    def trained(self, seconds: float) -> None:
        """Note that an epoch is done."""
        self._trained.append(seconds)
        self.done += 1
        self._step, self._elapsed = (0, 0), 0.0

    def scored(self, seconds: float) -> None:
        """Note what an evaluation took."""
        self._scored.append(seconds)

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of an epoch without its evaluation; None before anything is known."""
        if self._trained:
            return _usual(self._trained)
        done, total = self._step
        return self._elapsed * total / done if done else None

    @property
    def evaluation_seconds(self) -> float | None:
        """Seconds of an evaluation, guessed from an epoch's before the first."""
        if self._scored:
            return _usual(self._scored)
        epoch = self.epoch_seconds
        return None if epoch is None else EVALUATION_GUESS * epoch

    def left(self) -> float | None:
        """Return the seconds until all is done, predictions too; None before anything is known."""
        epoch, scoring = self.epoch_seconds, self.evaluation_seconds
        if epoch is None or scoring is None:
            return None
        done, total = self._step
        begun = done / total if total else 0.0
        training = max(0.0, self.epochs - self.done - begun) * epoch
        return training + (self._evaluations(self.done) + self._writes) * scoring

    def share(self) -> float | None:
        """Return what is done of all epochs, evaluations and predictions, by their seconds."""
        epoch, scoring, left = self.epoch_seconds, self.evaluation_seconds, self.left()
        if epoch is None or scoring is None or left is None:
            return None
        whole = self.epochs * epoch + (self._evaluations(0) + self._writes) * scoring
        return 1 - left / whole if whole > 0 else None

    def _evaluations(self, done: int) -> int:
        """Return how many come after so many epochs."""
        if not self._every or done >= self.epochs:
            return 0
        rest = self.epochs // self._every - done // self._every
        return rest + (self.epochs % self._every > 0)  # the last epoch is scored in any case


def _usual(seconds: deque[float]) -> float:
    kept = list(seconds)[1:] if 1 < len(seconds) < _RECENT else list(seconds)
    return sum(kept) / len(kept)


def duration(seconds: float) -> str:
    """Return `0:01:05`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def brief(seconds: float) -> str:
    """Return `0.03 s`, `12 s`, `1 min 5 s` or `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

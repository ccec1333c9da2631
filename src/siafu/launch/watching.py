"""A run seen from another process: what its folder tells now, in a few lines.

Nothing here waits or draws: who watches looks again and again (`cli.watch`).
"""

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from siafu.files import is_locked
from siafu.launch.run_list import RunSummary, summary_of
from siafu.launch.run_state import how_to_go_on
from siafu.record import (
    LiveState,
    RunFolder,
    brief,
    counted,
    duration,
    read_live,
    shown_score,
)

_BLOCKS = "▁▂▃▄▅▆▇█"
_SILENT_SECONDS = 60.0
_SILENT_EPOCHS = 10
"""A run that says nothing for longer, and for as many epochs, is called silent."""
_RECENT = 20
_MOST_RANKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """A run at one moment."""

    summary: RunSummary
    rows: list[dict[str, Any]]
    result: dict[str, Any]
    live: LiveState | None
    is_running: bool
    warnings: list[str]
    now: float
    """Seconds since 1970."""
    silence: float
    """Seconds since it wrote anything."""
    go_on: str
    """What can be done with a run that ended before its end."""

    @property
    def is_over(self) -> bool:
        """Whether nobody works on it any more."""
        return not self.is_running

    @property
    def share(self) -> float | None:
        """Of all that is to be done; None where it is over, or nothing is known."""
        return None if self.live is None or self.is_over else self.live.share

    def doing(self) -> str:
        """Return what is done now, or how it ended."""
        if self.is_over:
            return self._ended()
        what = "starting" if self.live is None else self.live.what
        usual = self._epoch_seconds() * _SILENT_EPOCHS
        if self.silence > max(_SILENT_SECONDS, usual):
            what += f"; nothing was heard of it for {brief(self.silence)}"
        return what

    def left(self) -> str:
        """Return the time that is left, in words; nothing where it is not known."""
        if self.live is None or self.live.left is None or self.is_over:
            return ""
        seconds = self.live.left - (self.now - self.live.at)
        return f"{self.live.bound}{duration(seconds)} left" if seconds >= 1 else ""

    def _ended(self) -> str:
        if self.summary.finished:
            why = str(self.result.get("ended") or counted(self.summary.epochs, "epoch"))
            took = "" if self.summary.seconds is None else f" in {brief(self.summary.seconds)}"
            return f"finished: {why}{took}"
        if ": " in self.summary.state:  # failed, damaged
            return self.summary.state
        last = f", last seen at {self.live.what}" if self.live is not None else ""
        return f"not running any more: stopped or killed after {self._epochs()}{last}"

    def _epochs(self) -> str:
        return counted(len(self.rows), "epoch")

    def _epoch_seconds(self) -> float:
        recent = [float(row.get("seconds", 0.0)) for row in self.rows[-_RECENT:]]
        return math.fsum(recent) / max(1, len(recent))

    def losses(self, width: int) -> str:
        """Return the last loss, and all of them as a line of blocks."""
        values = [float(row["loss"]) for row in self.rows]
        if not values:
            return ""
        return f"loss {values[-1]:.4f}  {sparkline(values, width)}".rstrip()

    def scores(self) -> str:
        """Return the scores by split, those of a finished run of its best epoch."""
        found = self.summary.scores
        told = [
            f"{split} {name} {shown_score(name, value)}"
            for split in ("train", "val", "test")
            for name, value in list(found.get(split, {}).items())[:1]
        ]
        if told and self.summary.best_epoch:
            told.append(f"(epoch {self.summary.best_epoch})")
        return "  ".join(told)

    def ranks(self) -> list[str]:
        """Return where the seconds went: of each rank at the end, before that of the first."""
        phases = self.result.get("rank_seconds")
        if isinstance(phases, dict) and phases:
            count = len(next(iter(phases.values())))
            lines = [
                f"rank {rank}: "
                + ", ".join(f"{name} {brief(float(of[rank]))}" for name, of in phases.items())
                for rank in range(count)
            ]
            more = [f"and {count - _MOST_RANKS:,} more ranks"] if count > _MOST_RANKS else []
            return [*lines[:_MOST_RANKS], *more]
        recent = self.rows[-_RECENT:]
        spent = math.fsum(float(row.get("seconds", 0.0)) for row in recent)
        if not spent:
            return []
        waited = math.fsum(float(row.get("waiting", 0.0)) for row in recent)
        wait = f", {100 * waited / spent:.0f} % of it waiting" if self.summary.ranks > 1 else ""
        return [f"rank 0: {brief(spent / len(recent))} per epoch{wait}"]

    def lines(self, width: int) -> list[str]:
        """Return all that is worth telling, but for the bar of what is done now."""
        title = [self.summary.path, self.summary.model, self.summary.data]
        told = ["  ".join(word for word in title if word)]
        told += [line for line in (self.losses(width // 2), self.scores()) if line]
        told += self.ranks()
        told += [f"warning: {line}" for line in self.warnings]
        if self.is_over and not self.summary.finished:
            told.append(self.go_on)
        return told

    def line(self) -> str:
        """Return the same in one line, for a file or a pipe."""
        share = [] if self.share is None else [f"{100 * self.share:.0f} %"]
        words = [self.doing(), *share, self.left(), self.losses(0), self.scores()]
        return "  ".join(word for word in words if word)


def look(folder: RunFolder, now: float | None = None) -> Sight:
    """Return what a run folder tells now; what can't be read is left out."""
    now = time.time() if now is None else now
    running = is_locked(folder.path / "lock")  # before the rest: it may end meanwhile
    live, rows, damaged = read_live(folder.live), *folder.read_metrics_and_damage()
    summary = summary_of(folder, rows)
    warnings = folder.read_warnings()
    if damaged:
        warnings.append(f"{counted(damaged, 'line')} of metrics.jsonl can't be read")
    heard = [path.stat().st_mtime for path in (folder.metrics, folder.config) if path.exists()]
    heard += [] if live is None else [live.at]
    return Sight(
        summary=summary,
        rows=rows,
        result=folder.read_result() if summary.finished else {},
        live=live,
        is_running=running,
        warnings=warnings,
        now=now,
        silence=max(0.0, now - max(heard, default=now)),
        go_on=how_to_go_on(folder),
    )


def sparkline(values: list[float], width: int) -> str:
    """Return values as blocks of eight heights, the mean of some in each where they are many."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2 or width < 1:
        return ""
    count = min(width, len(finite))
    bounds = [len(finite) * k // count for k in range(count + 1)]
    means = [math.fsum(finite[low:high]) / (high - low) for low, high in pairwise(bounds)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((len(_BLOCKS) - 1) * (mean - low) / span)] for mean in means)

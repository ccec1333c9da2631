"""When each task of a run ran, and where: spans, written as Chrome and Perfetto show them.

The file is the trace event format's JSON object: complete events (`ph` X, microseconds), a process
for each rank, a thread for each lane. Open it at ui.perfetto.dev or chrome://tracing.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from siafu.errors import StoreError
from siafu.files import write_text_atomically

SPAN_LIMIT = 200_000
"""Spans that one rank keeps; about 80 MB of memory, 30 MB of file."""
TRAINING_LANE = "training"
"""Where a rank's own epochs, scores and waits are shown, those inside the others."""
_MICROSECONDS = 1e6
_SLACK_SECONDS = 2e-6
"""Overlap that is none: seconds since 1970 in floats are a quarter of a microsecond apart."""

SpanFact = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of work."""

    name: str
    category: str
    lane: str
    """Where it ran: `graph`, or a worker's name."""
    start: float
    """Seconds since 1970: the one clock that ranks and workers share."""
    seconds: float
    rank: int = 0
    """Whose work it was, also where a worker did it."""
    args: dict[str, SpanFact] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.seconds


class Trace:
    """Collects the spans of one rank, from any thread, up to a limit."""

    def __init__(self, rank: int, *, limit: int = SPAN_LIMIT) -> None:
        self.rank, self.limit = rank, limit
        self.left_out = 0
        """Spans beyond the limit."""
        # Tuples of plain values, made into spans when they are read: a third of the time, and
        # nothing for the garbage collector to go through.
        self._noted: list[tuple[str, str, str, float, float, dict[str, SpanFact] | None]] = []
        self._lock = threading.Lock()
        # The system's clock may be set while a run goes on; perf_counter never goes back.
        self._began = time.time() - time.perf_counter()

    @property
    def spans(self) -> list[Span]:
        """Return what was collected so far."""
        with self._lock:
            noted = self._noted[: self.limit]
        return [
            Span(name, category, lane, start, seconds, self.rank, args or {})
            for name, category, lane, start, seconds, args in noted
        ]

    def now(self) -> float:
        """Return the time in seconds since 1970, by a clock that never goes back."""
        return self._began + time.perf_counter()

    @contextmanager
    def span(self, name: str, category: str, lane: str, **args: SpanFact) -> Iterator[None]:
        """Keep a span of what runs inside, also where that fails."""
        start = self.now()
        try:
            yield
        finally:
            self.add(name, category, lane, start=start, seconds=self.now() - start, **args)

    def add(
        self,
        name: str,
        category: str,
        lane: str,
        *,
        start: float,
        seconds: float,
        **args: SpanFact,
    ) -> None:
        """Keep one span; `start` is in seconds since 1970, as of `now` or a worker's clock."""
        if len(self._noted) < self.limit:  # appending is one step: threads need no lock for it
            self._noted.append((name, category, lane, start, max(0.0, seconds), args or None))
            return
        with self._lock:
            self.left_out += 1

    def write(self, path: Path) -> None:
        """Write the spans, at once."""
        _write(path, self.spans, {self.rank: self.left_out})


def write_joined(trace: Trace, folder: Path, ranks: int, meet: Callable[[], object]) -> None:
    """Write trace.json of all ranks into a run's folder; all ranks call this together.

    `meet` returns when every rank has called it.
    """
    paths = [folder / f"trace-{rank}.json" for rank in range(ranks)]
    trace.write(paths[trace.rank])
    meet()
    if trace.rank == 0:
        join_traces(paths, folder / "trace.json")
        for path in paths:
            path.unlink()


def read_trace(path: Path) -> list[Span]:
    """Return the spans of a file that `Trace.write` or `join_traces` wrote."""
    return _load(path)[0]


def join_traces(paths: Sequence[Path], target: Path) -> None:
    """Write the spans of several ranks' files as one file."""
    spans: list[Span] = []
    left_out: dict[int, int] = {}
    for path in paths:
        more, lost = _load(path)
        spans += more
        left_out |= {rank: left_out.get(rank, 0) + count for rank, count in lost.items()}
    _write(target, spans, left_out)


def overlap_seconds(spans: Iterable[Span], category_a: str, category_b: str) -> float:
    """Return for how long spans of both categories ran at once on a rank, summed over the ranks.

    Of one category with itself: for how long two or more of its spans ran.
    """
    wanted = [span for span in spans if span.category in (category_a, category_b)]
    by_rank = groupby(sorted(wanted, key=lambda span: span.rank), key=lambda span: span.rank)
    return sum(_overlap(list(own), category_a, category_b) for _, own in by_rank)


def busy_seconds(spans: Iterable[Span], category: str) -> float:
    """Return for how long at least one span of the category ran on a rank, summed over ranks."""
    wanted = [span for span in spans if span.category == category]
    by_rank = groupby(sorted(wanted, key=lambda span: span.rank), key=lambda span: span.rank)
    return sum(_covered(list(own)) for _, own in by_rank)


def _overlap(spans: list[Span], category_a: str, category_b: str) -> float:
    """Sweep over the starts and ends of one rank's spans, counting what runs between them."""
    changes = [(span.start, 1, span.category) for span in spans]
    changes += [(span.end, -1, span.category) for span in spans]
    # What changes at one moment changes together: nothing runs for the time between.
    changes.sort(key=lambda change: change[0])
    running = {category_a: 0, category_b: 0}
    least = 2 if category_a == category_b else 1
    total, before = 0.0, 0.0
    for moment, change, category in changes:
        if all(count >= least for count in running.values()):
            total += moment - before
        running[category] += change
        before = moment
    return total


def _covered(spans: list[Span]) -> float:
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(end, span.start))
        end = max(end, span.end)
    return total


def _write(path: Path, spans: list[Span], left_out: dict[int, int]) -> None:
    origin = min((span.start for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    by_rank: dict[int, list[Span]] = {rank: [] for rank in sorted(left_out)}
    for span in spans:
        by_rank.setdefault(span.rank, []).append(span)
    for rank, own in by_rank.items():
        label = f"rank {rank}" + (f" ({n} spans left out)" if (n := left_out.get(rank)) else "")
        names.append(_name_of("process_name", rank, 0, label))
        for number, (lane, lane_spans) in enumerate(_lanes(own), start=1):
            names.append(_name_of("thread_name", rank, number, lane))
            events += [_event(span, number, origin) for span in lane_spans]
    events.sort(key=lambda event: event["ts"])
    content = {
        "traceEvents": [*names, *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "origin_seconds": origin,
            "left_out": {str(rank): count for rank, count in left_out.items()},
        },
    }
    try:
        write_text_atomically(path, json.dumps(content, allow_nan=False))
    except OSError as error:
        raise StoreError(
            "The trace can't be written.",
            seen=f"{error.strerror}: {path}",
            fix="free space, or name a folder you may write to",
        ) from error


def _lanes(spans: list[Span]) -> list[tuple[str, list[Span]]]:
    """Return (name, spans) such that the spans of a lane come after each other, or nest.

    Viewers draw nothing else in one thread. Spans of a lane that only partly overlap, as those of a
    pool that says one name for all its workers, go to further lanes of the same name and a number.
    """
    named: dict[str, list[_Lane]] = {}
    for span in sorted(spans, key=lambda span: (span.start, -span.seconds)):
        lanes = named.setdefault(span.lane, [])
        if not any(lane.take(span) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].take(span)
    return [
        (name if number == 1 else f"{name} ({number})", lane.spans)
        for name, lanes in named.items()
        for number, lane in enumerate(lanes, start=1)
    ]


class _Lane:
    """Spans, by their starts, that nest or come after each other."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._open: list[int] = []  # positions of those that the last one lies in, and its own

    def take(self, span: Span) -> bool:
        """Add the span if it fits here; one that overlaps by next to nothing is trimmed."""
        inside = [at for at in self._open if self.spans[at].end > span.start + _SLACK_SECONDS]
        if inside and span.end > self.spans[inside[-1]].end + _SLACK_SECONDS:
            return False
        for at in self._open[len(inside) :]:
            length = min(self.spans[at].seconds, span.start - self.spans[at].start)
            self.spans[at] = replace(self.spans[at], seconds=length)
        if inside:
            room = self.spans[inside[-1]].end - span.start
            span = replace(span, seconds=min(span.seconds, room))
        self._open = [*inside, len(self.spans)]
        self.spans.append(span)
        return True


def _name_of(kind: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": lane, "ts": 0, "args": {"name": name}}


def _event(span: Span, lane: int, origin: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.category,
        "pid": span.rank,
        "tid": lane,
        "ts": round((span.start - origin) * _MICROSECONDS, 3),
        "dur": round(span.seconds * _MICROSECONDS, 3),
        "args": {**{key: _plain(fact) for key, fact in span.args.items()}, "lane": span.lane},
    }


def _plain(fact: SpanFact) -> SpanFact:
    """Return a fact as JSON can have it: NaN and infinities are words."""
    return str(fact) if isinstance(fact, float) and not math.isfinite(fact) else fact


def _load(path: Path) -> tuple[list[Span], dict[int, int]]:
    """Return the spans of a file, and how many each of its ranks left out."""
    try:
        content = json.loads(path.read_text())
        other = content["otherData"]
        left_out = {int(rank): count for rank, count in other["left_out"].items()}
        found = [event for event in content["traceEvents"] if event["ph"] == "X"]
        spans = [_span(event, other["origin_seconds"]) for event in found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            "No trace of a run there.",
            seen=f"{path}: {error}",
            fix="name a file that a run with a trace wrote",
        ) from error
    return spans, left_out


def _span(event: dict[str, Any], origin: float) -> Span:
    args = {name: value for name, value in event["args"].items() if name != "lane"}
    start, seconds = origin + event["ts"] / _MICROSECONDS, event["dur"] / _MICROSECONDS
    lane = event["args"]["lane"]
    return Span(event["name"], event["cat"], lane, start, seconds, event["pid"], args)

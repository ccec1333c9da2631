"""The rows and files a run writes, and how its progress is shown."""

from siafu.record.progress import (
    PhaseProgress,
    Progress,
    ProgressLine,
    Say,
    clear_rests,
    counted,
    notes,
    say_nothing,
    shortened,
    silent,
    suggestion,
)
from siafu.record.run_folder import RunFolder, environment, installed
from siafu.record.scores import shown_score
from siafu.record.trace import (
    Span,
    Trace,
    busy_seconds,
    join_traces,
    overlap_seconds,
    read_trace,
)

__all__ = [
    "PhaseProgress",
    "Progress",
    "ProgressLine",
    "RunFolder",
    "Say",
    "Span",
    "Trace",
    "busy_seconds",
    "clear_rests",
    "counted",
    "environment",
    "installed",
    "join_traces",
    "notes",
    "overlap_seconds",
    "read_trace",
    "say_nothing",
    "shortened",
    "shown_score",
    "silent",
    "suggestion",
]

"""The rows and files a run writes, and how its progress is shown."""

from siafu.record.answers import unpredicted
from siafu.record.live import LiveFile, LiveState, read_live
from siafu.record.phases import Clock, Pace, PhaseTimes, brief, duration
from siafu.record.progress import (
    BEFORE_TRAINING,
    READING,
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
    told,
)
from siafu.record.run_folder import RunFolder, environment, installed
from siafu.record.trace import (
    TRAINING_LANE,
    Span,
    Trace,
    busy_seconds,
    join_traces,
    overlap_seconds,
    read_trace,
    write_joined,
)
from siafu.record.units import LOWER_IS_BETTER, percent, shown_score
from siafu.record.watch import Watch

__all__ = [
    "BEFORE_TRAINING",
    "LOWER_IS_BETTER",
    "READING",
    "TRAINING_LANE",
    "Clock",
    "LiveFile",
    "LiveState",
    "Pace",
    "PhaseProgress",
    "PhaseTimes",
    "Progress",
    "ProgressLine",
    "RunFolder",
    "Say",
    "Span",
    "Trace",
    "Watch",
    "brief",
    "busy_seconds",
    "clear_rests",
    "counted",
    "duration",
    "environment",
    "installed",
    "join_traces",
    "notes",
    "overlap_seconds",
    "percent",
    "read_live",
    "read_trace",
    "say_nothing",
    "shortened",
    "shown_score",
    "silent",
    "suggestion",
    "told",
    "unpredicted",
    "write_joined",
]

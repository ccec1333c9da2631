"""The rows and files a run writes, and how its progress is shown."""

from siafu.record.progress import PhaseProgress, ProgressLine
from siafu.record.run_folder import RunFolder, environment, installed
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
    "ProgressLine",
    "RunFolder",
    "Span",
    "Trace",
    "busy_seconds",
    "environment",
    "installed",
    "join_traces",
    "overlap_seconds",
    "read_trace",
]

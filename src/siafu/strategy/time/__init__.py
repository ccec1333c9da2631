"""Dynamic graphs along time: how snapshots are cut, what crosses the cuts, and what it costs."""

from siafu.strategy.time.blocks import LossOf, StepSource, TimeRunner
from siafu.strategy.time.strategy import TimeStrategy

__all__ = ["LossOf", "StepSource", "TimeRunner", "TimeStrategy"]

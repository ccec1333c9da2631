"""Predicting what a strategy costs, and choosing one."""

from siafu.plan.choice import choose_strategy, read_bytes

__all__ = ["choose_strategy", "read_bytes"]

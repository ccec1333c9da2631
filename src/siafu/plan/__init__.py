"""Predicting what a strategy costs, and choosing one."""

from siafu.plan.choice import (
    choose_strategy,
    memory_in_use,
    named_strategy,
    predict_training_bytes,
    read_bytes,
)
from siafu.plan.memory import Sizes, measure_sizes, predict_bytes

__all__ = [
    "Sizes",
    "choose_strategy",
    "measure_sizes",
    "memory_in_use",
    "named_strategy",
    "predict_bytes",
    "predict_training_bytes",
    "read_bytes",
]

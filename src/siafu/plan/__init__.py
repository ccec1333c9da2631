"""Predicting what a strategy costs in memory and dollars, and choosing one."""

from siafu.plan.bill import Bill, PoolUsage, Servers, make_bill, pool_usage
from siafu.plan.choice import (
    RUNTIME_BYTES,
    candidates,
    check_budget,
    choose_strategy,
    memory_in_use,
    predict_training_bytes,
)
from siafu.plan.memory import Sizes, layer_rows, measure_sizes, predict_bytes
from siafu.plan.prices import InstancePrice, LambdaPrice, Prices, Route, read_prices

__all__ = [
    "RUNTIME_BYTES",
    "Bill",
    "InstancePrice",
    "LambdaPrice",
    "PoolUsage",
    "Prices",
    "Route",
    "Servers",
    "Sizes",
    "candidates",
    "check_budget",
    "choose_strategy",
    "layer_rows",
    "make_bill",
    "measure_sizes",
    "memory_in_use",
    "pool_usage",
    "predict_bytes",
    "predict_training_bytes",
    "read_prices",
]

"""Predicting what a strategy costs in memory and dollars, and choosing one."""

from siafu.plan.bill import Bill, PoolUsage, Servers, make_bill, pool_usage
from siafu.plan.bytes import EpochTraffic, LayerTraffic, full_graph_traffic, weight_bytes
from siafu.plan.calibration import calibrate
from siafu.plan.choice import (
    RUNTIME_BYTES,
    candidates,
    check_budget,
    choose_strategy,
    memory_in_use,
    predict_training_bytes,
)
from siafu.plan.drawing import draw_minibatches
from siafu.plan.layer_rows import layer_rows
from siafu.plan.links import measured_link
from siafu.plan.machine import TYPICAL, Link, Machine, keep_machine, kept_machine, read_machine
from siafu.plan.memory import (
    PROCESS_BYTES,
    ROW_BYTES,
    Sizes,
    held_kinds,
    measure_sizes,
    predict_bytes,
    predict_kinds,
)
from siafu.plan.outlook import Outlook, Setting, foresee, offloaded
from siafu.plan.planning import (
    EXACT,
    Plan,
    plan_choices,
    rank_counts,
    read_bandwidth,
    read_latency,
    shown_bytes,
    shown_seconds,
)
from siafu.plan.prices import InstancePrice, LambdaPrice, Prices, Route, read_prices
from siafu.plan.sampled import least_sampled_bytes, read_fanout, step_bytes
from siafu.plan.statistics import (
    KNOWN,
    CutStatistics,
    GraphStatistics,
    graph_statistics,
    read_statistics,
)

__all__ = [
    "EXACT",
    "KNOWN",
    "PROCESS_BYTES",
    "ROW_BYTES",
    "RUNTIME_BYTES",
    "TYPICAL",
    "Bill",
    "CutStatistics",
    "EpochTraffic",
    "GraphStatistics",
    "InstancePrice",
    "LambdaPrice",
    "LayerTraffic",
    "Link",
    "Machine",
    "Outlook",
    "Plan",
    "PoolUsage",
    "Prices",
    "Route",
    "Servers",
    "Setting",
    "Sizes",
    "calibrate",
    "candidates",
    "check_budget",
    "choose_strategy",
    "draw_minibatches",
    "foresee",
    "full_graph_traffic",
    "graph_statistics",
    "held_kinds",
    "keep_machine",
    "kept_machine",
    "layer_rows",
    "least_sampled_bytes",
    "make_bill",
    "measure_sizes",
    "measured_link",
    "memory_in_use",
    "offloaded",
    "plan_choices",
    "pool_usage",
    "predict_bytes",
    "predict_kinds",
    "predict_training_bytes",
    "rank_counts",
    "read_bandwidth",
    "read_fanout",
    "read_latency",
    "read_machine",
    "read_prices",
    "read_statistics",
    "shown_bytes",
    "shown_seconds",
    "step_bytes",
    "weight_bytes",
]

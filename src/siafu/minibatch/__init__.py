"""Sampled minibatches over ranks: several drawn and fetched in one relay, trained on one by one."""

from siafu.minibatch.device_relay import to_device
from siafu.minibatch.feature_rows import sampled_of
from siafu.minibatch.feed import Batching, Columns, Feed, Needs
from siafu.minibatch.fetched_rows import HotRows
from siafu.minibatch.flow import Flow, plan_flow
from siafu.minibatch.held_out import HeldOut, has_held_out, hold_out_edges, hold_out_of_shard
from siafu.minibatch.kept_rows import Keeper, KeptRows, digest_of
from siafu.minibatch.layerwise import Room, WideRows, first_row_of, map_rows, node_bytes
from siafu.minibatch.link_seeds import (
    Directory,
    LinkBatching,
    LinkSeeds,
    other_nodes,
    rows_of_seeds,
)
from siafu.minibatch.loader import MinibatchLoader, SampledData
from siafu.minibatch.macrobatch import Macrobatch, MacrobatchSampler
from siafu.minibatch.macrobatch_size import StepCosts, Trial, choose_macrobatch, measure_costs
from siafu.minibatch.relay import Relay, epoch_of_draws
from siafu.minibatch.schedule import Minibatch, Schedule, Step
from siafu.minibatch.served import ROW_BITS, Sampling, Served, owners_of
from siafu.minibatch.subgraph import Subgraph

__all__ = [
    "ROW_BITS",
    "Batching",
    "Columns",
    "Directory",
    "Feed",
    "Flow",
    "HeldOut",
    "HotRows",
    "Keeper",
    "KeptRows",
    "LinkBatching",
    "LinkSeeds",
    "Macrobatch",
    "MacrobatchSampler",
    "Minibatch",
    "MinibatchLoader",
    "Needs",
    "Relay",
    "Room",
    "SampledData",
    "Sampling",
    "Schedule",
    "Served",
    "Step",
    "StepCosts",
    "Subgraph",
    "Trial",
    "WideRows",
    "choose_macrobatch",
    "digest_of",
    "epoch_of_draws",
    "first_row_of",
    "has_held_out",
    "hold_out_edges",
    "hold_out_of_shard",
    "map_rows",
    "measure_costs",
    "node_bytes",
    "other_nodes",
    "owners_of",
    "plan_flow",
    "rows_of_seeds",
    "sampled_of",
    "to_device",
]

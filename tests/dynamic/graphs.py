"""A small dynamic graph that hurts: an empty snapshot, loops, idle nodes, uneven snapshots."""

from dataclasses import replace
from functools import cache

import numpy as np

from siafu.graph import DynamicGraph, IntegerIds
from siafu.ingest import Events, graph_from_events

NUM_NODES = 23
NUM_STEPS = 13
EVENT_WIDTH = 3


@cache
def awkward_dynamic(width: int = 3, *, symmetric: bool = False) -> DynamicGraph:
    """Return 13 snapshots of 23 nodes with features that change, labels and a signal."""
    draw = np.random.default_rng(11)
    counts = draw.integers(1, 40, NUM_STEPS)
    counts[4], counts[5], counts[9] = 0, 0, 120
    time = np.repeat(np.arange(NUM_STEPS), counts)
    src, dst = draw.integers(0, NUM_NODES - 2, (2, len(time)))  # the last two never meet anyone
    dst[::9] = src[::9]
    events = Events(
        name="awkward",
        ids=IntegerIds(100 + 3 * np.arange(NUM_NODES)),
        src=src,
        dst=dst,
        time=time,
        label=draw.integers(0, 2, len(time)),
        num_edge_classes=2,
        x=draw.standard_normal((NUM_STEPS, NUM_NODES, width)).astype(np.float32),
        y=draw.integers(-1, 3, (NUM_STEPS, NUM_NODES)),
        num_classes=3,
        signal=draw.standard_normal((NUM_STEPS, NUM_NODES, 1)).astype(np.float32),
        num_steps=NUM_STEPS,
    )
    return graph_from_events(events, window="each", edge_life=2, symmetric=symmetric)[0]


@cache
def featured_dynamic(symmetric: bool = False) -> DynamicGraph:
    """Return the same with features of events; the second is the same for all."""
    graph = awkward_dynamic(symmetric=symmetric)
    attr = np.random.default_rng(4).normal(5, 3, (graph.num_events, EVENT_WIDTH))
    attr[:, 1] = 7
    return replace(graph, event_attr=attr.astype(np.float32))

"""The built-in dynamic graph: communities whose edges are born and die while members move.

N nodes, T steps, M events a step, C communities, F features.
"""

import re

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, IntegerIds
from siafu.ingest.datasets.builtin import check_room
from siafu.ingest.events.events import Events

NAME = "drifting"
_SIZE = re.compile(r"(\d{1,15})([km]?)", re.IGNORECASE)
_SUFFIX = {"": 1, "k": 1_000, "m": 1_000_000}
_PERIOD = 8
_NODE_BYTES = 7_000
"""What a node takes while the graph is made; 6,663 bytes were seen for 40 k nodes."""


def drifting(
    num_nodes: int = 600,
    *,
    num_steps: int = 24,
    num_classes: int = 4,
    events_per_node: int = 4,
    width: int = 16,
    seed: int = 0,
) -> Events:
    """Return events among communities that are learnable in four ways.

    In every step a pair meets again with chance one half, and new pairs stay inside a community
    four times in five; the label of an event tells whether they do, one in twenty at random
    (edge classification). One node in two hundred moves to another community at each step
    (node labels over time). Features are unit noise around a centre of the first community. The
    signal is a wave whose phase is the community's, plus noise.
    """
    if num_nodes < 4 * num_classes:
        raise DataError(
            "The built-in graph is too small.",
            seen=f"{num_nodes} nodes",
            fix=f"ask for {4 * num_classes} or more",
        )
    draw = np.random.default_rng([seed, 4])
    y_TN = _communities(draw, num_steps, num_nodes, num_classes)
    pairs = np.empty((2, 0), np.int64)
    steps = []
    for y_N in y_TN:
        pairs = _meetings(draw, pairs, y_N, num_nodes * events_per_node)
        steps.append(pairs)
    src, dst = np.concatenate(steps, axis=1)
    time = np.repeat(np.arange(num_steps), [step.shape[1] for step in steps])
    together = y_TN[time, src] == y_TN[time, dst]
    noise = draw.random(len(src)) < 0.05
    centres_CF = draw.standard_normal((num_classes, width))
    x_NF = draw.standard_normal((num_nodes, width)) + 0.5 * centres_CF[y_TN[0]]
    phase_TN = np.arange(num_steps)[:, None] / _PERIOD + y_TN / num_classes
    signal_TN = np.sin(2 * np.pi * phase_TN) + 0.2 * draw.standard_normal(y_TN.shape)
    return Events(
        name=NAME,
        ids=IntegerIds(np.arange(num_nodes)),
        src=src,
        dst=dst,
        time=time,
        label=np.where(noise, draw.integers(2, size=len(src)), together).astype(np.int64),
        num_edge_classes=2,
        edge_class_names=("apart", "together"),
        x=x_NF.astype(np.float32),
        y=y_TN,
        num_classes=num_classes,
        signal=signal_TN[:, :, None].astype(np.float32),
        num_steps=num_steps,
    )


def is_drifting(name: str) -> bool:
    """Return whether the name, with or without a size, is the built-in dynamic graph."""
    return name.partition(":")[0] == NAME


def load_drifting(name: str, seed: int = 0) -> Events:
    """Return the events named `drifting`, `drifting:5000` or `drifting:20k`."""
    _, colon, size = name.partition(":")
    if not colon:
        return drifting(seed=seed)
    match = _SIZE.fullmatch(size)
    if match is None:
        raise DataError(
            "The size of a built-in graph is not understood.",
            seen=name,
            fix=f"give the number of nodes, for example {NAME}:5000 or {NAME}:20k",
        )
    num_nodes = int(match[1]) * _SUFFIX[match[2].lower()]
    check_room(name, num_nodes, _NODE_BYTES)
    return drifting(num_nodes, seed=seed)


def _communities(
    draw: np.random.Generator, num_steps: int, num_nodes: int, num_classes: int
) -> Array:
    """Return y_TN int64: the community of each node at each step."""
    y_TN = np.empty((num_steps, num_nodes), np.int64)
    y_TN[0] = draw.permutation(np.arange(num_nodes) % num_classes)
    for t in range(1, num_steps):
        moves = draw.random(num_nodes) < 0.005
        y_TN[t] = np.where(moves, draw.integers(num_classes, size=num_nodes), y_TN[t - 1])
    return y_TN


def _meetings(draw: np.random.Generator, before: Array, y_N: Array, count: int) -> Array:
    """Return int64 [2, M]: about half of the pairs before, and new ones up to the count."""
    again = before[:, draw.random(before.shape[1]) < 0.5]
    fresh = count - again.shape[1]
    members = np.argsort(y_N, kind="stable")
    sizes = np.bincount(y_N)
    starts = np.cumsum(sizes) - sizes
    left, anyone = draw.integers(len(y_N), size=(2, fresh))
    group = y_N[left]
    inside = members[starts[group] + (draw.random(fresh) * sizes[group]).astype(np.int64)]
    right = np.where(draw.random(fresh) < 0.8, inside, anyone)
    return np.concatenate([again, np.stack([left, right])], axis=1)

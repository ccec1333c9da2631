"""What nodes of a dynamic graph are told apart by, where not by the data's own features.

Shapes: N nodes, F features.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from siafu.errors import ConfigError
from siafu.graph import Array, DynamicGraph
from siafu.ops import DrawKey, uniform_rows

_SITE = (1 << 18) + 3
"""The stream of draws of random features."""
_MOST_COLUMNS = 1 << 16
Kind = Literal["data", "log-degree", "degree-onehot", "random", "learned"]
_WIDTHS: dict[Kind, int] = {"degree-onehot": 128, "random": 32, "learned": 32}
"""Columns unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """One kind of features, and how wide they are."""

    kind: Kind
    width: int
    seed: int = 0

    @property
    def is_learned(self) -> bool:
        """Whether they are parameters, a row for each node of the data."""
        return self.kind == "learned"

    def rows(self, graph: DynamicGraph, step: int) -> Array:
        """Return float32 [N, F] of a snapshot."""
        if self.kind == "log-degree":
            return window_degrees(graph, step)
        if self.kind == "degree-onehot":
            return degrees_as_columns(graph, step, self.width)
        if self.kind == "random":
            return random_rows(graph.num_nodes, self.width, self.seed)
        return graph.features(step)


def read_node_features(
    text: str | None, graph: DynamicGraph, *, seed: int, lags: int
) -> NodeFeatures:
    """Return what `--node-features` says; unsaid, the data's own, or degrees where it has none."""
    if text is None and graph.x is None:
        return NodeFeatures("data", 0) if lags else NodeFeatures("log-degree", 2)
    if text is None:
        return NodeFeatures("data", graph.num_features)
    found = named_features(text, seed)
    if found.is_learned and lags:
        raise ConfigError(
            "Features of nodes are not learnt beside a signal.",
            seen=f"--node-features {text} with --task signal",
            fix="use random:32 or degree-onehot",
        )
    return found


def named_features(text: str, seed: int = 0) -> NodeFeatures:
    """Return what `--node-features` names; raise where it names nothing."""
    if text == "log-degree":
        return NodeFeatures("log-degree", 2)
    word, colon, number = text.partition(":")
    kind = next((known for known in _WIDTHS if known == word), None)
    if kind is None or (colon and not number.isdecimal()):
        raise _not_understood(text)
    width = int(number) if colon else _WIDTHS[kind]
    if not 0 < width <= _MOST_COLUMNS:
        raise _not_understood(text)
    return NodeFeatures(kind, width, seed)


def _not_understood(text: str) -> ConfigError:
    return ConfigError(
        "The features of nodes are not understood.",
        seen=f"--node-features {text}",
        fix="use log-degree, degree-onehot, random:32 or learned:32, of at most "
        f"{_MOST_COLUMNS:,} columns; leave it out for the data's own",
    )


def window_degrees(graph: DynamicGraph, step: int) -> Array:
    """Return float32 [N, 2]: log(1 + d) of the events that came in and went out in the window.

    Of the events themselves, not of the edges alive: what is new tells more.
    """
    events = graph.edge_events(step)
    counts = [np.bincount(ends, minlength=graph.num_nodes) for ends in (events.dst, events.src)]
    return np.log1p(np.stack(counts, axis=1)).astype(np.float32)


def degrees_as_columns(graph: DynamicGraph, step: int, width: int) -> Array:
    """Return float32 [N, F], a 1 in the column of how many others a node met in the window.

    More than there are columns for stand in the last one.
    """
    events, num_nodes = graph.edge_events(step), graph.num_nodes
    src, dst = events.src.astype(np.int64), events.dst.astype(np.int64)
    pairs = np.unique(np.concatenate([src * num_nodes + dst, dst * num_nodes + src]))
    degree = np.bincount(pairs // num_nodes, minlength=num_nodes)
    rows = np.zeros((num_nodes, width), np.float32)
    rows[np.arange(num_nodes), np.minimum(degree, width - 1)] = 1
    return rows


def random_rows(num_nodes: int, width: int, seed: int) -> Array:
    """Return float32 [N, F], drawn by seed and number of the node, the same in all snapshots.

    Uniform, of mean 0 and variance 1 / F.
    """
    key = DrawKey(seed=seed, epoch=0, purpose=_SITE)
    rows = uniform_rows(key, torch.arange(num_nodes), width, dtype=torch.float64)
    return ((2 * rows - 1) * (3 / width) ** 0.5).float().numpy()


def num_inputs(graph: DynamicGraph, features: NodeFeatures, lags: int) -> int:
    """Return F as a model sees it but for events: features of nodes, behind the signal's past."""
    if not lags:
        return features.width
    assert graph.signal is not None
    return features.width + lags * int(graph.signal.shape[-1])


def input_rows(graph: DynamicGraph, step: int, features: NodeFeatures | None, lags: int) -> Array:
    """Return float32 [N, F] of a snapshot: the signal now and before, 0 before its start, then
    features of the nodes; where those are learnt, nothing."""
    if features is not None and features.is_learned:
        return np.zeros((graph.num_nodes, 0), np.float32)
    own = [] if features is not None and not features.width else [_own(graph, step, features)]
    if not lags:
        return own[0]
    assert graph.signal is not None
    zero = np.zeros(graph.signal.shape[1:], np.float32)
    past = [graph.signal[step - k] if step >= k else zero for k in range(lags)]
    return np.concatenate([*past, *own], axis=1).astype(np.float32)


def _own(graph: DynamicGraph, step: int, features: NodeFeatures | None) -> Array:
    if features is not None:
        return features.rows(graph, step)
    return window_degrees(graph, step) if graph.x is None else graph.features(step)

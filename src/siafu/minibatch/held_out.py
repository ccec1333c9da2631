"""Edges kept from a graph to test link prediction on: nothing is learnt from them or over them.

The side an edge falls on is drawn by the numbers of its two ends, whichever way it points, so an
edge and its reverse are never on two sides.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siafu.errors import ConfigError, DataError
from siafu.graph import Array, Graph, forget, open_folder, parse_split, write_folder
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.ops import DrawKey, uniform_pairs

DEFAULT_SPLIT = "0.8,0.1"
_PURPOSE = ORDER_PURPOSE - 2
_EDGES_AT_ONCE = 1 << 20
_TRAIN, _VAL, _TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Pairs of source and destination by number in the whole graph, int64 [H, 2], each once."""

    val: Array
    test: Array

    def save(self, parts: Path) -> None:
        """Write them beside a parts folder."""
        with write_folder(_beside(parts), "links") as writer:
            writer.save("val", self.val)
            writer.save("test", self.test)

    @classmethod
    def load(cls, parts: Path | str) -> "HeldOut":
        """Return what lies beside a parts folder."""
        folder = open_folder(_beside(Path(parts)), "links")
        folder.verify()
        return cls(folder.load("val"), folder.load("test"))


def _beside(parts: Path) -> Path:
    return parts.with_suffix(".links")


def hold_out_edges(graph: Graph, split: str | None, seed: int) -> tuple[Graph, HeldOut]:
    """Return the graph without validation and test edges, and those; loops all stay.

    `split` has the shares for training and validation, as `0.8,0.1`.
    """
    train, val = _shares(split)
    side_E, num_training = np.zeros(graph.num_edges, np.uint8), 0
    for edges, src, dst in _edges(graph):
        ends = torch.from_numpy(np.stack([np.minimum(src, dst), np.maximum(src, dst)]))
        key = DrawKey(seed, 0, _PURPOSE)
        draw = uniform_pairs(key, ends[0], ends[1], 1, dtype=torch.float64)[:, 0].numpy()
        side = np.searchsorted([train, train + val], draw, side="right")
        side_E[edges] = np.where(src == dst, _TRAIN, side)
        num_training += int(np.count_nonzero((side == _TRAIN) & (src != dst)))
    held = HeldOut(_pairs(graph, side_E == _VAL), _pairs(graph, side_E == _TEST))
    if not num_training:
        raise DataError(
            "No edges are left to train on.",
            seen=f"{graph.num_edges:,} edges in {graph.name}, "
            f"{len(held.val):,} held out for validation and {len(held.test):,} for test",
            fix="give a graph with more edges, or a larger first number to --split",
        )
    return _without(graph, side_E != _TRAIN), held


def _shares(split: str | None) -> tuple[float, float]:
    train, val = parse_split(split or DEFAULT_SPLIT)
    if train >= 1:
        raise ConfigError(
            "Edges are split by shares.",
            seen=f"--split {split} with --task link",
            fix=f"give the shares for training and validation, as --split {DEFAULT_SPLIT}",
        )
    return train, val


def _edges(graph: Graph) -> Iterator[tuple[slice, Array, Array]]:
    """Yield pieces of the edges: which, their sources and their destinations."""
    for low in range(0, graph.num_edges, _EDGES_AT_ONCE):
        high = min(low + _EDGES_AT_ONCE, graph.num_edges)
        src = np.asarray(graph.src[low:high], np.int64)
        yield slice(low, high), src, _destinations(graph, np.arange(low, high))
        forget(graph.src)


def _destinations(graph: Graph, edges: Array) -> Array:
    return np.searchsorted(graph.indptr, edges, side="right") - 1


def _pairs(graph: Graph, chosen_E: Array) -> Array:
    edges = np.flatnonzero(chosen_E)
    pairs = np.stack([np.asarray(graph.src[edges], np.int64), _destinations(graph, edges)], axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    pairs = pairs[order]
    is_new = np.ones(len(pairs), bool)
    is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[is_new]


def _without(graph: Graph, dropped_E: Array) -> Graph:
    gone = np.bincount(_destinations(graph, np.flatnonzero(dropped_E)), minlength=graph.num_nodes)
    indptr = np.concatenate([[0], np.cumsum(np.diff(graph.indptr) - gone)]).astype(np.int64)
    columns: dict[str, Any] = {name: column[~dropped_E] for name, column in graph.edge_arrays()}
    return replace(graph, indptr=indptr, **columns)

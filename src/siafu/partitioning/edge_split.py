"""Edges split into train, val and test where the data has no split of them.

A split is drawn by the two ends of an edge: it is the same for its reverse and for edges that
repeat, and on any number of ranks. E edges.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from siafu.errors import ConfigError
from siafu.graph import MASKS, Array, Graph, forget, parse_split
from siafu.graph.columns import known_rows
from siafu.ops import DrawKey, uniform_pairs
from siafu.partitioning import chunks
from siafu.partitioning.chunks import ranges

DEFAULT_SPLIT = "0.6,0.2"
_PURPOSE = (1 << 18) + 3
"""Draws that split edges, apart from others."""


def edge_sides(source: Tensor, target: Tensor, split: str | None, seed: int) -> Tensor:
    """Return uint8 [E]: 1 train, 2 val, 3 test of edges between nodes by number, on the host."""
    first, second = parse_split(split or DEFAULT_SPLIT)
    if first >= 1:
        raise ConfigError(
            "Edges are split by shares.",
            seen=f"--split {split} with --task edge",
            fix=f"give the shares for training and validation, as --split {DEFAULT_SPLIT}",
        )
    low, high = torch.minimum(source, target), torch.maximum(source, target)
    draw = uniform_pairs(DrawKey(seed, 0, _PURPOSE), low, high, 1, dtype=torch.float64)[:, 0]
    bounds = torch.tensor([first, first + second], dtype=torch.float64)
    return (1 + torch.searchsorted(bounds, draw, right=True)).to(torch.uint8)


def with_edge_split(
    graph: Graph, split: str | None, seed: int, file: Path
) -> tuple[Graph, list[str]]:
    """Return the graph with its edges split, drawn where it has none or where that is asked for.

    What is drawn lies in `file`: it is never in memory as a whole. A note tells what was drawn.
    """
    if graph.edge_y is None or (graph.edge_split is not None and split is None):
        return graph, []
    if not graph.num_edges:
        return replace(graph, edge_split=np.zeros(0, np.uint8)), []
    counts_S = np.zeros(1 + len(MASKS), np.int64)
    side_E: Array = np.lib.format.open_memmap(file, "w+", np.uint8, (graph.num_edges,))
    for low, high in ranges(graph.num_edges, chunks.EDGES_AT_ONCE):
        source = torch.from_numpy(np.asarray(graph.src[low:high], np.int64))
        rows = np.searchsorted(graph.indptr, np.arange(low, high), side="right") - 1
        sides = edge_sides(source, torch.from_numpy(rows), split, seed).numpy()
        side_E[low:high] = np.where(known_rows(np.asarray(graph.edge_y[low:high])), sides, 0)
        counts_S += np.bincount(side_E[low:high], minlength=len(counts_S))
        forget(graph.src)
    why = "No split of edges in the data"
    if graph.edge_split is not None:
        why = f"Split {split} was asked for, so that of the data is not used"
    counts = counts_S[1:].tolist()
    shares = "/".join(f"{100 * count / max(1, sum(counts)):.0f}" for count in counts)
    numbers = "/".join(f"{count:,}" for count in counts)
    note = f"{why}: drew {shares} % ({numbers} edges) from seed {seed}, an edge and its reverse "
    return replace(graph, edge_split=side_E), [f"{note}alike."]

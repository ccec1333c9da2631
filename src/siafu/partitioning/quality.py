"""How good an assignment is.

N nodes, P parts. A halo row is a node of another part that a part reads.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from siafu.graph import Array, Graph
from siafu.ops.numba_jit import strict_kernel
from siafu.partitioning.chunks import edge_pieces
from siafu.record import Progress, silent

_PARTS_AT_ONCE = 64
NODES_KEY = "vertices"
"""What manifests call nodes by part, from the first on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What an assignment costs: edges cut, rows exchanged, and how evenly work is spread."""

    cut_edges: int
    """Edges whose ends lie in two parts."""
    nodes: tuple[int, ...]
    """Owned rows of each part."""
    edges: tuple[int, ...]
    """Edges of each part: those that end in its owned rows."""
    training: tuple[int, ...]
    """Training nodes of each part."""
    halo_rows: tuple[int, ...]
    """Rows each part receives in a layer."""

    @property
    def num_parts(self) -> int:
        """Parts."""
        return len(self.nodes)

    @property
    def cut_fraction(self) -> float:
        """Edges cut, of all."""
        return self.cut_edges / max(1, sum(self.edges))

    @property
    def node_balance(self) -> float:
        """Most nodes of a part over the mean; 1 is even."""
        return _balance(self.nodes)

    @property
    def edge_balance(self) -> float:
        """Most edges of a part over the mean; 1 is even."""
        return _balance(self.edges)

    @property
    def training_balance(self) -> float:
        """Most training nodes of a part over the mean; 1 is even."""
        return _balance(self.training)

    def layer_bytes(self, width: int) -> int:
        """Return the float32 bytes all parts send in one layer, forward and backward."""
        return 2 * 4 * width * sum(self.halo_rows)

    def to_facts(self) -> dict[str, Any]:
        """Return what a manifest keeps, the derived figures for readers included."""
        counts = asdict(self)
        counts[NODES_KEY] = counts.pop("nodes")
        return counts | {
            "cut_fraction": self.cut_fraction,
            "node_balance": self.node_balance,
            "edge_balance": self.edge_balance,
            "training_balance": self.training_balance,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the quality a manifest keeps."""
        keys = {"nodes": NODES_KEY} | {key: key for key in ("edges", "training", "halo_rows")}
        return cls(
            cut_edges=int(facts["cut_edges"]),
            **{name: tuple(int(count) for count in facts[key]) for name, key in keys.items()},
        )


def _balance(counts: tuple[int, ...]) -> float:
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0


def score(
    graph: Graph, part_of: Array, num_parts: int, *, progress: Progress | None = None
) -> Quality:
    """Return the quality of an assignment, from one pass over the edges for each 64 parts."""
    progress = progress or silent
    part_of = np.ascontiguousarray(part_of, dtype=np.int32)
    halo_rows = np.zeros(num_parts, np.int64)
    edges = np.zeros(num_parts, np.int64)
    cut_edges = 0
    for first in range(0, num_parts, _PARTS_AT_ONCE):
        readers = np.zeros(graph.num_nodes, np.uint64)
        for window, src in edge_pieces(graph):
            cut_edges += _mark_readers(window.rows, src, part_of, first, readers, edges)
            progress("score", window.high, graph.num_edges)
        halo_rows[first : first + _PARTS_AT_ONCE] = _count_readers(
            readers, min(_PARTS_AT_ONCE, num_parts - first)
        )
    return Quality(
        cut_edges=int(cut_edges),
        nodes=count_by_part(part_of, num_parts),
        edges=tuple(edges.tolist()),
        training=count_training(graph, part_of, num_parts),
        halo_rows=tuple(halo_rows.tolist()),
    )


def count_by_part(part_of: Array, num_parts: int) -> tuple[int, ...]:
    """Return how many of the nodes each part has."""
    return tuple(np.bincount(part_of, minlength=num_parts).tolist())


def count_training(graph: Graph, part_of: Array, num_parts: int) -> tuple[int, ...]:
    """Return how many training nodes each part has."""
    train = np.empty(0, bool) if graph.train is None else np.asarray(graph.train)
    return count_by_part(part_of[: len(train)][train], num_parts)


@strict_kernel
def _mark_readers(
    rows: tuple[Array, int, int],
    src: Array,
    part_of: Array,
    first_part: int,
    readers: Array,
    edges: Array,
) -> int:
    """Set bit (p - first_part) of each node that part p reads from another; return edges cut.

    Counts the edges of these parts too.
    """
    offsets, first, low = rows
    at, cut = 0, 0
    for position in range(len(src)):
        while offsets[at + 1] <= low + position:
            at += 1
        part = part_of[first + at]
        node = src[position]
        if first_part <= part < first_part + 64:
            edges[part] += 1
            if part_of[node] != part:
                cut += 1
                readers[node] |= np.uint64(1) << np.uint64(part - first_part)
    return cut


@strict_kernel
def _count_readers(readers: Array, num_parts: int) -> Array:
    """Return how many nodes have each bit set."""
    counts = np.zeros(num_parts, np.int64)
    for mask in readers:
        if mask != 0:
            for part in range(num_parts):
                counts[part] += np.int64((mask >> np.uint64(part)) & np.uint64(1))
    return counts

"""How good an assignment is, told before any part is written.

N vertices, P parts. A halo row is a vertex of another part that a part reads.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from siafu.graph import Array, Graph
from siafu.ops.numba_jit import strict_kernel
from siafu.partition.chunks import EDGES_AT_ONCE, Progress, forget, quiet, ranges, read

_PARTS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What an assignment costs: edges cut, rows exchanged, and how evenly work is spread."""

    cut_edges: int
    """Edges whose ends lie in two parts."""
    vertices: tuple[int, ...]
    """Owned rows of each part."""
    edges: tuple[int, ...]
    """Edges of each part: those that end in its owned rows."""
    training: tuple[int, ...]
    """Training vertices of each part."""
    halo_rows: tuple[int, ...]
    """Rows each part receives in a layer."""

    @property
    def num_parts(self) -> int:
        """Parts."""
        return len(self.vertices)

    @property
    def cut_fraction(self) -> float:
        """Edges cut, of all."""
        return self.cut_edges / max(1, sum(self.edges))

    @property
    def vertex_balance(self) -> float:
        """Most vertices of a part over the mean; 1 is even."""
        return _balance(self.vertices)

    @property
    def edge_balance(self) -> float:
        """Most edges of a part over the mean; 1 is even."""
        return _balance(self.edges)

    @property
    def training_balance(self) -> float:
        """Most training vertices of a part over the mean; 1 is even."""
        return _balance(self.training)

    def layer_bytes(self, width: int) -> int:
        """Return the float32 bytes all parts send in one layer, forward and backward."""
        return 2 * 4 * width * sum(self.halo_rows)

    def to_facts(self) -> dict[str, Any]:
        """Return what a manifest keeps, the derived figures for readers included."""
        return asdict(self) | {
            "cut_fraction": self.cut_fraction,
            "vertex_balance": self.vertex_balance,
            "edge_balance": self.edge_balance,
            "training_balance": self.training_balance,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the quality a manifest keeps."""
        by_part = ("vertices", "edges", "training", "halo_rows")
        return cls(
            cut_edges=int(facts["cut_edges"]),
            **{name: tuple(int(count) for count in facts[name]) for name in by_part},
        )


def _balance(counts: tuple[int, ...]) -> float:
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0


def score(
    graph: Graph, part_of: Array, num_parts: int, *, progress: Progress | None = None
) -> Quality:
    """Return the quality of an assignment, from one pass over the edges for each 64 parts."""
    progress = progress or quiet
    part_of = np.ascontiguousarray(part_of, dtype=np.int32)
    indptr = np.array(graph.indptr)
    halo_rows = np.zeros(num_parts, np.int64)
    cut_edges = 0
    for first in range(0, num_parts, _PARTS_AT_ONCE):
        readers = np.zeros(graph.num_nodes, np.uint64)
        for low, high in ranges(graph.num_edges, EDGES_AT_ONCE):
            src = read(graph.src, low, high).astype(np.int64)
            cut_edges += _mark_readers(indptr, src, low, part_of, first, readers)
            progress("score", high, graph.num_edges)
        halo_rows[first : first + _PARTS_AT_ONCE] = _count_readers(
            readers, min(_PARTS_AT_ONCE, num_parts - first)
        )
    train = np.zeros(graph.num_nodes, bool) if graph.train is None else np.array(graph.train)
    degree = np.diff(indptr)
    forget(graph.indptr)
    return Quality(
        cut_edges=int(cut_edges),
        vertices=_by_part(part_of, None, num_parts),
        edges=_by_part(part_of, degree, num_parts),
        training=_by_part(part_of, train, num_parts),
        halo_rows=tuple(halo_rows.tolist()),
    )


def _by_part(part_of: Array, weight: Array | None, num_parts: int) -> tuple[int, ...]:
    # bincount sums in float64, exact to 2**53 edges.
    sums = np.bincount(part_of, weights=weight, minlength=num_parts)
    return tuple(int(total) for total in sums)


@strict_kernel
def _mark_readers(
    indptr: Array, src: Array, low: int, part_of: Array, first: int, readers: Array
) -> int:
    """Set bit (p - first) of each vertex that part p reads from another; return edges cut."""
    row = np.searchsorted(indptr, low, side="right") - 1
    cut = 0
    for position in range(len(src)):
        while indptr[row + 1] <= low + position:
            row += 1
        part = part_of[row]
        vertex = src[position]
        if part_of[vertex] != part and first <= part < first + 64:
            cut += 1
            readers[vertex] |= np.uint64(1) << np.uint64(part - first)
    return cut


@strict_kernel
def _count_readers(readers: Array, num_parts: int) -> Array:
    """Return how many vertices have each bit set."""
    counts = np.zeros(num_parts, np.int64)
    for mask in readers:
        if mask != 0:
            for part in range(num_parts):
                counts[part] += np.int64((mask >> np.uint64(part)) & np.uint64(1))
    return counts

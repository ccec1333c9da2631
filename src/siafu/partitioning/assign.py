"""The two assignments that look at no neighbour: ranges of rows, and a hash of the row."""

import numpy as np

from siafu.errors import PartitionError
from siafu.graph import Array, Graph
from siafu.partitioning.chunks import ranges

_ROWS_AT_ONCE = 1 << 20


def check_num_parts(num_parts: int, num_nodes: int) -> None:
    """Raise unless every part could own a node."""
    if not 1 <= num_parts <= num_nodes:
        raise PartitionError(
            "The graph can't be cut into that many parts.",
            seen=f"{num_parts} parts, {num_nodes} nodes",
            fix=f"ask for 1 to {num_nodes} parts",
        )


def assign_contiguous(graph: Graph, num_parts: int) -> Array:
    """Return part_of for ranges of rows with about as many edges each."""
    check_num_parts(num_parts, graph.num_nodes)
    # A node costs one edge more than it has, so that nodes without edges spread too.
    total = graph.num_edges + graph.num_nodes
    part_of = np.empty(graph.num_nodes, np.int32)
    for low, high in ranges(graph.num_nodes, _ROWS_AT_ONCE):
        start = graph.indptr[low : high + 1] + np.arange(low, high + 1, dtype=np.int64)
        middle_twice = start[:-1] + start[1:]
        part_of[low:high] = middle_twice * num_parts // (2 * total)
    return part_of


def assign_hash(graph: Graph, num_parts: int, *, seed: int = 0) -> Array:
    """Return part_of drawn from a hash of the row and the seed: balanced, blind to edges."""
    check_num_parts(num_parts, graph.num_nodes)
    part_of = np.empty(graph.num_nodes, np.int32)
    salt = _mix(np.array([seed % 2**64], np.uint64))
    for low, high in ranges(graph.num_nodes, _ROWS_AT_ONCE):
        part_of[low:high] = _mix(np.arange(low, high, dtype=np.uint64) ^ salt) % np.uint64(
            num_parts
        )
    return part_of


def _mix(value: Array) -> Array:
    """Return the splitmix64 finaliser: every input bit reaches every output bit."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))

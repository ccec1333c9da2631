"""How much memory cutting a graph takes, told before it starts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from siafu.errors import PartitionError
from siafu.graph import Graph, graph_facts
from siafu.memory import Budget, held_bytes
from siafu.ops.threads import num_threads
from siafu.partitioning.chunks import EDGES_AT_ONCE, ends_at_once

# Peak resident bytes of the METIS child (pymetis 2025.2.2, 64-bit indices, 3 constraints), random
# graphs, neighbours counted in both directions. An idle child has 32 MB.
#   nodes neighbours  measured  predicted here
#      0.2 M      4.0 M    599 MB      647 MB
#      1.0 M      4.0 M    559 MB      727 MB
#      0.2 M      9.9 M   1238 MB     1473 MB   (power law, 16 parts)
#      1.0 M     10.0 M   1424 MB     1565 MB   (power law)
#      1.0 M      9.9 M    870 MB     1559 MB   (neighbours near in row order)
#      2.0 M      8.0 M   1105 MB     1387 MB
# Measured afterwards; the last made 135 bytes 140:
#      0.5 M      6.0 M    833 MB      957 MB   (power law)
#      0.7 M      9.0 M   1269 MB     1397 MB
#      0.3 M      5.0 M    786 MB      797 MB   (both directions stored)
_METIS_NEIGHBOUR_BYTES = 140
_METIS_NODE_BYTES = 100
_METIS_BASE_BYTES = 64 << 20
# Streaming and the writer hold a few columns per node, and pieces of 4 M edges or 64 MiB of
# features in up to three copies. Resident bytes above an idle process:
#   nodes     edges   measured  predicted here
#       20 M    1000 M     580 MB     1195 MB
#       10 M       5 M     624 MB      715 MB   (most clusters are single nodes)
#        3 M      30 M     236 MB      379 MB   (hash, 8 parts)
#        1 M      20 M     194 MB      283 MB
# Of its own, beyond what a warm process has (1 M nodes, 30 M edges): 297 MiB on 2 threads, 532 on
# 16, 519 on 64; predicted 318, 542, 542.
_NODE_BYTES = 48
_PIECES_BYTES = 256 << 20
_THREAD_BYTES, _MOST_THREADS = 16 << 20, 16
_DECIDED_BYTES = 10
"""Of an edge end of a piece whose rows are decided together, beyond those of smaller pieces: its
neighbour and its row's offsets, of such a piece and the next."""
_SAMPLED_EDGES = 256


def predict_peak_bytes(
    facts: Mapping[str, Any], method: str, num_parts: int, *, reverse_share: float = 0.0
) -> int:
    """Return the predicted peak memory of cutting a graph with these facts, beyond what runs now.

    `facts` needs num_nodes and num_edges, as every manifest has them. METIS sees each edge in
    both directions: `reverse_share` is the share of edges whose reverse is an edge already.
    """
    num_nodes, num_edges = int(facts["num_nodes"]), int(facts["num_edges"])
    passing = _NODE_BYTES * num_nodes + _PIECES_BYTES
    passing += _THREAD_BYTES * (min(num_threads(), _MOST_THREADS) - 1)
    if method == "streaming" and num_parts > 1:
        larger = ends_at_once(2 * num_edges, decided=True)
        passing += _DECIDED_BYTES * max(0, larger - EDGES_AT_ONCE)
    if method != "metis" or num_parts == 1:  # others pass over the edges once
        return passing
    neighbours = round(num_edges * (2 - reverse_share))
    metis = _METIS_NEIGHBOUR_BYTES * neighbours + _METIS_NODE_BYTES * num_nodes
    return max(passing, metis + _METIS_BASE_BYTES)


def predict_for(graph: Graph, method: str, num_parts: int) -> int:
    """Return `predict_peak_bytes` for a graph at hand, whose reverse edges can be sampled."""
    share = sample_reverse_share(graph) if method == "metis" else 0.0
    return predict_peak_bytes(graph_facts(graph), method, num_parts, reverse_share=share)


def sample_reverse_share(graph: Graph) -> float:
    """Return about which share of the edges have their reverse in the graph too."""
    if graph.num_edges == 0:
        return 0.0
    edges = np.random.default_rng(0).integers(0, graph.num_edges, _SAMPLED_EDGES)
    destinations = np.searchsorted(graph.indptr, edges, side="right") - 1
    found = 0
    for source, destination in zip(graph.src[edges], destinations, strict=True):
        row = graph.src[graph.indptr[source] : graph.indptr[source + 1]]
        found += bool((row == destination).any())
    return found / _SAMPLED_EDGES


def check_cut_fits(predicted: int, budget: Budget, method: str) -> None:
    """Raise when cutting the graph would not fit."""
    available = budget.free
    if predicted <= available:
        return
    otherwise = ""
    if method == "metis":
        otherwise = "use `--method streaming` (`--partition` in training), which holds nodes alone"
    raise PartitionError(
        "Cutting the graph would not fit in memory.",
        seen=f"{method} needs about {predicted / 2**20:,.0f} MiB ({predicted} bytes) beside the "
        f"{held_bytes() / 2**20:,.0f} MiB that Python holds, {available / 2**20:,.0f} MiB are free",
        fix=budget.fix(predicted, otherwise),
    )

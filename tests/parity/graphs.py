"""Small graphs that hurt: isolated nodes, repeated edges, loops, a hub, an empty part."""

import numpy as np

from siafu.graph import Graph, graph_from_edges
from siafu.partitioning import assign_hash, assign_metis


def awkward_graph(*, num_nodes: int = 41, weighted: bool = False, width: int = 6) -> Graph:
    """Return a directed graph whose size divides by nothing, with every awkward feature."""
    generator = np.random.default_rng(7)
    src = generator.integers(0, num_nodes - 3, 150)  # the last three nodes stay isolated
    dst = generator.integers(0, num_nodes - 3, 150)
    repeated = slice(0, 20)
    loops = np.arange(5, 9)
    others = np.arange(num_nodes - 3)
    hub = np.zeros_like(others)  # node 0 is joined to everyone, both ways
    src = np.concatenate([src, src[repeated], loops, loops[:2], hub, others])
    dst = np.concatenate([dst, dst[repeated], loops, loops[:2], others, hub])
    order = generator.permutation(len(src))
    columns = {}
    if weighted:
        columns["edge_weight"] = generator.uniform(0.5, 2.0, len(src)).astype(np.float32)
        columns["edge_attr"] = generator.standard_normal((len(src), 2)).astype(np.float32)
        columns["edge_type"] = generator.integers(0, 4, len(src)).astype(np.uint8) % 3
    return graph_from_edges(
        src[order],
        dst[order],
        num_nodes,
        name="awkward",
        x=generator.standard_normal((num_nodes, width)).astype(np.float32),
        y=generator.integers(0, 3, num_nodes),
        num_classes=3,
        train=generator.random(num_nodes) < 0.6,
        val=np.zeros(num_nodes, bool),
        test=np.zeros(num_nodes, bool),
        **columns,
    )


def assignment(graph: Graph, kind: str, num_parts: int) -> np.ndarray:
    """Return a part for each node: `hash`, `metis`, or `gap` which leaves part 1 empty."""
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    if kind == "metis":
        return assign_metis(graph, num_parts, seed=0)
    part_of = assign_hash(graph, num_parts, seed=1)
    if kind == "gap":
        part_of = np.where(part_of == 1, 0, part_of).astype(np.int32)
    return part_of

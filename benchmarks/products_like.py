"""The graphs of `benchmarks.macrobatch` and `benchmarks.reach`, and how they are cut."""

import numpy as np

from siafu.graph import Array, Graph, graph_from_edges
from siafu.partitioning import assign_contiguous, assign_hash

DEGREE, FEATURES, CLASSES = 50, 100, 47


def products_like(
    nodes: int,
    seeds: int,
    *,
    communities: bool,
    degree: int = DEGREE,
    features: int = FEATURES,
) -> Graph:
    """Return an undirected graph, skewed, with so many training nodes, half of all at most."""
    generator = np.random.default_rng(0)
    edges = degree * nodes // 2
    label = generator.integers(0, CLASSES, nodes)
    share = generator.pareto(1.8, nodes) + 0.2
    src = generator.choice(nodes, edges, p=share / share.sum())
    dst = generator.choice(nodes, edges, p=share / share.sum())
    if communities:
        near = (src + generator.integers(1, 400, edges)) % nodes
        dst = np.where(generator.random(edges) < 0.7, near, dst)
    role = np.zeros(nodes, bool)
    role[generator.permutation(nodes)[: min(nodes // 2, seeds)]] = True
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        nodes,
        name="products-like" if communities else "power-law",
        x=generator.standard_normal((nodes, features), dtype=np.float32),
        y=label,
        num_classes=CLASSES,
        train=role,
        val=np.zeros(nodes, bool),
        test=np.zeros(nodes, bool),
    )


def method_of(graph: Graph) -> str:
    """Return how the graph is cut: communities lie along the numbering."""
    return "contiguous" if graph.name == "products-like" else "hash"


def part_of(graph: Graph, size: int) -> Array:
    """Return the part of each node."""
    if method_of(graph) == "contiguous":
        return assign_contiguous(graph, size)
    return assign_hash(graph, size, seed=0)

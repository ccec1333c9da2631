"""The graphs of `benchmarks.macrobatch` and `benchmarks.reach`, and how they are cut."""

import numpy as np

from siafu.graph import Array, Graph, graph_from_edges
from siafu.partitioning import assign_contiguous, assign_hash

DEGREE, FEATURES, CLASSES = 50, 100, 47


def products_like(
    vertices: int,
    seeds: int,
    *,
    communities: bool,
    degree: int = DEGREE,
    features: int = FEATURES,
) -> Graph:
    """Return an undirected graph, skewed, with so many training nodes, half of all at most."""
    generator = np.random.default_rng(0)
    edges = degree * vertices // 2
    label = generator.integers(0, CLASSES, vertices)
    share = generator.pareto(1.8, vertices) + 0.2
    src = generator.choice(vertices, edges, p=share / share.sum())
    dst = generator.choice(vertices, edges, p=share / share.sum())
    if communities:
        near = (src + generator.integers(1, 400, edges)) % vertices
        dst = np.where(generator.random(edges) < 0.7, near, dst)
    role = np.zeros(vertices, bool)
    role[generator.permutation(vertices)[: min(vertices // 2, seeds)]] = True
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        vertices,
        name="products-like" if communities else "power-law",
        x=generator.standard_normal((vertices, features), dtype=np.float32),
        y=label,
        num_classes=CLASSES,
        train=role,
        val=np.zeros(vertices, bool),
        test=np.zeros(vertices, bool),
    )


def method_of(graph: Graph) -> str:
    """Return how the graph is cut: communities lie along the numbering."""
    return "contiguous" if graph.name == "products-like" else "hash"


def part_of(graph: Graph, size: int) -> Array:
    """Return the part of each node."""
    if method_of(graph) == "contiguous":
        return assign_contiguous(graph, size)
    return assign_hash(graph, size, seed=0)

"""How much of a graph minibatches reach, where it can be counted by hand."""

import numpy as np

from benchmarks.products_like import part_of, products_like
from benchmarks.reach import reach_of
from siafu.graph import Graph, graph_from_edges


def _star_of_pairs(pairs: int) -> tuple[Graph, np.ndarray]:
    """Return edges from node pairs + i to node i, and one part for each end."""
    graph = graph_from_edges(
        np.arange(pairs) + pairs,
        np.arange(pairs),
        2 * pairs,
        x=np.zeros((2 * pairs, 1), np.float32),
        y=np.zeros(2 * pairs, np.int64),
        num_classes=1,
        train=np.arange(2 * pairs) < pairs,
        val=np.zeros(2 * pairs, bool),
        test=np.zeros(2 * pairs, bool),
    )
    return graph, (np.arange(2 * pairs) >= pairs).astype(np.int32)


def test_minibatches_without_a_node_in_common_share_no_far_row() -> None:
    graph, parts = _star_of_pairs(4000)
    found = reach_of(graph, parts, (1, 2, 4))
    assert found["reach"] == {"1": 0.25, "2": 0.5, "4": 1.0}
    assert found["far_share"] == {"1": 1.0, "2": 1.0, "4": 1.0}


def test_the_same_minibatch_again_brings_no_new_far_row() -> None:
    graph, parts = _star_of_pairs(1000)
    found = reach_of(graph, parts, (1, 2, 4))
    assert found["reach"] == {"1": 1.0, "2": 1.0, "4": 1.0}
    assert found["far_share"] == {"1": 1.0, "2": 0.5, "4": 0.25}


def test_the_graph_of_the_benchmark_has_the_degree_and_seeds_asked_for() -> None:
    graph = products_like(1000, 300, communities=True, degree=10, features=3)
    assert graph.num_edges == 10 * 1000
    assert int(np.asarray(graph.train).sum()) == 300
    assert set(np.diff(part_of(graph, 2))) == {0, 1}, "two ranges, along the communities"

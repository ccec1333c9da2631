"""How much of a graph minibatches reach, where it can be counted by hand."""

import numpy as np
import torch

from benchmarks.cooperation import MEASURED, Load, Side, Widths, counted
from benchmarks.products_like import part_of, products_like
from benchmarks.reach import reach_of
from siafu.graph import Graph, graph_from_edges
from siafu.ops import CSR, sample_positions


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


def test_what_minibatches_compute_and_send_is_counted_by_hand() -> None:
    """Seeds 0 and 1 read node 2, which reads 3; the first rank owns 0 and 2."""
    graph = graph_from_edges([2, 2, 3], [0, 1, 2], 4)
    csr = CSR(torch.from_numpy(graph.indptr), torch.from_numpy(graph.src), 4)
    seeds = [[torch.tensor([0]), torch.tensor([1])]] * 2
    found = counted(
        csr, np.array([0, 1, 0, 1]), seeds, (5, 5), (0, sample_positions), [Widths(10, 8, 4)]
    )
    alone, together = found["independent"], found["cooperative"]
    assert found["reach"] == {"1": 0.75}
    assert (alone["rows"], together["rows"]) == ([4, 2], [3, 2]), "node 2 is computed once"
    assert (alone["edges"], together["edges"]) == (6, 5)
    assert (alone["hidden_rows"], together["hidden_rows"]) == ([0], [1])
    one, both = "k=1, 10-8-4", "k=2, 10-8-4"
    assert (alone[one]["input_rows"], alone[both]["input_rows"]) == (2, 1)
    assert (together[one]["input_rows"], together[both]["input_rows"]) == (2, 1)


def test_bytes_are_of_the_narrower_side_of_a_map_and_go_back_from_hidden_layers() -> None:
    halo_LPP = np.array([[[0, 100], [0, 0]]])
    none = np.zeros((2, 2))
    side = Side(torch.tensor([0, 1]), 2, 1)
    side.loads.append(Load(np.ones((2, 2)), np.ones(2), 4, none, halo_LPP, 0.0))
    found = side.reckoned(np.array([[0, 1000], [0, 0]]), Widths(10, 8, 5), asks=False)
    assert found["hidden_mb"] == round(2 * 100 * 5 * 4 / 1e6, 2)
    assert found["mb"] == round((2 * 100 * 5 * 4 + 1000 * 10 * 4) / 1e6, 2)


def test_the_measured_step_takes_its_measured_seconds() -> None:
    widths, rows, seconds = MEASURED
    load = Load(np.array(rows), np.zeros(1), 0, np.zeros((1, 1)), np.zeros((2, 1, 1)), 0.0)
    side = Side(torch.zeros(1, dtype=torch.int64), 1, 1)
    side.loads.append(load)
    found = side.reckoned(np.zeros((1, 1)), widths, asks=True)
    assert found["train_s"] == round(seconds, 4)
    assert found["1 Gbit/s"] == {"s": 0.2101, "best": 0.2101, "in_turn": 0.2101}

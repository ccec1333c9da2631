"""Drawn masks cover the labelled nodes once; reverse edges are those that were missing."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import ConfigError, DataError
from siafu.graph import Graph, add_reverse_edges, draw_split, graph_from_edges, parse_split


def labelled(y: np.ndarray, num_classes: int) -> Graph:
    none = np.empty(0, np.int64)
    return graph_from_edges(none, none, len(y), y=y, num_classes=num_classes)


def some_labels() -> np.ndarray:
    y = np.random.default_rng(0).integers(0, 4, 203)
    y[::7] = -1
    return y


def test_fractions_cover_the_labelled_nodes_once() -> None:
    y = some_labels()
    graph = draw_split(labelled(y, 4), "0.6,0.25", seed=5)
    count = (y >= 0).sum()
    times = graph.train.astype(int) + graph.val + graph.test
    np.testing.assert_array_equal(times, (y >= 0).astype(int))
    assert graph.train.sum() == round(0.6 * count)
    assert graph.val.sum() == round(0.85 * count) - round(0.6 * count)


def test_nodes_a_class_are_counted_by_class() -> None:
    y = some_labels()
    graph = draw_split(labelled(y, 4), "5,9", seed=5)
    for label in range(4):
        assert (y[graph.train] == label).sum() == 5
        assert (y[graph.val] == label).sum() == 9
    times = graph.train.astype(int) + graph.val + graph.test
    np.testing.assert_array_equal(times, (y >= 0).astype(int))


def test_small_class_is_taken_whole() -> None:
    graph = draw_split(labelled(np.array([0, 0, 1]), 2), "2,2", seed=0)
    assert graph.train.tolist() == [True, True, True]
    assert not graph.test.any()


def test_same_seed_draws_the_same_masks() -> None:
    graph = labelled(some_labels(), 4)
    first, again, other = (draw_split(graph, "0.5,0.2", seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.train, again.train)
    assert (first.train != other.train).any()


def test_multi_label_data_takes_fractions_only() -> None:
    y = np.random.default_rng(0).integers(0, 2, (20, 3)).astype(np.uint8)
    assert draw_split(labelled(y, 3), "0.5,0.5", 0).train.sum() == 10
    with pytest.raises(ConfigError, match="one label per node"):
        draw_split(labelled(y, 3), "5,5", 0)


def test_masks_need_labels() -> None:
    none = np.empty(0, np.int64)
    with pytest.raises(DataError, match="without labels"):
        draw_split(graph_from_edges(none, none, 4), "0.5,0.5", 0)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0.6,0.2", (0.6, 0.2)), ("20,30", (20, 30)), ("1,0", (1, 0))]
)
def test_split_is_two_numbers(text: str, numbers: tuple[float, float]) -> None:
    assert parse_split(text) == numbers


@pytest.mark.parametrize(
    "text", ["nonsense", "", "0.6", "0.6,0.2,0.2", "0.8,0.4", "-1,2", "0,5", "2.5,3", "nan,1", "5,"]
)
def test_nonsense_split_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="split is not understood") as caught:
        parse_split(text)
    assert f"--split {text}" in caught.value.seen


@st.composite
def edge_lists(draw) -> tuple[int, list[tuple[int, int]]]:
    num_nodes = draw(st.integers(1, 8))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=25))


@settings(max_examples=200, deadline=None)
@given(edge_lists())
def test_reverse_edges_are_the_missing_ones_with_their_data(case) -> None:
    num_nodes, edges = case
    ends = np.array(edges, np.int64).reshape(-1, 2)
    weight = np.arange(len(edges), dtype=np.float32)
    graph = graph_from_edges(ends[:, 0], ends[:, 1], num_nodes, edge_weight=weight)
    got = add_reverse_edges(graph)

    there = set(edges)
    missing = {(v, u) for u, v in edges} - there
    dst = np.repeat(np.arange(num_nodes), np.diff(got.indptr))
    pairs = list(zip(got.src.tolist(), dst.tolist(), strict=True))
    assert Counter(pairs) == Counter(edges) + Counter(missing)
    weights_of = {pair: {w for w, p in enumerate(edges) if p == pair} for pair in there}
    for pair, value in zip(pairs, got.edge_weight.tolist(), strict=True):
        assert value in weights_of[pair if pair in there else pair[::-1]]
    again = add_reverse_edges(got)
    assert again.num_edges == got.num_edges

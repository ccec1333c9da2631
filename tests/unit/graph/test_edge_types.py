"""Edge types: narrow, counted, checked, part of the fingerprint, kept by stores and reverses."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import DataError, StoreError
from siafu.graph import (
    Graph,
    add_reverse_edges,
    check_graph,
    count_edge_types,
    fingerprint_graph,
    graph_facts,
    graph_from_edges,
    load_store,
    save_store,
)

SRC, DST = np.array([0, 1, 2, 5, 1]), np.array([1, 2, 2, 0, 0])
TYPES = np.array([2, 0, 0, 1, 2])


def typed(**columns) -> Graph:
    return graph_from_edges(SRC, DST, 6, **{"edge_type": TYPES, **columns})


def test_types_follow_their_edges_in_the_smallest_dtype() -> None:
    graph = typed()
    assert graph.edge_type.tolist() == [1, 2, 2, 0, 0]
    assert graph.edge_type.dtype == np.uint8
    assert graph.num_edge_types == 3
    assert "edge types=3" in repr(graph)
    check_graph(graph)


@pytest.mark.parametrize(
    ("high", "dtype"), [(255, np.uint8), (256, np.uint16), (65_535, np.uint16), (65_536, np.uint32)]
)
def test_dtype_grows_with_the_number_of_types(high: int, dtype: type) -> None:
    graph = typed(edge_type=TYPES + (high - 2))
    assert graph.edge_type.dtype == dtype
    assert graph.edge_type.max() == high
    assert graph.num_edge_types == high + 1


def test_types_that_no_edge_has_are_counted_where_they_are_named() -> None:
    assert typed(num_edge_types=300).edge_type.dtype == np.uint16
    graph = typed(edge_type_names=("a", "b", "c", "d"))
    assert graph.num_edge_types == 4
    assert count_edge_types(graph.edge_type, 4).tolist() == [2, 1, 2, 0]


def test_a_graph_without_types_has_none() -> None:
    graph = graph_from_edges(SRC, DST, 6)
    assert (graph.edge_type, graph.num_edge_types, graph.edge_type_names) == (None, 0, ())
    assert not {"num_edge_types", "edge_type_names"} & graph_facts(graph).keys()


def test_types_survive_where_there_are_no_edges(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    graph = graph_from_edges(none, none, 3, edge_type=none, edge_type_names=("a", "b"))
    save_store(graph, tmp_path / "store")
    loaded = load_store(tmp_path / "store")
    assert (len(loaded.edge_type), loaded.num_edge_types) == (0, 2)
    assert count_edge_types(loaded.edge_type, 2).tolist() == [0, 0]


def test_store_keeps_types_and_names(tmp_path: Path) -> None:
    graph = typed(edge_type_names=("a", "b", "蟻"))
    save_store(graph, tmp_path / "store")
    loaded = load_store(tmp_path / "store")
    np.testing.assert_array_equal(loaded.edge_type, graph.edge_type)
    assert (loaded.num_edge_types, loaded.edge_type_names) == (3, ("a", "b", "蟻"))
    assert loaded.edge_type.dtype == np.uint8
    assert fingerprint_graph(loaded) == fingerprint_graph(graph)


def test_damaged_types_are_found(tmp_path: Path) -> None:
    save_store(typed(), tmp_path / "store")
    file = tmp_path / "store" / "edge_type.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match=r"edge_type\.npy is damaged"):
        load_store(tmp_path / "store")


def test_store_from_before_edge_types_opens(tmp_path: Path) -> None:
    untyped = graph_from_edges(SRC, DST, 6)
    save_store(untyped, tmp_path / "store")
    facts = json.loads((tmp_path / "store" / "manifest.json").read_text())["facts"]
    assert not any("edge_type" in name for name in facts)
    loaded = load_store(tmp_path / "store")
    assert (loaded.edge_type, loaded.num_edge_types, loaded.edge_type_names) == (None, 0, ())
    check_graph(loaded)


def test_fingerprint_changes_with_types_and_their_number() -> None:
    plain, one = graph_from_edges(SRC, DST, 6), typed()
    others = [plain, typed(edge_type=TYPES[::-1]), typed(num_edge_types=4)]
    assert len({fingerprint_graph(graph) for graph in [one, *others]}) == 4
    # The hash of a graph without types, taken before there were any: runs made then still fit.
    assert fingerprint_graph(plain).startswith("756f8c01f76ca6a3")


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (TYPES[:4], "5 edges, edge_type has 4 rows"),
        (np.append(TYPES, 0), "5 edges, edge_type has 6 rows"),
        (TYPES - 1, "has type -1"),
        (TYPES.astype(np.float32), "edge_type is float32 (5,)"),
        (np.array([0, 1, np.nan, 0, 0]), "edge_type is float64 (5,)"),
        (np.array(list("abcde")), "edge_type is <U1 (5,)"),
        (TYPES > 0, "edge_type is bool (5,)"),
        (TYPES[:, None], "edge_type is int64 (5, 1)"),
        (TYPES + 2**31, "has type 2147483650"),
        (TYPES.astype(np.uint64) + np.uint64(2**63), "has type 9223372036854775810"),
    ],
)
def test_bad_types_are_refused_with_what_was_seen(types, told: str) -> None:
    with pytest.raises(DataError) as caught:
        typed(edge_type=types)
    assert told in caught.value.seen


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"edge_type": np.zeros(4, np.uint8)}, "edge_type has 4 rows"),
        ({"edge_type": np.full(5, -1)}, "edge_type is int64"),
        ({"edge_type": np.zeros(5, np.float32)}, "edge_type is float32"),
        ({"num_edge_types": 2}, "type 2 where there are 2"),
        ({"edge_type_names": ("a", "b")}, "2 names for 3 types"),
        ({"edge_type": None}, "3 types, 0 names, no edge_type"),
    ],
)
def test_bad_graph_is_refused_with_what_was_seen(change, told: str) -> None:
    with pytest.raises(DataError) as caught:
        check_graph(replace(typed(), **change))
    assert told in caught.value.seen


@pytest.mark.parametrize("column", ["edge_weight", "edge_attr"])
def test_other_edge_columns_of_a_wrong_length_are_refused_too(column: str) -> None:
    with pytest.raises(DataError, match=f"{column} has 6 rows"):
        typed(**{column: np.ones(6, np.float32)})


@st.composite
def typed_edges(draw) -> tuple[int, list[tuple[int, int, int]]]:
    num_nodes = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node, st.integers(0, 2)), max_size=25))


@settings(max_examples=200, deadline=None)
@given(typed_edges())
def test_reverse_edges_are_the_missing_ones_of_each_type(case) -> None:
    num_nodes, edges = case
    src, dst, types = np.array(edges, np.int64).reshape(-1, 3).T
    graph = graph_from_edges(src, dst, num_nodes, edge_type=types, num_edge_types=3)
    got = add_reverse_edges(graph)

    missing = {(v, u, kind) for u, v, kind in edges} - set(edges)
    ends = got.edge_index().tolist()
    found = Counter(zip(*ends, got.edge_type.tolist(), strict=True))
    assert found == Counter(edges) + Counter(missing)
    assert got.edge_type.dtype == graph.edge_type.dtype
    assert add_reverse_edges(got).num_edges == got.num_edges
    check_graph(got)

"""Graphs, ids and sparse features: checked, saved and loaded as they were."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from siafu.errors import DataError, StoreError
from siafu.graph import (
    Graph,
    IntegerIds,
    SparseFeatures,
    TextIds,
    check_graph,
    fingerprint_graph,
    graph_from_edges,
    index_dtype,
    load_store,
    save_store,
)
from siafu.partitioning import open_parts, partition_graph
from tests.folders import put_array

NAMES = ["ant", "", "蟻 siafu", "zażółć", "🐜" * 3, "a\nb"]


def small(**columns) -> Graph:
    settings = {
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y": np.array([0, 1, 2, -1, 1, 0]),
        "num_classes": 3,
        "ids": TextIds.from_arrow(pa.array(NAMES)),
    }
    return graph_from_edges(
        np.array([0, 1, 2, 5, 1]), np.array([1, 2, 2, 0, 0]), 6, **{**settings, **columns}
    )


def sparse() -> SparseFeatures:
    indptr = np.array([0, 2, 2, 5, 6, 6, 7])
    index = np.array([0, 3, 1, 2, 3, 0, 2], np.int32)
    return SparseFeatures(indptr, index, np.arange(1, 8, dtype=np.float32), 4)


def dense(x: SparseFeatures) -> np.ndarray:
    out = np.zeros(x.shape, np.float32)
    out[np.repeat(np.arange(len(out)), np.diff(x.indptr)), x.index] = x.value
    return out


def test_text_ids_come_back(tmp_path: Path) -> None:
    save_store(small(), tmp_path / "store")
    ids = load_store(tmp_path / "store").ids
    assert ids.to_arrow().to_pylist() == NAMES
    assert ids.take(np.array([4, 0, 4])).to_arrow().to_pylist() == [NAMES[4], NAMES[0], NAMES[4]]
    assert len(ids) == 6


def test_text_ids_of_a_slice_start_at_zero() -> None:
    ids = TextIds.from_arrow(pa.array(NAMES)[2:5])
    assert ids.offsets[0] == 0
    assert ids.to_arrow().to_pylist() == NAMES[2:5]


def test_integer_ids_come_back(tmp_path: Path) -> None:
    values = np.array([7, -3, 2**62, 0, 5, 11])
    save_store(small(ids=IntegerIds(values)), tmp_path / "store")
    ids = load_store(tmp_path / "store").ids
    assert ids.to_arrow().to_pylist() == values.tolist()
    assert ids.take(np.array([2, 0])).to_arrow().to_pylist() == [2**62, 7]


@pytest.mark.parametrize("rows", [[], [0], [1, 1], [5, 0, 2, 2, 4], [0, 1, 2, 3, 4, 5]])
def test_sparse_rows_taken_are_those_of_the_dense_matrix(rows: list[int]) -> None:
    taken = sparse().take(np.array(rows, np.int64))
    np.testing.assert_array_equal(dense(taken), dense(sparse())[rows])


def test_store_keeps_every_column(tmp_path: Path) -> None:
    some = np.array([True, False, True, False, False, False])
    weight, attr = np.arange(5, dtype=np.float32), np.arange(10, dtype=np.float32).reshape(5, 2)
    graph = small(x=sparse(), edge_weight=weight, edge_attr=attr, y=np.arange(6) % 3)
    graph = graph.with_masks(some, ~some, some)
    save_store(graph, tmp_path / "store")
    loaded = load_store(tmp_path / "store")
    assert fingerprint_graph(loaded) == fingerprint_graph(graph)
    assert loaded.x.width == 4
    assert loaded.num_classes == 3
    np.testing.assert_array_equal(loaded.edge_attr, graph.edge_attr)


def test_edge_columns_follow_their_edges() -> None:
    graph = small(edge_weight=np.array([10, 21, 22, 5, 1], np.float32))
    assert graph.indptr.tolist() == [0, 2, 3, 5, 5, 5, 5]
    assert graph.src.tolist() == [5, 1, 0, 1, 2]
    assert graph.edge_weight.tolist() == [5, 1, 10, 21, 22]


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.ones((6, 2), np.float32)},
        {"y": np.zeros(6, np.int64)},
        {"num_classes": 4},
        {"ids": IntegerIds(np.arange(6))},
        {"train": np.ones(6, bool)},
        {"edge_weight": np.ones(5, np.float32)},
    ],
)
def test_fingerprint_changes_with_each_column(change) -> None:
    assert fingerprint_graph(small()) != fingerprint_graph(replace(small(), **change))


def test_indices_are_wide_only_where_they_must_be() -> None:
    assert index_dtype(2**31 - 1) == np.int32
    assert index_dtype(2**31) == np.int64


def with_nan(row: int) -> np.ndarray:
    x = np.ones((6, 2), np.float32)
    x[row, 1] = np.nan
    return x


@pytest.mark.parametrize("row", [0, 2, 5])
def test_nan_feature_names_the_node(row: int) -> None:
    with pytest.raises(DataError, match="NaN or infinite") as caught:
        check_graph(small(x=with_nan(row)))
    assert repr(NAMES[row]) in caught.value.seen


def test_infinite_sparse_feature_names_the_node() -> None:
    value = sparse().value.copy()
    value[5] = np.inf  # node 3, the only value after the empty node 1
    with pytest.raises(DataError, match="NaN or infinite") as caught:
        check_graph(small(x=replace(sparse(), value=value)))
    assert repr(NAMES[3]) in caught.value.seen


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"y": np.array([0, 1, 3, 0, 0, 0])}, "labels from 0 to 3 where -1 to 2"),
        ({"y": np.array([0, -2, 1, 0, 0, 0])}, "labels from -2 to 1"),
        ({"y": np.full((6, 3), 2, np.uint8)}, "where 0 to 1"),
        ({"y": np.zeros(5, np.int64)}, "'y': 5"),
        ({"x": np.ones((7, 2), np.float32)}, "'x': 7"),
        ({"train": np.ones(2, bool)}, "'train': 2"),
        ({"ids": IntegerIds(np.arange(4))}, "'ids': 4"),
        ({"edge_weight": np.ones(4, np.float32)}, "edge_weight has 4 rows"),
        ({"src": np.array([0, 1, 6, 0, 0], np.int32)}, "edge 2 starts at row 6"),
        ({"src": np.array([0, -1, 0, 0, 0], np.int32)}, "edge 1 starts at row -1"),
        ({"indptr": np.array([0, 2, 3, 5, 5, 5, 4])}, "indptr runs from 0 to 4 for 5"),
        ({"indptr": np.array([0, 4, 3, 5, 5, 5, 5])}, "row 1 has its edges from 4 to 3"),
        ({"indptr": np.array([0])}, "graph"),
    ],
)
def test_bad_graph_is_refused_with_what_was_seen(change, told: str) -> None:
    with pytest.raises(DataError) as caught:
        check_graph(replace(small(), **change))
    assert told in caught.value.seen


@pytest.mark.parametrize("mask", ["train", "val", "test"])
def test_masked_node_without_a_label_is_named(mask: str) -> None:
    y = np.array([0, 1, -1, 0, -1, -1])
    chosen = {name: np.zeros(6, bool) for name in ("train", "val", "test")}
    check_graph(small(y=y, **chosen))  # -1 outside the masks is allowed
    chosen[mask][[0, 4, 5]] = True
    with pytest.raises(DataError, match=f"Nodes of the {mask} mask have no label") as caught:
        check_graph(small(y=y, **chosen))
    assert caught.value.seen == f"2 of them, one with id {NAMES[4]!r}"


def test_bad_graph_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        save_store(small(x=with_nan(1)), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "array", "told"),
    [
        ("x", np.zeros((5, 2), np.float32), "x.npy: <f4 [5, 2] where"),
        ("train", np.zeros(7, bool), "train.npy: |b1 [7] where"),
        ("src", np.zeros(4, np.int32), "src.npy: <i4 [4] where"),
        ("indptr", np.array([0, 4, 3, 5, 5, 5, 5]), "indptr.npy: row 1 goes from 4 to 3"),
    ],
)
def test_a_store_whose_arrays_do_not_fit_is_named(tmp_path: Path, name, array, told) -> None:
    save_store(small(), tmp_path / "store")
    put_array(tmp_path / "store", name, array)
    with pytest.raises(StoreError) as caught:
        load_store(tmp_path / "store")
    assert told in caught.value.seen


def test_other_dtypes_are_stored_in_ours(tmp_path: Path) -> None:
    graph = small(
        x=np.arange(12, dtype=">f4").reshape(6, 2),
        y=np.array([0, 1, 2, -1, 1, 0], np.int16),
        train=np.array([1, 1, 0, 0, 0, 0], np.uint8),
        edge_weight=np.arange(5),
    )
    save_store(graph, tmp_path / "store")
    partition_graph(graph, tmp_path / "parts", num_parts=1)
    part = open_parts(tmp_path / "parts").open_part(0)
    stored = load_store(tmp_path / "store")
    kinds = {"x": "<f4", "y": "<i8", "train": "|b1", "edge_weight": "<f4"}
    for name, dtype in kinds.items():
        assert getattr(stored, name).dtype.str == part.load(name).dtype.str == dtype
        assert np.array_equal(getattr(stored, name), getattr(graph, name))


@pytest.mark.parametrize("change", [-4, 4])
def test_a_feature_file_of_the_wrong_length_is_named(tmp_path: Path, change: int) -> None:
    save_store(small(), tmp_path / "store")
    file = tmp_path / "store" / "x.npy"
    raw = file.read_bytes()
    file.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    with pytest.raises(StoreError, match=r"x\.npy is damaged") as caught:
        load_store(tmp_path / "store", verify=False)
    assert "length" in caught.value.seen or f"{len(raw) + change} bytes long" in caught.value.seen

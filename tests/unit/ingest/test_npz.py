"""Graphs from `.npz` files."""

import os
from pathlib import Path

import numpy as np
import pytest

from siafu.errors import DataError
from siafu.graph import SparseFeatures
from siafu.ingest import graph_from_npz

PLAIN = {
    "edge_index": np.array([[0, 1, 2, 2], [1, 2, 0, 0]], dtype=np.int32),
    "y": np.array([0, 1, -1]),
    "x": np.arange(6, dtype=np.float64).reshape(3, 2),
    "num_classes": np.int64(3),
    "symmetric": np.int64(0),
}


def _save(tmp_path, **changes):
    arrays = {name: value for name, value in (PLAIN | changes).items() if value is not None}
    np.savez(tmp_path / "some.npz", **arrays)
    return tmp_path / "some.npz"


def test_dense_file_round_trips(tmp_path):
    graph, notes = graph_from_npz(_save(tmp_path))
    assert graph.name == "some"
    assert graph.num_classes == 3
    assert graph.x.dtype == np.float32
    np.testing.assert_array_equal(graph.indptr, [0, 2, 3, 4])
    np.testing.assert_array_equal(graph.src, [2, 2, 0, 1])
    assert graph.train is None
    assert "both directions" in notes[0]


def test_sparse_features_stay_sparse(tmp_path):
    path = _save(
        tmp_path,
        x=None,
        x_indptr=np.array([0, 1, 1, 2]),
        x_indices=np.array([3, 0], dtype=np.int32),
        x_data=np.array([1.0, 2.0], dtype=np.float32),
        x_shape=np.array([3, 4]),
    )
    graph, _ = graph_from_npz(path)
    assert isinstance(graph.x, SparseFeatures)
    assert graph.x.shape == (3, 4)


def test_masks_ids_and_edge_data_are_kept(tmp_path):
    masks = {f"{name}_mask": np.arange(3) == i for i, name in enumerate(("train", "val", "test"))}
    ids, weight = np.array([7, -8, 9]), np.array([1.0, 2, 3, 4])
    path = _save(tmp_path, **masks, y=np.array([0, 2, 1]), node_id=ids, edge_weight=weight)
    graph, _ = graph_from_npz(path)
    np.testing.assert_array_equal(graph.val, [False, True, False])
    assert graph.ids.to_arrow().to_pylist() == [7, -8, 9]
    np.testing.assert_array_equal(graph.edge_weight, [3, 4, 1, 2])


def test_vertices_without_a_label_are_left_out_of_the_masks(tmp_path):
    masks = {f"{name}_mask": np.arange(3) == i for i, name in enumerate(("train", "val", "test"))}
    graph, notes = graph_from_npz(_save(tmp_path, **masks, y=np.array([0, -1, -1])))
    np.testing.assert_array_equal(graph.train, [True, False, False])
    assert not graph.val.any()
    assert notes[-1] == "2 vertices have a split but no label: left out of the masks."


def test_masks_of_the_wrong_length_are_still_named(tmp_path):
    masks = {f"{name}_mask": np.ones(2, dtype=bool) for name in ("train", "val", "test")}
    with pytest.raises(DataError):
        graph_from_npz(_save(tmp_path, **masks))


def test_one_mask_alone_is_ignored_and_noted(tmp_path):
    graph, notes = graph_from_npz(_save(tmp_path, train_mask=np.ones(3, dtype=bool)))
    assert graph.train is None
    assert any("only the mask train" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"edge_index": None}, "no edges"),
        ({"edge_index": None, "src": [0], "dst": [1], "t": [0]}, "dynamic graph"),
        ({"edge_index": np.zeros((3, 2), dtype=int)}, "wrong shape"),
        ({"edge_index": np.array([[0], [9]])}, "does not exist"),
        ({"edge_index": np.array([[-1], [0]])}, "does not exist"),
        ({"x": np.full((3, 1), np.nan)}, "NaN"),
        ({"x": None, "x_indptr": [0, 0, 0, 0]}, "incomplete"),
        ({"y": np.array([0.5, 1, 2])}, "labels"),
        ({"y": np.array([0, 1, 7])}, "label is out of range"),
        ({"x": np.array([{}, {}, {}], dtype=object)}, "never unpickled"),
    ],
)
def test_wrong_contents_are_named(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        graph_from_npz(_save(tmp_path, **changes))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.7, 0.98])
def test_truncated_file_is_a_data_error(tmp_path, kept):
    path = _save(tmp_path)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(DataError, match="can't be read"):
        graph_from_npz(path)


def test_flipped_byte_is_a_data_error(tmp_path):
    path = _save(tmp_path, x=np.zeros((3, 400)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="can't be read"):
        graph_from_npz(path)


def test_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        graph_from_npz(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "width", "classes"),
    [("cora", 2_708, 10_556, 1_433, 7), ("tolokers", 11_758, 519_000, 10, 2)],
)
def test_real_files_have_their_published_sizes(name, nodes, edges, width, classes):
    folder = os.environ.get("SIAFU_DATA")
    if not folder or not (Path(folder) / f"{name}.npz").exists():
        pytest.skip(f"needs {name}.npz in the folder named by SIAFU_DATA")
    graph, _ = graph_from_npz(Path(folder) / f"{name}.npz")
    sizes = (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes)
    assert sizes == (nodes, edges, width, classes)

"""Graphs from `.npz` files."""

import os
import zipfile
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


def test_nodes_without_a_label_are_left_out_of_the_masks(tmp_path):
    masks = {f"{name}_mask": np.arange(3) == i for i, name in enumerate(("train", "val", "test"))}
    graph, notes = graph_from_npz(_save(tmp_path, **masks, y=np.array([0, -1, -1])))
    np.testing.assert_array_equal(graph.train, [True, False, False])
    assert not graph.val.any()
    assert notes[-1] == "2 nodes have a split but no label: left out of the masks."


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
        ({"y": np.array(["a", "b", "c"])}, "labels"),
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


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"x": np.array(1.0)}, "x has the wrong shape or type"),
        ({"x": np.ones(3)}, "x has the wrong shape or type"),
        ({"x": np.full((3, 2), "a")}, "x has the wrong shape or type"),
        ({"x": np.ones((3, 2), np.complex64)}, "x has the wrong shape or type"),
        ({"x": np.zeros((3, 2), "datetime64[s]")}, "x has the wrong shape or type"),
        ({"x": np.ones((3, 2), [("a", "i4")])}, "x has the wrong shape or type"),
        ({"y": np.array(0)}, "labels have the wrong shape"),
        ({"y": np.array([0, 1, 2**40]), "num_classes": None}, "too many classes"),
        ({"y": np.array([[0, 2], [0, 1], [1, 1]])}, "marked by 0 and 1"),
        ({"num_nodes": np.array([1, 2])}, "num_nodes is no whole number"),
        ({"num_nodes": np.array("three")}, "num_nodes is no whole number"),
        ({"num_nodes": np.array(np.nan)}, "num_nodes is no whole number"),
        ({"num_nodes": np.array(10**15)}, "more nodes than fit"),
        ({"num_classes": np.array([2, 2])}, "num_classes is no whole number"),
        ({"num_classes": np.array(10**12)}, "too many classes"),
        ({"symmetric": np.array("yes")}, "symmetric is no whole number"),
        ({"node_id": np.array([7, 8, 7])}, "id 7, the second time in row 2"),
        ({"node_id": np.array([7, 8, np.nan])}, "node_id has the wrong"),
        ({"node_id": np.array([7, 8])}, "2 ids, 3 nodes"),
        ({"edge_weight": np.array([1, np.nan, 1, 1])}, "NaN or infinite"),
        ({"edge_weight": np.array(["a"] * 4)}, "edge_weight has the wrong"),
        ({"edge_weight": np.full(4, 1e300)}, "NaN or infinite"),
        ({"edge_attr": np.ones((4, 2, 2))}, "edge_attr has the wrong"),
        ({"edge_index": np.full((2, 4), 2**63, np.uint64)}, "too large"),
        ({"x_shape": np.array([3, 2])}, "incomplete"),
    ],
)
def test_arrays_of_the_wrong_kind_are_named(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        graph_from_npz(_save(tmp_path, **changes))


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (np.array([True, True, True]), "A node is in two splits"),
        (np.array(["a", "b", "c"]), "val_mask has the wrong"),
        (np.array([0, 1, 2]), "something else than true and false"),
        (np.array([0, np.nan, 0]), "something else than true and false"),
        (np.array(True), "val_mask has the wrong"),
    ],
)
def test_masks_that_are_none_or_overlap_are_refused(tmp_path, mask, problem):
    masks = {"train_mask": np.arange(3) == 0, "test_mask": np.arange(3) == 2, "val_mask": mask}
    with pytest.raises(DataError, match=problem):
        graph_from_npz(_save(tmp_path, **masks))


def test_ids_may_be_text(tmp_path):
    graph, _ = graph_from_npz(_save(tmp_path, node_id=np.array(["a", "b", "ü"])))
    assert graph.ids.to_arrow().to_pylist() == ["a", "b", "ü"]


def _with_entry(path, name, raw, packed=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "a", packed) as archive:
        archive.writestr(name, raw)
    return path


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(-1,)", "(3, 99999999999)", "(4,)"])
def test_a_header_that_claims_more_than_there_is_allocates_nothing(tmp_path, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with pytest.raises(DataError, match=r"more is float32 .* bytes, and has 0"):
        graph_from_npz(_with_entry(_save(tmp_path), "more.npy", raw))


def test_an_archive_that_unpacks_to_far_more_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("siafu.ingest.formats.npz._SMALL_BYTES", 1 << 20)
    path = _with_entry(_save(tmp_path), "bomb.npy", bytes(4 << 20), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # nothing inside is opened
    with pytest.raises(DataError, match="unpacks to far more"):
        graph_from_npz(path)


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "data.npz")
    with pytest.raises(DataError, match="no regular file"):
        graph_from_npz(tmp_path / "data.npz")

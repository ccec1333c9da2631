"""Events from arrays: every one is checked for its kind, shape and values."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError
from siafu.ingest import graph_from_pyg, load_dynamic

PLAIN = {
    "src": np.array([0, 1, 2, 0]),
    "dst": np.array([1, 2, 0, 2]),
    "t": np.array([0, 1, 1, 2]),
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"src": np.array(["a"] * 4)}, "src and dst must be whole numbers"),
        ({"dst": np.array([0.5] * 4)}, "src and dst must be whole numbers"),
        ({"src": np.full(4, 2**63, np.uint64)}, "too large"),
        ({"src": np.full(4, 2**50)}, "more nodes than fit"),
        ({"t": np.array(["x"] * 4)}, "times are not numbers"),
        ({"t": np.array([0, np.nan, 1, 2])}, "missing, NaN or infinite"),
        ({"t": np.array([0, 1, 2, 1e300])}, "too far apart"),
        ({"t": np.array([-(2**63), 0, 1, 2**63 - 1])}, "too far apart"),
        ({"weight": np.array([1, np.nan, 1, 1])}, "weight is NaN or infinite"),
        ({"weight": np.array(["a"] * 4)}, "weight has the wrong"),
        ({"edge_label": np.array(["a"] * 4)}, "edge_label has the wrong"),
        ({"edge_label": np.array([0.5] * 4)}, "no classes"),
        ({"edge_label": np.array([0, 1, 2**40, 0])}, "too many classes"),
        ({"num_nodes": np.array([3, 3])}, "num_nodes is no whole number"),
        ({"num_nodes": np.array("x")}, "num_nodes is no whole number"),
        ({"node_id": np.array([1, 1, 2])}, "Two nodes have the same id"),
        ({"node_id": np.array(1)}, "node_id has the wrong"),
        ({"y": np.array("x")}, "y has the wrong"),
        ({"y": np.array([0, 1, 0]), "class_names": np.array("x")}, "class_names has the wrong"),
        ({"signal": np.ones(3)}, "signal has the wrong"),
        ({"signal": np.full((3, 3), np.nan)}, "signal is NaN"),
        ({"node_feat": np.ones((3, 3))}, "node_feat has the wrong"),
        ({"x": np.ones(3)}, "x has the wrong"),
        ({"t": None, "node_time": np.array([0, 1])}, "a node without a time"),
    ],
)
def test_arrays_of_the_wrong_kind_are_named(tmp_path, changes, problem):
    arrays = {name: array for name, array in (PLAIN | changes).items() if array is not None}
    np.savez(tmp_path / "events.npz", **arrays)
    with pytest.raises(DataError, match=problem):
        load_dynamic(tmp_path / "events.npz")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"src": np.array([0.5] * 4)}, "src has the wrong"),
        ({"t": np.array(["x"] * 4)}, "t has the wrong"),
        ({"t": np.array([0, 1])}, "differ in length"),
        ({"y": np.array([0, 1e12, 0, 0])}, "not classes"),
    ],
)
def test_temporal_data_of_the_wrong_kind_is_named(changes, problem):
    with pytest.raises(DataError, match=problem):
        load_dynamic(SimpleNamespace(**PLAIN | changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"x": np.ones((3, 2), np.complex64)}, "x has the wrong"),
        ({"x": np.array(1.0)}, "x has the wrong"),
        ({"y": np.array(["a", "b", "c"])}, "y has the wrong"),
        ({"y": np.array([0, 1, 2**40])}, "not classes"),
        ({"n_id": np.array([1, 1, 2])}, "Two nodes have the same id"),
        ({"n_id": np.array([1.0, 2.0, np.nan])}, "n_id has the wrong"),
        ({"edge_weight": np.array([np.nan, 1])}, "edge_weight is NaN"),
        ({"train_mask": np.array([1, 1, 1])}, "A node is in two splits"),
        ({"train_mask": np.array(["a", "b", "c"])}, "train_mask has the wrong"),
    ],
)
def test_pyg_data_of_the_wrong_kind_is_named(changes, problem):
    masks = {f"{n}_mask": np.arange(3) == k for k, n in enumerate(("train", "val", "test"))}
    plain = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.ones((3, 2)), "y": np.arange(3)}
    with pytest.raises(DataError, match=problem):
        graph_from_pyg(SimpleNamespace(**plain | masks | changes))


@pytest.mark.parametrize(
    "label", [[[1.0]] * 4, [{"a": 1}] * 4, [b"\xff"] * 4], ids=["list", "struct", "bytes"]
)
def test_labels_of_events_are_numbers_or_text(tmp_path, label):
    columns = {"src": PLAIN["src"], "dst": PLAIN["dst"], "time": PLAIN["t"], "label": label}
    pq.write_table(pa.table(columns), tmp_path / "events.parquet")
    with pytest.raises(DataError, match="neither whole numbers nor text"):
        load_dynamic(tmp_path / "events.parquet")

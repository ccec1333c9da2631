"""Graphs from PyG objects, and from objects that only look like one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from siafu.errors import DataError
from siafu.graph import SparseFeatures
from siafu.ingest import graph_from_pyg, load_with_notes

torch_geometric = pytest.importorskip("torch_geometric.data", reason="needs torch_geometric")

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 0]])


def _data(**changes):
    columns = {"edge_index": EDGES, "x": torch.rand(3, 2), "y": torch.tensor([0, 1, 1])}
    return torch_geometric.Data(**(columns | changes))


def test_plain_data():
    graph = graph_from_pyg(_data())
    np.testing.assert_array_equal(graph.src, [2, 2, 0, 1])
    assert (graph.num_classes, graph.num_features) == (2, 2)
    assert graph.train is None


def test_edge_data_follows_its_edges_and_ids_are_kept():
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    data = _data(edge_weight=weight, edge_attr=weight * 2, n_id=torch.tensor([30, 10, 20]))
    graph = graph_from_pyg(data)
    np.testing.assert_array_equal(graph.edge_weight, [3, 4, 1, 2])
    assert graph.edge_attr.shape == (4, 1)
    assert graph.ids.to_arrow().to_pylist() == [30, 10, 20]


def test_sparse_features_stay_sparse():
    dense = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 0.0]])
    graph = graph_from_pyg(_data(x=dense.to_sparse()))
    assert isinstance(graph.x, SparseFeatures)
    np.testing.assert_array_equal(graph.x.indptr, [0, 1, 1, 2])


def test_masks():
    names = ("train_mask", "val_mask", "test_mask")
    masks = {name: torch.arange(3) == i for i, name in enumerate(names)}
    np.testing.assert_array_equal(graph_from_pyg(_data(**masks)).test, [False, False, True])


def test_nodes_without_a_label_are_left_out_of_the_masks():
    names = ("train_mask", "val_mask", "test_mask")
    masks = {name: torch.arange(3) == i for i, name in enumerate(names)}
    data = _data(y=torch.tensor([0, 1, -1]), **masks)
    graph, notes = load_with_notes(data)
    assert not graph_from_pyg(data).test.any()
    assert (int(graph.train.sum()), int(graph.val.sum()), int(graph.test.sum())) == (1, 1, 0)
    assert notes == ["1 node has a split but no label: left out of the masks."]


def test_labels_of_several_shapes():
    assert graph_from_pyg(_data(y=torch.tensor([[0], [1], [1]]))).y.shape == (3,)
    several = graph_from_pyg(_data(y=torch.tensor([[0.0, 1], [1, 1], [0, 0]])))
    assert several.is_multi_label
    assert several.num_classes == 2
    gaps = graph_from_pyg(_data(y=torch.tensor([0.0, float("nan"), 1.0])))
    np.testing.assert_array_equal(gaps.y, [0, -1, 1])


def test_nodes_without_features_come_from_num_nodes():
    graph = graph_from_pyg(torch_geometric.Data(edge_index=EDGES, num_nodes=5))
    assert graph.num_nodes == 5
    assert graph.x is None


def test_object_with_the_same_attributes_will_do():
    assert graph_from_pyg(SimpleNamespace(edge_index=EDGES.numpy(), num_nodes=3)).num_edges == 4


def test_floats_that_are_not_whole_are_numbers_to_be_told():
    graph = graph_from_pyg(_data(y=torch.tensor([0.5, float("nan"), 2.0])))
    np.testing.assert_array_equal(graph.y, np.array([[0.5], [np.nan], [2.0]], np.float32))
    assert (graph.num_targets, graph.num_classes) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"edge_index": None}, "no edge_index"),
        ({"edge_index": EDGES.float()}, "wrong shape or type"),
        ({"edge_index": EDGES + 5}, "does not exist"),
        ({"train_mask": torch.ones(3, 10, dtype=torch.bool)}, "several splits"),
        ({"y": torch.tensor([[0, 1], [2, 0], [0, 0]])}, "not classes"),
        ({"x": torch.full((3, 2), float("inf"))}, "NaN or infinite"),
    ],
)
def test_unusable_data_is_refused(changes, problem):
    with pytest.raises(DataError, match=problem):
        graph_from_pyg(_data(**changes))

"""A PyG `HeteroData` as one graph: every node and edge at its place, or an error that helps."""

import numpy as np
import pytest
import torch

from siafu.errors import DataError
from siafu.graph import SparseFeatures
from siafu.ingest import graph_from_pyg, load_with_notes

pyg = pytest.importorskip("torch_geometric.data", reason="needs torch_geometric")

NAMES = ("author__writes__paper", "paper__cites__paper", "paper__written_by__author")
MASKS = ("train_mask", "val_mask", "test_mask")


def _data(author_width: int = 2):
    """Three papers (with labels and masks) and two authors."""
    data = pyg.HeteroData()
    data["paper"].x = torch.arange(6.0).reshape(3, 2) + 1
    data["paper"].y = torch.tensor([1, 0, 1])
    for number, name in enumerate(MASKS):
        data["paper"][name] = torch.arange(3) == number
    data["author"].x = torch.arange(2.0 * author_width).reshape(2, author_width) - 9
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [0, 0, 2]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 2], [1, 1]])
    data["paper", "written_by", "author"].edge_index = torch.tensor([[2], [1]])
    return data


def _edges(graph):
    ids = graph.ids.to_arrow().to_pylist()
    src, dst = graph.edge_index()
    names = [graph.edge_type_names[kind] for kind in graph.edge_type]
    return sorted((ids[u], name, ids[v]) for u, name, v in zip(src, names, dst, strict=True))


def _dense(x):
    if not isinstance(x, SparseFeatures):
        return x
    out = np.zeros(x.shape, np.float32)
    out[np.repeat(np.arange(len(out)), np.diff(x.indptr)), x.index] = x.value
    return out


def test_nodes_and_edges_of_all_types_are_one_graph():
    graph, notes = load_with_notes(_data())
    assert graph.ids.to_arrow().to_pylist() == [
        "paper:0",
        "paper:1",
        "paper:2",
        "author:0",
        "author:1",
    ]
    assert graph.edge_type_names == NAMES
    assert (graph.num_edge_types, graph.edge_type.dtype) == (3, np.uint8)
    assert _edges(graph) == [
        ("author:0", NAMES[0], "paper:0"),
        ("author:1", NAMES[0], "paper:0"),
        ("author:1", NAMES[0], "paper:2"),
        ("paper:0", NAMES[1], "paper:1"),
        ("paper:2", NAMES[1], "paper:1"),
        ("paper:2", NAMES[2], "author:1"),
    ]
    assert graph.y.tolist() == [1, 0, 1, -1, -1]
    assert graph.num_classes == 2
    assert [graph.train.tolist(), graph.test.tolist()] == [
        [True, False, False, False, False],
        [False, False, True, False, False],
    ]
    assert notes == []


def test_features_of_one_width_are_stacked():
    graph = graph_from_pyg(_data())
    assert isinstance(graph.x, np.ndarray)
    np.testing.assert_array_equal(graph.x, [[1, 2], [3, 4], [5, 6], [-9, -8], [-7, -6]])


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_other_widths_have_columns_of_their_own_and_no_zeros(sparse):
    data = _data(author_width=3)
    if sparse:
        data["paper"].x = data["paper"].x.to_sparse()
    graph = graph_from_pyg(data)
    assert isinstance(graph.x, SparseFeatures)
    want = np.zeros((5, 5))
    want[:3, :2] = [[1, 2], [3, 4], [5, 6]]
    want[3:, 2:] = [[-9, -8, -7], [-6, -5, -4]]
    np.testing.assert_array_equal(_dense(graph.x), want)
    assert len(graph.x.value) == 12


def test_sparse_and_dense_features_of_one_width_share_columns():
    data = _data()
    data["author"].x = data["author"].x.to_sparse()
    graph = graph_from_pyg(data)
    assert graph.x.shape == (5, 2)
    np.testing.assert_array_equal(_dense(graph.x)[2:4], [[5, 6], [-9, -8]])


def test_no_features_at_all_are_none():
    data = _data()
    del data["paper"].x
    del data["author"].x
    data["author"].num_nodes = 2
    graph = graph_from_pyg(data)
    assert (graph.x, graph.num_nodes) == (None, 5)


def test_the_users_numbers_are_kept():
    data = _data()
    data["author"].n_id = torch.tensor([70, -1])
    assert graph_from_pyg(data).ids.to_arrow().to_pylist()[3:] == ["author:70", "author:-1"]


def test_edge_data_is_kept_where_all_types_have_it():
    data = _data()
    for number, kind in enumerate(data.edge_types):
        size = data[kind].edge_index.size(1)
        data[kind].edge_weight = torch.full((size,), float(number))
        data[kind].edge_attr = torch.rand(size, 1 + number)
    graph, notes = load_with_notes(data)
    np.testing.assert_array_equal(graph.edge_weight, graph.edge_type)
    assert graph.edge_attr is None
    assert notes == ["edge_attr is not used: not every edge type has it, or not in one width."]


def test_an_edge_type_without_edges_keeps_its_number():
    data = _data()
    data["author", "writes", "paper"].edge_index = torch.empty(2, 0, dtype=torch.long)
    graph = graph_from_pyg(data)
    assert graph.num_edge_types == 3
    assert set(graph.edge_type.tolist()) == {1, 2}


def test_masks_are_drawn_among_the_labelled_type_alone():
    data = _data()
    for name in MASKS:
        del data["paper"][name]
    graph, _ = load_with_notes(data)
    drawn = graph.train | graph.val | graph.test
    assert drawn.tolist() == [True, True, True, False, False]


def test_several_labels_a_node_need_masks():
    data = _data()
    data["paper"].y = torch.tensor([[1, 0], [1, 1], [0, 0]])
    graph = graph_from_pyg(data)
    assert graph.y.tolist() == [[1, 0], [1, 1], [0, 0], [0, 0], [0, 0]]
    del data["paper"].val_mask
    with pytest.raises(DataError, match="need masks"):
        graph_from_pyg(data)


def test_undirected_adds_the_reverse_with_its_type():
    graph, _ = load_with_notes(_data(), undirected=True)
    assert ("paper:0", NAMES[0], "author:0") in _edges(graph)
    assert graph.num_edges == 12


def _without(kind, name):
    def change(data):
        delattr(data[kind], name)

    return change


def _set(kind, name, value):
    def change(data):
        setattr(data[kind], name, value)

    return change


CITES = ("paper", "cites", "paper")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("author", "x", None), "neither x, y nor num_nodes"),
        (_set("author", "y", torch.tensor([0, 1])), r"Several node types have labels(.|\n)*author"),
        (_set(CITES, "edge_index", torch.tensor([[0], [3]])), "3 nodes of type 'paper'"),
        (_set(CITES, "edge_index", torch.tensor([[-1], [0]])), "does not exist"),
        (_without(CITES, "edge_index"), "no edge_index"),
        (_set("paper", "y", torch.tensor([0, 1])), "2 rows, 3 nodes"),
        (_set("paper", "train_mask", torch.ones(2, dtype=torch.bool)), "2 rows, 3 nodes"),
        (_set("author", "n_id", torch.arange(3)), "3 ids, 2 nodes"),
        (_set("author", "x", torch.full((2, 2), float("nan"))), "NaN or infinite"),
        (_set("author", "x", torch.full((2, 3), float("nan"))), r"NaN(.|\n)*author:0"),
    ],
)
def test_unusable_data_is_refused(change, problem):
    data = _data()
    change(data)
    with pytest.raises(DataError, match=problem):
        graph_from_pyg(data)


def test_a_type_without_features_is_refused_with_a_way_out():
    data = _data()
    del data["author"].x
    data["author"].num_nodes = 2
    with pytest.raises(DataError, match=r"data\['author'\]\.x = torch\.ones"):
        graph_from_pyg(data)


def test_data_without_edges_is_refused():
    data = pyg.HeteroData()
    data["paper"].x = torch.rand(3, 2)
    with pytest.raises(DataError, match="no edges"):
        graph_from_pyg(data)

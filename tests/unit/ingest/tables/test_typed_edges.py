"""Edge types by every way in but HeteroData: `.npz`, tables, PyG `Data`, the built-in graph."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch

from siafu.errors import DataError
from siafu.graph import add_reverse_edges, check_graph, graph_from_edges, load_store
from siafu.ingest import (
    TableOptions,
    build_store,
    find_tables,
    graph_from_npz,
    graph_from_pyg,
    ingest_to_store,
    load,
    load_builtin,
    load_with_notes,
    relations,
)
from siafu.ingest.tables import classes

SRC, DST = np.array([0, 1, 2, 2, 3]), np.array([1, 2, 0, 0, 0])
NUMBERS = np.array([1, 0, 2, 0, 1])
WORDS = np.array(["likes", "cites", "writes", "cites", "likes"])
WANT = [2, 0, 1, 1, 0]
"""The types in the order of the graph, numbered in sorted order."""


def _npz(tmp_path, **columns):
    np.savez(tmp_path / "some.npz", edge_index=np.stack([SRC, DST]), **columns)
    return tmp_path / "some.npz"


def _tables(tmp_path, ending="parquet", **columns):
    (tmp_path / "tables").mkdir()
    write = pq.write_table if ending == "parquet" else pa_csv.write_csv
    file = tmp_path / "tables" / f"edges.{ending}"
    write(pa.table({"src": SRC, "dst": DST, **columns}), file)
    return tmp_path / "tables"


def _build(tmp_path, source, **options):
    chosen = TableOptions(**options)
    notes = build_store(find_tables(source, chosen), tmp_path / "store", options=chosen)
    return load_store(tmp_path / "store"), notes


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_npz_keeps_numbers(tmp_path, dtype):
    graph, _ = graph_from_npz(_npz(tmp_path, edge_type=NUMBERS.astype(dtype)))
    assert graph.edge_type.tolist() == WANT
    assert (graph.edge_type.dtype, graph.num_edge_types) == (np.uint8, 3)
    assert graph.edge_type_names == ()


@pytest.mark.parametrize("words", [WORDS, WORDS.astype(bytes)])
def test_npz_numbers_text_in_sorted_order(tmp_path, words):
    graph, _ = graph_from_npz(_npz(tmp_path, edge_type=words))
    assert graph.edge_type.tolist() == WANT
    assert graph.edge_type_names == ("cites", "likes", "writes")
    ingest_to_store(tmp_path / "some.npz", tmp_path / "store")
    stored = load_store(tmp_path / "store")
    assert (stored.num_edge_types, stored.edge_type_names) == (3, graph.edge_type_names)


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (NUMBERS[:4], "edge_type has 4 rows"),
        (WORDS[:4], "edge_type has 4 rows"),
        (NUMBERS - 1, "edge 1 has type -1"),
        (NUMBERS.astype(float), "edge_type is float64"),
        (np.array([1, np.nan, 0, 0, 1]), "edge_type is float64"),
        (np.array(["a", "b", "", "a", "b"]), "edge 2 has an empty name"),
        (np.array([b"\xff"] * 5), "can't decode"),
        (np.array([WORDS]), "edge_type is <U6 (1, 5)"),
        (np.int64(3), "edge_type is int64 ()"),
    ],
)
def test_bad_types_of_an_npz_are_refused(tmp_path, types, told):
    with pytest.raises(DataError) as caught:
        graph_from_npz(_npz(tmp_path, edge_type=types))
    assert told in caught.value.seen


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("column", ["edge_type", "type", "relation"])
def test_tables_find_the_usual_columns(tmp_path, ending, column):
    graph, notes = _build(tmp_path, _tables(tmp_path, ending, **{column: WORDS}))
    assert graph.edge_type.tolist() == WANT
    assert graph.edge_type_names == ("cites", "likes", "writes")
    assert (graph.edge_type.dtype, graph.num_edge_types) == (np.uint8, 3)
    assert any("3 types" in note for note in notes)


def test_tables_take_a_column_by_name_and_leave_the_usual_one(tmp_path):
    source = _tables(tmp_path, kind=WORDS, type=NUMBERS, w=NUMBERS / 2)
    graph, notes = _build(tmp_path, source, edge_type="kind", edge_weight="w", edge_attr=("type",))
    assert graph.edge_type.tolist() == WANT
    assert graph.edge_weight.tolist() == [1, 0, 0.5, 0.5, 0]
    assert graph.edge_attr[:, 0].tolist() == WANT
    assert not any("type     type" in note for note in notes)


def test_one_column_may_be_type_and_attribute(tmp_path):
    source = _tables(tmp_path, "csv", kind=NUMBERS)
    graph, _ = _build(tmp_path, source, edge_type="kind", edge_attr=("kind",))
    assert graph.edge_type.tolist() == graph.edge_attr[:, 0].tolist() == WANT


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_numbers_from_zero_need_no_names_and_others_are_numbered_anew(tmp_path, ending):
    graph, _ = _build(tmp_path, _tables(tmp_path, ending, edge_type=NUMBERS))
    assert (graph.edge_type.tolist(), graph.edge_type_names) == (WANT, ())
    (tmp_path / "more").mkdir()
    properties = np.array([31, 5, 279, 5, 31])
    other, _ = _build(tmp_path / "more", _tables(tmp_path / "more", ending, edge_type=properties))
    assert (other.edge_type.tolist(), other.edge_type_names) == (WANT, (5, 31, 279))


def test_dictionary_columns_are_text(tmp_path):
    column = pa.array(WORDS).dictionary_encode()
    assert _build(tmp_path, _tables(tmp_path, type=column))[0].edge_type.tolist() == WANT


def test_a_usual_name_with_other_values_is_no_type_column(tmp_path):
    graph, _ = _build(tmp_path, _tables(tmp_path, type=NUMBERS / 3))
    assert (graph.edge_type, graph.num_edge_types) == (None, 0)
    assert graph.edge_attr_names == ("type",)


def test_types_of_several_files_are_one_numbering(tmp_path):
    folder = tmp_path / "tables" / "edges"
    folder.mkdir(parents=True)
    for number, some in enumerate((slice(0, 1), slice(1, 2), slice(2, 5))):
        table = pa.table({"src": SRC[some], "dst": DST[some], "type": WORDS[some]})
        pq.write_table(table, folder / f"{number}.parquet")
    assert _build(tmp_path, tmp_path / "tables")[0].edge_type.tolist() == WANT


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (NUMBERS / 2, "column 'kind' of"),
        (np.array([1, np.nan, 0, 0, 1]), "is double"),
        (NUMBERS > 0, "is bool"),
        (NUMBERS - 1, "-1 in column 'kind', data row 1"),
        (pa.array([1, 0, None, 0, 1]), "null in column 'kind', data row 2"),
        (pa.array(["a", "b", "c", None, "a"]), "null in column 'kind', data row 3"),
        (np.array(["a", "b", "c", "", "a"]), "'' in column 'kind', data row 3"),
    ],
)
def test_bad_type_columns_are_refused_and_nothing_is_left(tmp_path, column, told):
    source = _tables(tmp_path, kind=column)
    with pytest.raises(DataError) as caught:
        _build(tmp_path, source, edge_type="kind")
    assert told in caught.value.seen
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_a_missing_type_column_names_the_flag(tmp_path):
    with pytest.raises(DataError, match="--edge-type COLUMN"):
        _build(tmp_path, _tables(tmp_path, kind=WORDS), edge_type="knid")


def test_numbers_and_text_do_not_mix(tmp_path):
    folder = tmp_path / "tables" / "edges"
    folder.mkdir(parents=True)
    for number, types in enumerate((NUMBERS, WORDS)):
        table = pa.table({"src": SRC, "dst": DST, "type": types})
        pq.write_table(table, folder / f"{number}.parquet")
    with pytest.raises(DataError, match="mix numbers and text"):
        _build(tmp_path, tmp_path / "tables")


@pytest.mark.parametrize("rows", [1 << 20, 1])
def test_a_column_of_too_many_values_is_refused(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(classes, "MOST_TYPES", 2)
    monkeypatch.setattr("siafu.ingest.tables.edges.edge_pieces", lambda *_: {"rows": rows})
    with pytest.raises(DataError, match="too many types"):
        _build(tmp_path, _tables(tmp_path, type=WORDS))


def test_many_types_are_stored_in_two_bytes(tmp_path):
    types = np.arange(300)
    (tmp_path / "tables").mkdir()
    table = pa.table({"src": types, "dst": types, "type": [f"r{i:03}" for i in types[::-1]]})
    pq.write_table(table, tmp_path / "tables" / "edges.parquet")
    graph, _ = _build(tmp_path, tmp_path / "tables")
    assert (graph.edge_type.dtype, graph.num_edge_types) == (np.uint16, 300)
    assert graph.edge_type.tolist() == types[::-1].tolist()


def test_stores_of_tables_made_before_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    source = _tables(tmp_path, type=WORDS)
    assert load(source).edge_type.tolist() == WANT
    graph, notes = load_with_notes(source)
    assert graph.edge_type_names == ("cites", "likes", "writes")
    assert "Used the store made earlier" in notes[0]


@pytest.mark.parametrize("way", ["npz", "tables", "graph"])
def test_reverses_have_the_type_of_their_edge(tmp_path, monkeypatch, way):
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    graph = graph_from_edges(SRC, DST, 4, edge_type=NUMBERS)
    make = {
        "npz": lambda: _npz(tmp_path, edge_type=NUMBERS),
        "tables": lambda: _tables(tmp_path, type=NUMBERS),
        "graph": lambda: graph,
    }
    got, want = load(make[way](), undirected=True), add_reverse_edges(graph)
    np.testing.assert_array_equal(got.edge_type, want.edge_type)
    np.testing.assert_array_equal(got.src, want.src)
    # 2 -> 0 is there with types 2 and 0: both reverses are added.
    assert want.num_edges == 10


def test_pyg_data_keeps_types():
    data = pytest.importorskip("torch_geometric.data").Data(
        edge_index=torch.from_numpy(np.stack([SRC, DST])),
        edge_type=torch.from_numpy(NUMBERS),
        num_nodes=4,
    )
    graph = graph_from_pyg(data)
    assert (graph.edge_type.tolist(), graph.num_edge_types) == (WANT, 3)
    for bad in (torch.rand(5), torch.full((5,), -1), torch.zeros(4, dtype=torch.long)):
        data.edge_type = bad
        with pytest.raises(DataError, match="edge"):
            graph_from_pyg(data)


def test_relations_is_a_valid_typed_graph():
    graph = load_builtin("relations")
    check_graph(graph)
    assert (graph.num_nodes, graph.num_classes, graph.num_edge_types) == (2_000, 3, 3)
    assert graph.edge_type_names == ("same", "next", "previous")
    src, dst = graph.edge_index()
    assert (src != dst).all()
    ahead = (graph.y[src] - graph.y[dst]) % 3
    assert 0.75 < (ahead == graph.edge_type).mean() < 0.85
    assert abs(np.bincount(ahead) / len(src) - 1 / 3).max() < 0.02
    np.testing.assert_array_equal(graph.src, relations(seed=0).src)
    assert not np.array_equal(graph.x, relations(seed=1).x)
    assert load_builtin("relations:5k").num_nodes == 5_000


def _accuracy(graph, edge_type) -> float:
    """Return the test accuracy of two hops with one mean over in-neighbours a type."""
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.from_numpy(ends) for ends in graph.edge_index())
    num_types = int(edge_type.max()) + 1
    row = dst * num_types + torch.from_numpy(edge_type.astype(np.int64))
    degree = torch.bincount(row, minlength=graph.num_nodes * num_types).clamp(min=1)[:, None]

    def hop(h, weight):
        sums = h.new_zeros(len(degree), h.size(1)).index_add(0, row, h[src])
        return torch.cat([h, (sums / degree).view(len(h), -1)], dim=1) @ weight

    widths = ((graph.num_features, 32), (32, graph.num_classes))
    weights = [
        (torch.randn(width * (1 + num_types), out, generator=generator) / 8).requires_grad_()
        for width, out in widths
    ]
    x, y = torch.from_numpy(graph.x), torch.from_numpy(graph.y)
    train, test = torch.from_numpy(graph.train), torch.from_numpy(graph.test)
    optimiser = torch.optim.Adam(weights, lr=0.02, weight_decay=1e-3)
    for _ in range(60):
        logits = hop(torch.relu(hop(x, weights[0])), weights[1])
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits[train], y[train]).backward()
        optimiser.step()
    return float((logits.argmax(1) == y)[test].float().mean())


def test_labels_of_relations_need_the_types():
    graph = relations()
    assert _accuracy(graph, graph.edge_type) > 0.9
    assert _accuracy(graph, np.zeros_like(graph.edge_type)) < 0.65

"""One function for every source of a graph."""

import gzip
import os
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError, StoreError
from siafu.graph import Graph, graph_from_edges, load_store, save_store, write_folder
from siafu.ingest import TableOptions, ingest_to_store, load, load_with_notes, planted


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SIAFU_DATA", raising=False)


def _small(**columns) -> Graph:
    columns = {"y": np.array([0, 1, 0, 1]), "num_classes": 2} | columns
    return graph_from_edges(np.array([0, 1, 2]), np.array([1, 2, 3]), 4, **columns)


def _tables(folder):
    folder.mkdir()
    ids = ["a", "b", "c", "d", "e"]
    pq.write_table(pa.table({"id": ids, "label": [0, 1, 0, 1, 1]}), folder / "nodes.parquet")
    edges = {"from": ["a", "b", "c"], "dst": ["b", "c", "a"]}
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    return folder


OPTIONS = TableOptions(src="from")


def test_graph_with_masks_comes_back_itself():
    graph = planted(100)
    assert load(graph) is graph


def test_builtin_stays_the_same_at_any_seed():
    np.testing.assert_array_equal(load("planted:200", seed=5).x, load("planted:200").x)


def test_masks_are_drawn_where_there_are_none():
    graph, notes = load_with_notes(_small())
    assert int(graph.train.sum() + graph.val.sum() + graph.test.sum()) == 4
    assert notes[0].startswith("No masks in the data: drew")
    assert notes[0].endswith("from seed 0.")


def test_explicit_split_wins_and_is_noted():
    before = planted(100)
    graph, notes = load_with_notes(before, split="5,5", seed=3)
    assert int(graph.train.sum()) == 5 * before.num_classes
    assert "Split 5,5 was asked for" in notes[0]


def test_graph_without_labels_is_left_without_masks():
    graph, notes = load_with_notes(_small(y=None, num_classes=0))
    assert graph.train is None
    assert notes == ["No labels in the data, so no masks were drawn."]


def test_undirected_adds_reverses():
    graph, notes = load_with_notes(_small(), undirected=True)
    assert graph.num_edges == 6
    assert notes[0] == "Added 3 reverse edges."


def test_npz_store_and_pyg_are_told_apart(tmp_path):
    edges = np.array([[0, 1], [1, 2]])
    np.savez(tmp_path / "g.npz", edge_index=edges, y=np.array([0, 1, 0]))
    save_store(_small(), tmp_path / "store")
    assert load(tmp_path / "g.npz").num_nodes == 3
    assert load(str(tmp_path / "store")).num_nodes == 4
    assert load(SimpleNamespace(edge_index=edges, num_nodes=9)).num_nodes == 9


def test_tables_go_through_a_store_in_the_cache(tmp_path):
    folder = _tables(tmp_path / "tables")
    graph, notes = load_with_notes(folder, options=OPTIONS, undirected=True)
    assert graph.ids.to_arrow().to_pylist() == ["a", "b", "c", "d", "e"]
    assert graph.num_edges == 6
    assert isinstance(graph.src, np.memmap)
    assert any("Made a store" in note for note in notes)
    _, notes = load_with_notes(folder, options=OPTIONS, undirected=True)
    assert any("Used the store made earlier" in note for note in notes)
    assert load(folder, options=OPTIONS).num_edges == 3
    os.utime(folder / "edges.parquet", (1, 1))
    assert any("Made a store" in n for n in load_with_notes(folder, options=OPTIONS)[1])


def test_tables_go_through_a_given_store(tmp_path):
    load(_tables(tmp_path / "tables"), options=OPTIONS, store=tmp_path / "mine")
    assert load_store(tmp_path / "mine").num_nodes == 5
    assert not (tmp_path / "cache").exists()


def test_one_file_of_edges_is_a_graph(tmp_path):
    (tmp_path / "links.csv").write_text("src,dst\n5,6\n6,5\n")
    graph = load(tmp_path / "links.csv")
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("links", 2, 2)


@pytest.mark.parametrize("source", ["planted:50", "tables"])
def test_any_source_becomes_a_store(tmp_path, source):
    if source == "tables":
        source = _tables(tmp_path / "tables")
    notes = ingest_to_store(source, tmp_path / "store", options=OPTIONS, split="0.5,0.2", seed=1)
    assert load_store(tmp_path / "store").train is not None
    assert any("drew" in note for note in notes)
    with pytest.raises(StoreError, match="exists already"):
        ingest_to_store(source, tmp_path / "store", options=OPTIONS)
    ingest_to_store(source, tmp_path / "store", options=OPTIONS, overwrite=True)


def _packed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def test_ogb_folder(tmp_path):
    folder = tmp_path / "toy"
    _packed(folder / "raw" / "edge.csv.gz", "0,1\n2,3\n3,0\n")
    _packed(folder / "raw" / "num-node-list.csv.gz", "4\n")
    _packed(folder / "raw" / "node-feat.csv.gz", "0.1,0.1\n1,2\n3,4\n5,6\n")
    _packed(folder / "raw" / "node-label.csv.gz", "0\n2\nnan\n1\n")
    for name, rows in (("train", "3\n"), ("valid", "0\n"), ("test", "1\n")):
        _packed(folder / "split" / "time" / f"{name}.csv.gz", rows)
    graph = load(folder)
    np.testing.assert_array_equal(graph.y, [0, 2, -1, 1])
    np.testing.assert_array_equal(graph.train, [False, False, False, True])
    np.testing.assert_array_equal(graph.x[3], [5, 6])
    np.testing.assert_array_equal(graph.indptr, [0, 1, 2, 2, 3])
    _packed(folder / "raw" / "node-feat.csv.gz", "1,2\n")
    with pytest.raises(DataError, match="1 rows, 4 nodes"):
        load(folder)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("plantd", "did you mean 'planted'"),
        ("corra", "did you mean 'cora'"),
        ("/nowhere/at/all", "No such data set"),
        (3, "not a graph we know"),
    ],
)
def test_unknown_sources_are_refused(source, problem):
    with pytest.raises(DataError, match=problem):
        load(source)


def test_folder_of_another_kind_is_refused(tmp_path):
    with write_folder(tmp_path / "parts", "parts") as writer:
        writer.facts["x"] = 1
    with pytest.raises(DataError, match="is a siafu parts"):
        load(tmp_path / "parts")

"""Node and edge tables as stores: columns, types, and every mistake a table can hold."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.errors import ConfigError, StoreError
from siafu.graph import check_graph, load_store, open_folder
from siafu.ingest import Drawing, TableOptions, build_store, find_tables
from tests.unit.ingest.tables.made import EDGES, NODES, build, write_tables


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_every_column_finds_its_place(tmp_path, ending):
    graph, notes = build(
        tmp_path, write_tables(tmp_path / "tables", ending=ending), edge_weight="w"
    )
    assert graph.ids.to_arrow().to_pylist() == [10, 20, 30, 40]
    np.testing.assert_array_equal(graph.x, [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]])
    np.testing.assert_array_equal(graph.y, [1, 2, -1, 0])
    np.testing.assert_array_equal(graph.indptr, [0, 3, 4, 5, 5])
    np.testing.assert_array_equal(graph.src, [2, 2, 0, 0, 1])
    np.testing.assert_array_equal(graph.edge_weight, [3, 4, 5, 1, 2])
    np.testing.assert_array_equal(graph.val, [False, True, False, False])
    facts = open_folder(tmp_path / "store", "store").facts
    assert facts["class_names"] == ["ant", "cat", "dog"]
    assert (facts["num_edges"], facts["num_features"], facts["num_classes"]) == (5, 2, 3)
    assert "comment  text     not used" in notes[0]


@pytest.mark.parametrize(
    "ids",
    [
        [3, 2, 1, 0],
        [-5, -7, 2, 0],
        [2**62, -(2**62), 0, 5],
        ["b", "a", "NA", "ab"],
        ["ünï", "中文", "🜁", "u"],
    ],
)
def test_ids_of_any_kind_come_back(tmp_path, ids):
    edges = {"src": [ids[0], ids[3]], "dst": [ids[1], ids[2]]}
    graph, _ = build(tmp_path, write_tables(tmp_path / "tables", {"id": ids}, edges))
    assert graph.ids.to_arrow().to_pylist() == ids
    np.testing.assert_array_equal(graph.src, [0, 3])
    np.testing.assert_array_equal(np.diff(graph.indptr), [0, 1, 1, 0])


@pytest.mark.parametrize("ids", [["z", "é", "a"], [9, -9, 4]])
def test_without_a_node_table_nodes_are_the_ids_of_the_edges(tmp_path, ids):
    edges = {"src": [ids[0], ids[1], ids[0]], "dst": [ids[1], ids[2], ids[0]]}
    graph, _ = build(tmp_path, write_tables(tmp_path / "tables", None, edges))
    assert graph.ids.to_arrow().to_pylist() == sorted(ids)
    assert (graph.num_nodes, graph.num_edges) == (3, 3)


def test_leading_zeros_survive_as_text(tmp_path):
    edges = {"src": ["007", "7"], "dst": ["7", "12"]}
    source = write_tables(tmp_path / "tables", None, edges, ending="csv")
    graph, _ = build(tmp_path, source, id_type="text")
    assert graph.ids.to_arrow().to_pylist() == ["007", "12", "7"]


def test_folders_of_files_are_one_table(tmp_path):
    for part, low in enumerate((0, 2)):
        for name, columns in (("nodes", NODES), ("edges", EDGES)):
            (tmp_path / "tables" / name).mkdir(parents=True, exist_ok=True)
            rows = pa.table(columns).slice(low, 2 if name == "nodes" or part == 0 else 3)
            pq.write_table(rows, tmp_path / "tables" / name / f"part-{part}.parquet")
    graph, _ = build(tmp_path, tmp_path / "tables")
    np.testing.assert_array_equal(graph.src, [2, 2, 0, 0, 1])


def test_integers_that_turn_into_fractions_far_down_a_csv(tmp_path, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.files._BLOCK_BYTES", 64)
    rows = 100
    nodes = {"id": list(range(rows)), "a": [0.5 if i == 90 else i for i in range(rows)]}
    text = "id,a\n" + "".join(f"{i},{0.5 if i == 90 else i}\n" for i in range(rows))
    source = write_tables(tmp_path / "tables", None, {"src": [0], "dst": [1]}, "csv")
    (source / "nodes.csv").write_text(text)
    graph, _ = build(tmp_path, source)
    np.testing.assert_array_equal(graph.x[:, 0], np.float32(nodes["a"]))


def test_packed_csv_and_tab_separated_files(tmp_path):
    source = tmp_path / "tables"
    source.mkdir()
    (source / "edges.csv.gz").write_bytes(gzip.compress(b"src,dst\n1,2\n2,3\n"))
    (source / "nodes.tsv").write_text("id\tf\n1\t1\n2\t2\n3\t3\n")
    graph, _ = build(tmp_path, source)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (3, 2, 1)


def test_feature_lists_and_dictionary_columns(tmp_path):
    nodes = {
        "id": pa.array(["a", "b"]).dictionary_encode(),
        "f": pa.array([[1, 2], [3, 4]], pa.list_(pa.float64(), 2)),
        "g": pa.array([[5], [6]], pa.list_(pa.int8())),
        "y": [5, 3],
    }
    edges = {"src": pa.array(["a"]).dictionary_encode(), "dst": ["b"]}
    graph, _ = build(tmp_path, write_tables(tmp_path / "tables", nodes, edges))
    np.testing.assert_array_equal(graph.x, [[1, 2, 5], [3, 4, 6]])
    np.testing.assert_array_equal(graph.y, [1, 0])


@pytest.mark.parametrize(
    ("labels", "want", "names"),
    [
        ([[2, 7], [], None, [7]], [[1, 1], [0, 0], [255, 255], [0, 1]], [2, 7]),
        ([["b"], ["a"], [], ["a", "b"]], [[0, 1], [1, 0], [0, 0], [1, 1]], ["a", "b"]),
        (pa.array([[0, 1], [1, 0], [1, 1], [0, 0]], pa.list_(pa.int8(), 2)), None, [0, 1]),
    ],
)
def test_lists_of_labels(tmp_path, labels, want, names):
    source = write_tables(tmp_path / "tables", {"id": NODES["id"], "label": labels})
    graph, _ = build(tmp_path, source)
    assert graph.y.dtype == np.uint8
    np.testing.assert_array_equal(graph.y, labels.to_pylist() if want is None else want)
    assert open_folder(tmp_path / "store", "store").facts["class_names"] == names


def test_several_label_columns(tmp_path):
    nodes = {"id": NODES["id"], "p": [1, 0, 1, 0], "q": [True, True, False, False]}
    graph, _ = build(tmp_path, write_tables(tmp_path / "tables", nodes), label=("p", "q"))
    np.testing.assert_array_equal(graph.y, [[1, 1], [0, 1], [1, 0], [0, 0]])
    assert graph.x is None


@pytest.mark.parametrize(
    ("labels", "want", "noted"),
    [
        ([-1, 0, 5, 0], [-1, 0, 1, 0], True),
        ([-1, 1, 1, -1], [0, 1, 1, 0], False),
        ([1.0, None, 3.0, 1.0], [0, -1, 1, 0], False),
        ([True, False, True, True], [1, 0, 1, 1], False),
    ],
)
def test_what_counts_as_no_label(tmp_path, labels, want, noted):
    source = write_tables(tmp_path / "tables", {"id": NODES["id"], "label": labels})
    graph, notes = build(tmp_path, source)
    np.testing.assert_array_equal(graph.y, want)
    assert any("label -1" in note for note in notes) == noted


def test_boolean_split_columns(tmp_path):
    flags = {name: [i == j for j in range(4)] for i, name in enumerate(("train", "val", "test"))}
    graph, _ = build(tmp_path, write_tables(tmp_path / "tables", {"id": NODES["id"]} | flags))
    np.testing.assert_array_equal(graph.test, [False, False, True, False])
    assert graph.x is None


SPLIT_WORDS = {"split": ["train", "train", "val", "test"]}
SPLIT_FLAGS = {"train": [1, 1, 0, 0], "val": [0, 0, 1, 0], "test": [0, 0, 0, 1]}


@pytest.mark.parametrize("split", [SPLIT_WORDS, SPLIT_FLAGS])
@pytest.mark.parametrize(
    "labels",
    [
        {"label": [["b"], None, ["a", "b"], None]},
        {"label": pa.array([[0, 1], None, [1, 1], [0, None]], pa.list_(pa.int8(), 2))},
        {"a": [0, None, 1, 0], "b": [1, 0, 1, None]},
    ],
)
def test_unknown_labels_are_in_no_split(tmp_path, split, labels):
    source = write_tables(tmp_path / "tables", {"id": NODES["id"]} | labels | split)
    graph, notes = build(tmp_path, source, **({"label": ("a", "b")} if "a" in labels else {}))
    check_graph(graph)
    np.testing.assert_array_equal(graph.y, [[0, 1], [255, 255], [1, 1], [255, 255]])
    np.testing.assert_array_equal(graph.train | graph.val, [True, False, True, False])
    assert not graph.test.any()
    assert any(note.startswith("2 nodes have") and "but predicted" in note for note in notes)


@pytest.mark.parametrize("split", [SPLIT_WORDS, SPLIT_FLAGS])
@pytest.mark.parametrize("labels", [["a", None, None, "b"], [3, -1, -1, 4]])
def test_nodes_without_a_label_are_left_out_of_the_masks(tmp_path, split, labels):
    source = write_tables(tmp_path / "tables", {"id": NODES["id"], "label": labels} | split)
    graph, notes = build(tmp_path, source)
    check_graph(graph)
    masks = [mask.tolist() for mask in (graph.train, graph.val, graph.test)]
    assert masks == [[True, False, False, False], [False] * 4, [False, False, False, True]]
    assert "2 nodes have a split but no label: left out of the masks." in notes


def test_masks_that_a_drawn_split_replaces_are_not_spoken_of(tmp_path):
    nodes = {"id": NODES["id"], "label": [0, None, 0, 1]} | SPLIT_WORDS
    tables = find_tables(write_tables(tmp_path / "tables", nodes), TableOptions())
    notes = build_store(tables, tmp_path / "store", drawing=Drawing(split="0.5,0.2"))
    assert not any("no label" in note for note in notes)


def test_masks_are_drawn_when_asked(tmp_path):
    source = write_tables(tmp_path / "tables", {"id": NODES["id"], "label": [0, 1, 0, 1]})
    options = TableOptions()
    tables = find_tables(source, options)
    notes = build_store(tables, tmp_path / "store", drawing=Drawing(split="0.5,0.25", seed=1))
    graph = load_store(tmp_path / "store")
    assert [int(mask.sum()) for mask in (graph.train, graph.val, graph.test)] == [2, 1, 1]
    assert notes[-1:] == ["No masks in the data: drew 50/25/25 % (2/1/1 nodes) from seed 1."]


def test_progress_ends_at_the_total(tmp_path):
    seen = {}
    source = write_tables(tmp_path / "tables")

    def progress(phase, done, total):
        seen[phase] = (done, total)

    build_store(find_tables(source, TableOptions()), tmp_path / "store", progress=progress)
    assert seen["scanning nodes"] == (4, 4)
    assert seen["reading edges"] == (5, 5)
    assert seen["sorting edges"] == (4, 4)


def test_existing_target_is_kept_unless_overwritten(tmp_path):
    source = write_tables(tmp_path / "tables")
    tables = find_tables(source, TableOptions())
    build_store(tables, tmp_path / "store")
    with pytest.raises(StoreError, match="exists already"):
        build_store(tables, tmp_path / "store")
    build_store(tables, tmp_path / "store", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "tables"]


def test_full_disk_keeps_what_is_done_and_goes_on(tmp_path, monkeypatch):
    source = write_tables(tmp_path / "tables")
    whole = tmp_path / "whole"
    build_store(find_tables(source, TableOptions()), whole)

    def full(file, records):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("siafu.ingest.tables.buckets._write_all", full)
    with pytest.raises(StoreError, match="disk is full") as told:
        build(tmp_path, source)
    monkeypatch.undo()
    assert "run the same command again" in told.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.partial", "tables", "whole"]
    build(tmp_path, source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "tables", "whole"]
    made = [open_folder(path, "store").fingerprint for path in (whole, tmp_path / "store")]
    assert made[0] == made[1]


@pytest.mark.parametrize("wrong", [{"bucket_edges": 0}, {"id_type": "uuid"}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError):
        TableOptions(**wrong)


def test_text_ids_that_were_asked_for_as_numbers_are_so(tmp_path):
    nodes = {**NODES, "id": ["0010", "020", "30", "0040"]}
    edges = {"src": ["10", "020"], "dst": ["0020", "30"]}
    source = write_tables(tmp_path / "tables", nodes, edges)
    graph, _ = build(tmp_path, source, id_type="integer")
    assert graph.ids.to_arrow().to_pylist() == [10, 20, 30, 40]
    assert graph.num_edges == 2

"""Node and edge tables as stores: columns, types, and every mistake a table can hold."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from siafu.errors import ConfigError, DataError, StoreError
from siafu.graph import check_graph, load_store, open_folder
from siafu.ingest import Drawing, TableOptions, build_store, find_tables

NODES = {
    "id": [10, 20, 30, 40],
    "label": ["cat", "dog", None, "ant"],
    "split": ["train", "valid", "", "test"],
    "a": [1, 2, 3, 4],
    "b": [0.5, 1.5, 2.5, 3.5],
    "comment": ["w", "x", "y", "z"],
}
EDGES = {"src": [10, 20, 30, 30, 10], "dst": [20, 30, 10, 10, 10], "w": [1.0, 2, 3, 4, 5]}


def _write(folder, nodes=NODES, edges=EDGES, ending="parquet"):
    folder.mkdir()
    for name, columns in (("nodes", nodes), ("edges", edges)):
        if columns is not None:
            write = pq.write_table if ending == "parquet" else pa_csv.write_csv
            write(pa.table(columns), folder / f"{name}.{ending}")
    return folder


def _build(tmp_path, source, **options):
    chosen = TableOptions(**options)
    notes = build_store(find_tables(source, chosen), tmp_path / "store", options=chosen)
    return load_store(tmp_path / "store"), notes


def _assert_fails(tmp_path, problem, nodes=NODES, edges=EDGES, ending="parquet", **options):
    source = _write(tmp_path / "tables", nodes, edges, ending)
    with pytest.raises(DataError, match=problem) as caught:
        _build(tmp_path, source, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    return str(caught.value)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_every_column_finds_its_place(tmp_path, ending):
    graph, notes = _build(tmp_path, _write(tmp_path / "tables", ending=ending), edge_weight="w")
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
    graph, _ = _build(tmp_path, _write(tmp_path / "tables", {"id": ids}, edges))
    assert graph.ids.to_arrow().to_pylist() == ids
    np.testing.assert_array_equal(graph.src, [0, 3])
    np.testing.assert_array_equal(np.diff(graph.indptr), [0, 1, 1, 0])


@pytest.mark.parametrize("ids", [["z", "é", "a"], [9, -9, 4]])
def test_without_a_node_table_vertices_are_the_ids_of_the_edges(tmp_path, ids):
    edges = {"src": [ids[0], ids[1], ids[0]], "dst": [ids[1], ids[2], ids[0]]}
    graph, _ = _build(tmp_path, _write(tmp_path / "tables", None, edges))
    assert graph.ids.to_arrow().to_pylist() == sorted(ids)
    assert (graph.num_nodes, graph.num_edges) == (3, 3)


def test_leading_zeros_survive_as_text(tmp_path):
    edges = {"src": ["007", "7"], "dst": ["7", "12"]}
    source = _write(tmp_path / "tables", None, edges, ending="csv")
    graph, _ = _build(tmp_path, source, id_type="text")
    assert graph.ids.to_arrow().to_pylist() == ["007", "12", "7"]


def test_folders_of_files_are_one_table(tmp_path):
    for part, low in enumerate((0, 2)):
        for name, columns in (("nodes", NODES), ("edges", EDGES)):
            (tmp_path / "tables" / name).mkdir(parents=True, exist_ok=True)
            rows = pa.table(columns).slice(low, 2 if name == "nodes" or part == 0 else 3)
            pq.write_table(rows, tmp_path / "tables" / name / f"part-{part}.parquet")
    graph, _ = _build(tmp_path, tmp_path / "tables")
    np.testing.assert_array_equal(graph.src, [2, 2, 0, 0, 1])


def test_integers_that_turn_into_fractions_far_down_a_csv(tmp_path, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.files._BLOCK_BYTES", 64)
    rows = 100
    nodes = {"id": list(range(rows)), "a": [0.5 if i == 90 else i for i in range(rows)]}
    text = "id,a\n" + "".join(f"{i},{0.5 if i == 90 else i}\n" for i in range(rows))
    source = _write(tmp_path / "tables", None, {"src": [0], "dst": [1]}, "csv")
    (source / "nodes.csv").write_text(text)
    graph, _ = _build(tmp_path, source)
    np.testing.assert_array_equal(graph.x[:, 0], np.float32(nodes["a"]))


def test_packed_csv_and_tab_separated_files(tmp_path):
    source = tmp_path / "tables"
    source.mkdir()
    (source / "edges.csv.gz").write_bytes(gzip.compress(b"src,dst\n1,2\n2,3\n"))
    (source / "nodes.tsv").write_text("id\tf\n1\t1\n2\t2\n3\t3\n")
    graph, _ = _build(tmp_path, source)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (3, 2, 1)


def test_feature_lists_and_dictionary_columns(tmp_path):
    nodes = {
        "id": pa.array(["a", "b"]).dictionary_encode(),
        "f": pa.array([[1, 2], [3, 4]], pa.list_(pa.float64(), 2)),
        "g": pa.array([[5], [6]], pa.list_(pa.int8())),
        "y": [5, 3],
    }
    edges = {"src": pa.array(["a"]).dictionary_encode(), "dst": ["b"]}
    graph, _ = _build(tmp_path, _write(tmp_path / "tables", nodes, edges))
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
    source = _write(tmp_path / "tables", {"id": NODES["id"], "label": labels})
    graph, _ = _build(tmp_path, source)
    assert graph.y.dtype == np.uint8
    np.testing.assert_array_equal(graph.y, labels.to_pylist() if want is None else want)
    assert open_folder(tmp_path / "store", "store").facts["class_names"] == names


def test_several_label_columns(tmp_path):
    nodes = {"id": NODES["id"], "p": [1, 0, 1, 0], "q": [True, True, False, False]}
    graph, _ = _build(tmp_path, _write(tmp_path / "tables", nodes), label=("p", "q"))
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
    source = _write(tmp_path / "tables", {"id": NODES["id"], "label": labels})
    graph, notes = _build(tmp_path, source)
    np.testing.assert_array_equal(graph.y, want)
    assert any("label -1" in note for note in notes) == noted


def test_boolean_split_columns(tmp_path):
    flags = {name: [i == j for j in range(4)] for i, name in enumerate(("train", "val", "test"))}
    graph, _ = _build(tmp_path, _write(tmp_path / "tables", {"id": NODES["id"]} | flags))
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
    source = _write(tmp_path / "tables", {"id": NODES["id"]} | labels | split)
    graph, notes = _build(tmp_path, source, **({"label": ("a", "b")} if "a" in labels else {}))
    check_graph(graph)
    np.testing.assert_array_equal(graph.y, [[0, 1], [255, 255], [1, 1], [255, 255]])
    np.testing.assert_array_equal(graph.train | graph.val, [True, False, True, False])
    assert not graph.test.any()
    assert any(note.startswith("2 nodes have") and "but predicted" in note for note in notes)


@pytest.mark.parametrize("split", [SPLIT_WORDS, SPLIT_FLAGS])
@pytest.mark.parametrize("labels", [["a", None, None, "b"], [3, -1, -1, 4]])
def test_vertices_without_a_label_are_left_out_of_the_masks(tmp_path, split, labels):
    source = _write(tmp_path / "tables", {"id": NODES["id"], "label": labels} | split)
    graph, notes = _build(tmp_path, source)
    check_graph(graph)
    masks = [mask.tolist() for mask in (graph.train, graph.val, graph.test)]
    assert masks == [[True, False, False, False], [False] * 4, [False, False, False, True]]
    assert "2 nodes have a split but no label: left out of the masks." in notes


def test_masks_that_a_drawn_split_replaces_are_not_spoken_of(tmp_path):
    nodes = {"id": NODES["id"], "label": [0, None, 0, 1]} | SPLIT_WORDS
    tables = find_tables(_write(tmp_path / "tables", nodes), TableOptions())
    notes = build_store(tables, tmp_path / "store", drawing=Drawing(split="0.5,0.2"))
    assert not any("no label" in note for note in notes)


def test_masks_are_drawn_when_asked(tmp_path):
    source = _write(tmp_path / "tables", {"id": NODES["id"], "label": [0, 1, 0, 1]})
    options = TableOptions()
    tables = find_tables(source, options)
    notes = build_store(tables, tmp_path / "store", drawing=Drawing(split="0.5,0.25", seed=1))
    graph = load_store(tmp_path / "store")
    assert [int(mask.sum()) for mask in (graph.train, graph.val, graph.test)] == [2, 1, 1]
    assert notes[-1:] == ["No masks in the data: drew 50/25/25 % (2/1/1 nodes) from seed 1."]


def test_progress_ends_at_the_total(tmp_path):
    seen = {}
    source = _write(tmp_path / "tables")

    def progress(phase, done, total):
        seen[phase] = (done, total)

    build_store(find_tables(source, TableOptions()), tmp_path / "store", progress=progress)
    assert seen["scanning nodes"] == (4, 4)
    assert seen["reading edges"] == (5, 5)
    assert seen["sorting edges"] == (4, 4)


NO_ROWS = pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())})


@pytest.mark.parametrize(
    ("nodes", "edges", "problem"),
    [
        (NODES | {"b": [1.0, 2, 1e300, 4]}, EDGES, "column 'b': inf in data row 2"),
        (NODES | {"id": [10, 20, 20, 30]}, EDGES, "same id.\n  seen: id 20"),
        (NODES | {"id": ["10", "20", "20", "30"]}, EDGES, "same id.\n  seen: id '20'"),
        (NODES | {"id": [10, 20, 10**15, 10**15]}, EDGES, "same id"),
        (NODES | {"id": [10, None, 30, 40]}, EDGES, "An id is missing"),
        (NODES | {"id": [1.5, 2, 3, 4]}, EDGES, "integers or text"),
        (NODES | {"label": [2**60, 1, 2, 3]}, EDGES, "not a class"),
        (NODES | {"split": ["train", "trian", "", ""]}, EDGES, "did you mean 'train'"),
        (NODES, EDGES | {"dst": [20, 30, 77, 10, 10]}, "id 77 in column 'dst', data row 2"),
        (NODES, EDGES | {"src": ["10", "x", "30", "30", "10"]}, "mixed types"),
        (NODES, EDGES | {"src": [10, None, 30, 30, 10]}, "An id is missing"),
        (NODES, {"sourced": [10], "dst": [20], "x": [1]}, "no column 'src'"),
        ({"Name": [10, 10], "x": [1, 1]}, EDGES, "no column 'id'"),
        (NODES, NO_ROWS, "edge table has no rows"),
        (pa.table(NODES).slice(0, 0), EDGES, "node table has no rows"),
        ({"id": [10, 20], "label": [[1], [3, 3]]}, EDGES, "one label twice"),
        ({"id": [10, 20], "f": [[1.0], [1.0, 2.0]]}, EDGES, "differ in length"),
        ({"id": [10], "train": [True], "val": [True], "test": [False]}, EDGES, "two splits"),
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(tmp_path, nodes, edges, problem):
    _assert_fails(tmp_path, problem, nodes, edges)


def test_unknown_feature_column_lists_those_there_are(tmp_path):
    text = _assert_fails(tmp_path, "no column 'aa'", features=("aa",))
    assert "'comment'" in text


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"node_id": "idd"}, "did you mean 'id'? name the column: --node-id COLUMN"),
        ({"src": "srcs"}, "did you mean 'src'? name the column: --src COLUMN"),
        ({"dst": "zz"}, "fix:  name the column: --dst COLUMN"),
        ({"label": "zz"}, "name the column: --label COLUMN"),
        ({"split": "zz"}, "name the column: --split-column COLUMN"),
        ({"features": ("zz",)}, "name the column: --features COLUMN"),
        ({"edge_weight": "zz"}, "name the column: --edge-weight COLUMN"),
        ({"edge_attr": ("zz",)}, "name the column: --edge-attr COLUMN"),
    ],
)
def test_missing_column_gives_a_command_to_type(tmp_path, options, flag):
    assert flag in _assert_fails(tmp_path, "has no column", **options)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("values", [["1", "oops", "3", "4e5"], ["1", "oops", "", "-.5"]])
def test_one_word_in_a_column_of_numbers_is_named(tmp_path, ending, values):
    source = _write(tmp_path / "tables", NODES | {"f7": values}, ending=ending)
    graph, notes = _build(tmp_path, source)
    assert graph.num_features == 2
    assert "mostly numbers, but 'oops' in row 1" in notes[0]


def test_numbers_written_as_text_are_numbers(tmp_path):
    source = _write(tmp_path / "tables", NODES | {"f7": ["1", None, "3", "4"]})
    graph, _ = _build(tmp_path, source)
    np.testing.assert_array_equal(graph.x[:, 2], [1, np.nan, 3, 4])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_text_in_a_named_feature_column_is_refused_with_its_place(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.kinds._ROWS_AT_ONCE", 2)
    nodes = NODES | {"f7": ["1", "2", "3", "oops"]}
    problem = r"'oops' in data row 3 \(from 0\)"
    text = _assert_fails(tmp_path, problem, nodes, ending=ending, features=("a", "f7"))
    assert "column 'f7'" in text


def test_columns_of_the_first_file_alone_are_no_features(tmp_path):
    source = _write(tmp_path / "tables", None)
    (source / "nodes").mkdir()
    columns = {"id": [10, 20], "f7": ["1", "2"], "g": ["1", "2"]}
    pq.write_table(pa.table(columns), source / "nodes" / "0.parquet")
    pq.write_table(pa.table({"id": [30, 40]}), source / "nodes" / "1.parquet")
    graph, _ = _build(tmp_path, source)
    assert graph.num_nodes == 4


def test_text_as_a_weight_is_refused(tmp_path):
    edges = EDGES | {"w": list("abcde")}
    _assert_fails(tmp_path, "should hold numbers", edges=edges, edge_weight="w")


def test_text_far_down_an_id_column_of_a_csv_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.files._BLOCK_BYTES", 32)
    edges = {"src": [*map(str, range(50)), "x"], "dst": [*map(str, range(51))]}
    source = _write(tmp_path / "tables", None, edges, "csv")
    (source / "edges.csv").write_text(
        "src,dst\n" + "".join(f"{a},{b}\n" for a, b in zip(edges["src"], edges["dst"], strict=True))
    )
    with pytest.raises(DataError, match="'x' in column 'src', data row 50"):
        _build(tmp_path, source)
    graph, _ = _build(tmp_path, source, id_type="text")
    assert graph.num_edges == 51


def test_broken_files_are_named(tmp_path):
    source = _write(tmp_path / "tables")
    content = (source / "edges.parquet").read_bytes()
    (source / "edges.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="can't be read"):
        _build(tmp_path, source)


def test_folders_without_tables_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no edge table"):
        find_tables(tmp_path / "empty", TableOptions())
    with pytest.raises(DataError, match="no files"):
        find_tables(tmp_path / "absent", TableOptions())


def test_existing_target_is_kept_unless_overwritten(tmp_path):
    source = _write(tmp_path / "tables")
    tables = find_tables(source, TableOptions())
    build_store(tables, tmp_path / "store")
    with pytest.raises(StoreError, match="exists already"):
        build_store(tables, tmp_path / "store")
    build_store(tables, tmp_path / "store", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "tables"]


def test_full_disk_keeps_what_is_done_and_goes_on(tmp_path, monkeypatch):
    source = _write(tmp_path / "tables")
    whole = tmp_path / "whole"
    build_store(find_tables(source, TableOptions()), whole)

    def full(file, records):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("siafu.ingest.tables.buckets._write_all", full)
    with pytest.raises(StoreError, match="disk is full") as told:
        _build(tmp_path, source)
    monkeypatch.undo()
    assert "run the same command again" in told.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.partial", "tables", "whole"]
    _build(tmp_path, source)
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
    source = _write(tmp_path / "tables", nodes, edges)
    graph, _ = _build(tmp_path, source, id_type="integer")
    assert graph.ids.to_arrow().to_pylist() == [10, 20, 30, 40]
    assert graph.num_edges == 2

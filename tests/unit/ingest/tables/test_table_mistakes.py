"""Every mistake that a table can hold, told by name."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError
from siafu.ingest import TableOptions, find_tables
from tests.unit.ingest.tables.made import EDGES, NODES, assert_fails, build, write_tables

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
    assert_fails(tmp_path, problem, nodes, edges)


def test_unknown_feature_column_lists_those_there_are(tmp_path):
    text = assert_fails(tmp_path, "no column 'aa'", features=("aa",))
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
    assert flag in assert_fails(tmp_path, "has no column", **options)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("values", [["1", "oops", "3", "4e5"], ["1", "oops", "", "-.5"]])
def test_one_word_in_a_column_of_numbers_is_named(tmp_path, ending, values):
    source = write_tables(tmp_path / "tables", NODES | {"f7": values}, ending=ending)
    graph, notes = build(tmp_path, source)
    assert graph.num_features == 2
    assert "mostly numbers, but 'oops' in row 1" in notes[0]


def test_numbers_written_as_text_are_numbers(tmp_path):
    source = write_tables(tmp_path / "tables", NODES | {"f7": ["1", None, "3", "4"]})
    graph, _ = build(tmp_path, source)
    np.testing.assert_array_equal(graph.x[:, 2], [1, np.nan, 3, 4])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_text_in_a_named_feature_column_is_refused_with_its_place(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.kinds._ROWS_AT_ONCE", 2)
    nodes = NODES | {"f7": ["1", "2", "3", "oops"]}
    problem = r"'oops' in data row 3 \(from 0\)"
    text = assert_fails(tmp_path, problem, nodes, ending=ending, features=("a", "f7"))
    assert "column 'f7'" in text


def test_columns_of_the_first_file_alone_are_no_features(tmp_path):
    source = write_tables(tmp_path / "tables", None)
    (source / "nodes").mkdir()
    columns = {"id": [10, 20], "f7": ["1", "2"], "g": ["1", "2"]}
    pq.write_table(pa.table(columns), source / "nodes" / "0.parquet")
    pq.write_table(pa.table({"id": [30, 40]}), source / "nodes" / "1.parquet")
    graph, _ = build(tmp_path, source)
    assert graph.num_nodes == 4


def test_text_as_a_weight_is_refused(tmp_path):
    edges = EDGES | {"w": list("abcde")}
    assert_fails(tmp_path, "should hold numbers", edges=edges, edge_weight="w")


def test_text_far_down_an_id_column_of_a_csv_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.files._BLOCK_BYTES", 32)
    edges = {"src": [*map(str, range(50)), "x"], "dst": [*map(str, range(51))]}
    source = write_tables(tmp_path / "tables", None, edges, "csv")
    (source / "edges.csv").write_text(
        "src,dst\n" + "".join(f"{a},{b}\n" for a, b in zip(edges["src"], edges["dst"], strict=True))
    )
    with pytest.raises(DataError, match="'x' in column 'src', data row 50"):
        build(tmp_path, source)
    graph, _ = build(tmp_path, source, id_type="text")
    assert graph.num_edges == 51


def test_broken_files_are_named(tmp_path):
    source = write_tables(tmp_path / "tables")
    content = (source / "edges.parquet").read_bytes()
    (source / "edges.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="can't be read"):
        build(tmp_path, source)


def test_folders_without_tables_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no edge table"):
        find_tables(tmp_path / "empty", TableOptions())
    with pytest.raises(DataError, match="no files"):
        find_tables(tmp_path / "absent", TableOptions())

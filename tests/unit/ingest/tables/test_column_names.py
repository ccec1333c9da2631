"""Columns by name: kept from tables to weights, and compared when a model meets other data."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.engine.weights import check_names
from siafu.errors import DataError, StoreError
from siafu.graph import load_store, open_folder
from siafu.ingest import TableOptions, ingest_to_store, load_dynamic
from siafu.partitioning import open_parts, partition_graph

EDGES = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 0], "w": [1.0] * 6, "k": [2.0] * 6}


def nodes(**columns) -> dict[str, object]:
    """Return a node table with these features."""
    values = {name: [1.0 + k, 2, 0, 4, 5, 6] for k, name in enumerate(columns)}
    return {"id": list(range(6)), "label": [0, 1, 0, 1, 0, 1], **values, **columns}


def write(folder: Path, columns: dict[str, object], *, metadata=None) -> Path:
    """Return a folder with a node table of these columns and six edges."""
    folder.mkdir()
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata), folder / "nodes.parquet")
    pq.write_table(pa.table(EDGES), folder / "edges.parquet")
    return folder


def numbers(*names: str) -> dict[str, object]:
    """Return a node table with features of these names."""
    return nodes(**{name: [k + 0.5, 2, 0, 4, 5, 6] for k, name in enumerate(names)})


def test_names_go_from_tables_to_the_store_and_its_parts(tmp_path):
    columns = numbers("age", "pay") | {"emb": [[1.0 * k, 2.0 - k] for k in range(6)]}
    options = TableOptions(edge_attr=("w", "k"))
    source = write(tmp_path / "tables", columns)
    notes = ingest_to_store(source, tmp_path / "store", options=options)
    graph = load_store(tmp_path / "store")
    assert graph.feature_names == ("age", "pay", "emb[0]", "emb[1]")
    assert graph.edge_attr_names == ("w", "k")
    told = "\n".join(notes)
    assert re.search(r"emb +2 numbers +feature", told)
    assert re.search(r"k +number +edge feature", told)
    partition_graph(graph, tmp_path / "parts", num_parts=2, method="hash")
    assert open_parts(tmp_path / "parts").part(1).facts["feature_names"] == [*graph.feature_names]


def test_many_names_are_told_in_short(tmp_path):
    source = write(tmp_path / "tables", numbers(*(f"f{k}" for k in range(40))))
    notes = ingest_to_store(source, tmp_path / "store")
    told = next(note for note in notes if note.startswith("Columns of the nodes"))
    assert "f0 " in told
    assert told.endswith("and 18 more")
    assert len(told.splitlines()) <= 27


def test_a_store_without_names_still_opens(tmp_path):
    ingest_to_store("planted:60", tmp_path / "store")
    assert "feature_names" not in open_folder(tmp_path / "store", "store").facts
    assert load_store(tmp_path / "store").feature_names == ()


@pytest.mark.parametrize("name", ["__index_level_0__", "", "Unnamed: 0", "customer"])
def test_a_pandas_index_is_no_feature(tmp_path, name):
    pandas = {b"pandas": json.dumps({"index_columns": ["customer"]}).encode()}
    columns = numbers("age") | {name: [9, 8, 7, 6, 5, 4]}
    source = write(tmp_path / "tables", columns, metadata=pandas)
    notes = ingest_to_store(source, tmp_path / "store")
    assert load_store(tmp_path / "store").feature_names == ("age",)
    assert any("the index of a pandas table" in note for note in notes)


def test_an_index_may_be_the_id_or_a_feature_that_is_asked_for(tmp_path):
    pandas = {b"pandas": json.dumps({"index_columns": ["id", {"kind": "range"}]}).encode()}
    columns = numbers("age") | {"__index_level_0__": [9, 8, 7, 6, 5, 4]}
    source = write(tmp_path / "tables", columns, metadata=pandas)
    options = TableOptions(features=("__index_level_0__",))
    ingest_to_store(source, tmp_path / "store", options=options)
    graph = load_store(tmp_path / "store")
    assert graph.feature_names == ("__index_level_0__",)
    assert graph.ids.to_arrow().to_pylist() == [0, 1, 2, 3, 4, 5]


def test_lists_that_change_their_lengths_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("siafu.ingest.tables.nodes.node_pieces", lambda *_: {"rows": 3})
    short, long = [[1.0, 2.0]] * 3, [[1.0, 2.0, 3.0]] * 3
    source = write(tmp_path / "tables", nodes(p=short + long, q=long + short))
    with pytest.raises(DataError, match="column 'p': 2 numbers at first, 3 in"):
        ingest_to_store(source, tmp_path / "store")


def test_names_of_node_features_over_time(tmp_path):
    source = write(tmp_path / "events", numbers("age", "pay"))
    (source / "edges.parquet").unlink()
    times = {"src": [0, 1, 2], "dst": [1, 2, 3], "time": [0, 1, 2]}
    pq.write_table(pa.table(times), source / "events.parquet")
    graph, notes = load_dynamic(source)
    assert graph.feature_names == ("age", "pay")
    assert re.search(r"pay +number +feature", "\n".join(notes))


@pytest.mark.parametrize(
    ("seen", "told", "fix"),
    [
        (["b", "a", "c"], "column 0 is 'b', the model's is 'a'", "--features a,b,c"),
        (["a", "b"], "'c' missing", "the columns the run was trained on"),
        (["a", "b", "c", "d"], "'d' not known to the model", "--features a,b,c"),
        (["a", "b", "x"], "'c' missing; 'x' not known", "the columns"),
    ],
)
def test_other_columns_than_the_model_knows_are_refused(seen, told, fix):
    with pytest.raises(StoreError) as caught:
        check_names(seen, ["a", "b", "c"], "features", "new")
    assert told in caught.value.seen
    assert fix in caught.value.fix


@pytest.mark.parametrize("noted", [(), ["a", "b"]])
@pytest.mark.parametrize("seen", [(), ("a", "b")])
def test_columns_are_compared_where_both_sides_name_them(noted, seen):
    check_names(seen, noted, "features", "new")


def test_entries_of_lists_are_told_as_the_columns_to_name():
    with pytest.raises(StoreError, match="--features emb,age"):
        check_names(["age", "emb[0]", "emb[1]"], ["emb[0]", "emb[1]", "age"], "features", "new")


def test_widths_of_lists_are_counted_by_column(tmp_path):
    source = write(tmp_path / "tables", nodes(p=[[1.0, 2.0]] * 6, q=np.arange(6.0)))
    ingest_to_store(source, tmp_path / "store")
    assert load_store(tmp_path / "store").feature_names == ("p[0]", "p[1]", "q")

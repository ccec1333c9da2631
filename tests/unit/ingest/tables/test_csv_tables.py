"""CSV tables as people write them: ids with leading zeros, semicolons, encodings, odd headers."""

from pathlib import Path

import numpy as np
import pytest

from siafu.errors import DataError
from siafu.graph import TextIds, load_store
from siafu.ingest import TableOptions, ingest_to_store, load_dynamic

NODES = "id,label,a\n1,x,0.5\n2,y,1.5\n3,x,2.5\n"
EDGES = "src,dst\n1,2\n2,3\n"


def ingest(folder: Path, nodes: str | bytes | None, edges: str | bytes, **options):
    """Return the graph of these tables, and the notes."""
    tables = folder / "tables"
    tables.mkdir()
    for name, text in (("nodes", nodes), ("edges", edges)):
        if text is not None:
            raw = text.encode() if isinstance(text, str) else text
            (tables / f"{name}.csv").write_bytes(raw)
    notes = ingest_to_store(tables, folder / "store", options=TableOptions(**options))
    return load_store(folder / "store"), notes


@pytest.mark.parametrize("ids", [("001", "02", "3"), ("1", "2", "003")])
@pytest.mark.parametrize("with_nodes", [True, False])
def test_ids_with_leading_zeros_stay_as_they_are(tmp_path, ids, with_nodes):
    nodes = "id,a\n" + "".join(f"{one},0.5\n" for one in ids) if with_nodes else None
    edges = "src,dst\n" + "".join(f"{one},{ids[0]}\n" for one in ids)
    graph, notes = ingest(tmp_path, nodes, edges)
    assert isinstance(graph.ids, TextIds)
    assert sorted(graph.ids.to_arrow().to_pylist()) == sorted(ids)
    assert any(note.startswith("Ids are kept as text because of") for note in notes)


def test_leading_zeros_of_events(tmp_path):
    (tmp_path / "events.csv").write_text("src,dst,time\n007,1,0\n1,007,1\n")
    graph, notes = load_dynamic(tmp_path / "events.csv")
    assert sorted(graph.ids.to_arrow().to_pylist()) == ["007", "1"]
    assert any("'007' in column 'src', data row 0" in note for note in notes)


def test_an_edge_that_writes_an_id_otherwise_is_refused(tmp_path):
    with pytest.raises(DataError, match="leading zero") as caught:
        ingest(tmp_path, NODES, "src,dst\n1,2\n02,3\n")
    assert "'02' in column 'src', data row 1" in caught.value.seen
    assert "--id-type integer" in caught.value.fix


def test_whole_numbers_that_are_asked_for_are_read_as_such(tmp_path):
    graph, _ = ingest(tmp_path, NODES, "src,dst\n01,2\n02,3\n", id_type="integer")
    assert graph.ids.to_arrow().to_pylist() == [1, 2, 3]
    assert graph.num_edges == 2


@pytest.mark.parametrize("one", ["0", "-7", "9223372036854775807", " 12 "])
def test_plain_numbers_stay_numbers(tmp_path, one):
    graph, _ = ingest(tmp_path, None, f"src,dst\n{one},1\n1,{one}\n")
    assert sorted(graph.ids.to_arrow().to_pylist()) == sorted([1, int(one)])


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        ("9223372036854775808", "--id-type text"),
        ("12345678901234567890123456789", "--id-type text"),
        ("", "missing"),
        ("NA", "missing"),
    ],
)
def test_ids_that_are_no_numbers_after_all(tmp_path, one, problem):
    with pytest.raises(DataError, match=problem):
        ingest(tmp_path, None, f"src,dst\n5,1\n{one},1\n", id_type=None)


@pytest.mark.parametrize("ids", [[5, 6, 5, 6], [5, 10**9, 7, 5]])
def test_an_id_that_comes_twice_is_told_at_both_rows(tmp_path, ids):
    nodes = "id,a\n" + "".join(f"{one},{k}\n" for k, one in enumerate(ids))
    second = next(k for k, one in enumerate(ids) if one in ids[:k])
    told = f"id 5 in data row 0 .* and in data row {second} .*with other values"
    with pytest.raises(DataError, match=told):
        ingest(tmp_path, nodes, "src,dst\n5,5\n")


def test_rows_that_repeat_a_node_word_for_word_are_one(tmp_path):
    nodes = "id,label,a\n5,x,1\n6,y,2\n5,x,1\n7,x,\n7,x,\n"
    graph, notes = ingest(tmp_path, nodes, "src,dst\n5,7\n6,5\n")
    assert graph.ids.to_arrow().to_pylist() == [5, 6, 7]
    np.testing.assert_array_equal(graph.x, [[1], [2], [np.nan]])
    np.testing.assert_array_equal(graph.y, [0, 1, 0])
    assert any(note.startswith("Dropped 2 rows that repeat a node") for note in notes)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_separators_are_found_and_told(tmp_path, mark):
    graph, notes = ingest(tmp_path, NODES.replace(",", mark), EDGES)
    assert graph.feature_names == ("a",)
    assert f"The columns of the node table are separated by {mark!r}." in notes


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ("id,label,a,a\n1,x,1,2\n", "Two columns have one name"),
        ("id,id,a\n1,1,2\n", "Two columns have one name"),
        ("id,\xe9,a\n1,x,1\n".encode("latin-1"), "not UTF-8"),
        ("id,label,a\n1,\xe9,1\n".encode("latin-1"), "neither whole numbers nor text"),
        ("id,label,a\n1,123456789012345678901234567890,1\n", "not a class"),
        ("", "can't be read"),
    ],
)
def test_tables_that_say_too_little_or_too_much(tmp_path, nodes, problem):
    with pytest.raises(DataError, match=problem):
        ingest(tmp_path, nodes, "src,dst\n1,1\n")


def test_two_edge_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(DataError, match="'dst' in"):
        ingest(tmp_path, NODES, "src,dst,dst\n1,2,3\n")

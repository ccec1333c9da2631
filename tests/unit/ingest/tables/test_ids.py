"""Which columns are ids: found by name or values, with their zeros, and what is dropped."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError
from siafu.graph import load_store
from siafu.ingest import TableOptions, ingest_to_store
from tests.unit.ingest.tables.made import assert_fails, build, made, schema_of, write_tables

AGE = {"age": [row % 11 for row in range(20)]}


def test_unknown_and_missing_ids_are_dropped_where_they_are_few(tmp_path: Path) -> None:
    src = [row % 9 for row in range(400)]
    edges: dict[str, Any] = {"src": src, "dst": [*src[:396], 77, None, 3, 3]}
    graph, told = made(tmp_path / "few", AGE, edges)
    assert graph.num_edges == 398
    assert "Dropped 1 edge with nodes that the node table does not have" in told
    assert "Dropped 1 edge without an id" in told
    with pytest.raises(DataError, match="have 2 problems"):
        made(tmp_path / "none", AGE, edges, drop_unknown=False)
    many = {"src": [0, 1, 55, 2], "dst": [1, 2, 3, 66]}
    with pytest.raises(DataError, match=r"id 55 in column 'src', data row 2 .*; 2 of 4 edges"):
        made(tmp_path / "many", AGE, many)
    graph, _ = made(tmp_path / "all", AGE, many, drop_unknown=True)
    assert graph.num_edges == 2


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,age,y\n1,4,a\n2,5,b\n2,6,b\n,7,a\n")
    (folder / "edges.csv").write_text("src,dst\n1,2\n1,9\n,2\n")
    with pytest.raises(DataError, match="4 problems") as caught:
        ingest_to_store(folder, tmp_path / "store")
    for part in ("An id is missing", "same id", "id 9", "data row 3 (from 0) of"):
        assert part in str(caught.value)
    options = TableOptions(node_id="no", label="never", src="nor")
    with pytest.raises(DataError, match="3 problems") as caught:
        ingest_to_store(folder, tmp_path / "store", options=options)
    assert all(flag in caught.value.fix for flag in ("--node-id", "--label", "--src"))


def test_ids_are_found_by_name_or_by_what_edges_name(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    nodes = "".join(f"{row},c{row:03},{row % 5}\n" for row in range(30))
    (folder / "nodes.csv").write_text("number,customer,age\n" + nodes)
    edges = "".join(f"c{row:03},c{row + 1:03}\n" for row in range(29))
    (folder / "edges.csv").write_text("From,To\n" + edges)
    notes = ingest_to_store(folder, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    assert graph.ids.to_arrow().to_pylist()[:2] == ["c000", "c001"]
    assert graph.feature_names == ("age",)
    assert notes[:2] == [
        "Edges go from column From to column To.",
        "Ids of nodes are in column customer.",
    ]


@pytest.mark.parametrize("nodes_as", ["csv", "parquet"])
@pytest.mark.parametrize("edges_as", ["csv", "parquet"])
def test_leading_zeros_stay_whatever_the_files_are(
    tmp_path: Path, nodes_as: str, edges_as: str
) -> None:
    ids = [f"{row:05}" for row in range(30)]
    for name, ending, columns in (
        ("nodes", nodes_as, {"id": ids, "age": [row % 7 for row in range(30)]}),
        ("edges", edges_as, {"src": ids[:-1], "dst": ids[1:]}),
    ):
        write = pa_csv.write_csv if ending == "csv" else pq.write_table
        write(pa.table(columns), tmp_path / f"{name}.{ending}")
    ingest_to_store(tmp_path, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    assert graph.ids.to_arrow().to_pylist() == ids
    assert graph.num_edges == 29


def test_semicolons_commas_and_days_first(tmp_path: Path) -> None:
    rows = "".join(f"{k};n {k};{k % 9},5;{1 + k % 28:02}.02.2023\n" for k in range(40))
    (tmp_path / "machines.csv").write_text(";Serial;Weight kg;Built\n" + rows)
    links = "".join(f"n {k};n {k + 1};{k}\n" for k in range(39))
    (tmp_path / "links.csv").write_text("Machine A;Machine B;Metres\n" + links)
    notes = ingest_to_store(tmp_path, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    kinds = [(one.name, one.kind) for one in schema_of(graph).nodes]
    assert kinds == [("Weight kg", "number"), ("Built", "date")]
    np.testing.assert_array_equal(np.array(graph.x)[:10, 0], np.arange(10) % 9 + 0.5)
    assert (np.array(graph.x)[0, 1], graph.num_edges) == (19389, 39)
    assert "Edges go from column Machine A to column Machine B." in notes


def test_edges_without_an_id_are_counted_once(tmp_path: Path) -> None:
    rows = "".join(f"{row % 9},{row % 7}\n" for row in range(300))
    (tmp_path / "edges.csv").write_text(f"src,dst\n{rows},3\n4,\n")
    notes = ingest_to_store(tmp_path / "edges.csv", tmp_path / "store")
    assert load_store(tmp_path / "store").num_edges == 300
    assert any(note.startswith("Dropped 2 edges without an id") for note in notes)


def test_ids_with_zeros_are_found_though_some_edges_name_others(tmp_path: Path) -> None:
    nodes = "".join(f"{row:04},{row % 5}\n" for row in range(200))
    (tmp_path / "nodes.csv").write_text("customer,age\n" + nodes)
    edges = "".join(f"{row:04},{row + 1:04}\n" for row in range(199))
    (tmp_path / "edges.csv").write_text(f"payer,payee\n{edges}X1,X2\n")
    ingest_to_store(tmp_path, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    assert (graph.ids.to_arrow()[7].as_py(), graph.num_edges) == ("0007", 199)
    assert graph.feature_names == ("age",)


PADDED = [f"{row:04}" for row in range(1, 41)]
NUMBERS = list(range(1, 41))


@pytest.mark.parametrize(
    ("ids", "src", "dst", "told"),
    [
        (PADDED, NUMBERS[:-1], NUMBERS[1:], "(?s)edge table seem to have lost.*'0001'.*'1'"),
        (NUMBERS, PADDED[:-1], PADDED[1:], "(?s)node table seem to have lost.*'1'.*'0001'"),
    ],
)
def test_ids_that_lost_their_zeros_are_told_as_such(
    tmp_path: Path, ids: list[Any], src: list[Any], dst: list[Any], told: str
) -> None:
    ends = {"reader": src, "film": dst, "day": ["x"] * 39}
    pq.write_table(pa.table({"person": ids, "age": [5.5] * 40}), tmp_path / "persons.parquet")
    pq.write_table(pa.table(ends), tmp_path / "reads.parquet")
    with pytest.raises(DataError, match=told) as caught:
        ingest_to_store(tmp_path, tmp_path / "store")
    assert "no column" not in str(caught.value)
    assert "--id-type integer" in caught.value.fix
    numbers = TableOptions(id_type="integer", drop_unknown=True)
    ingest_to_store(tmp_path, tmp_path / "store", options=numbers)
    graph = load_store(tmp_path / "store")
    assert graph.ids.to_arrow().to_pylist() == NUMBERS
    assert graph.num_edges == 39


def test_edges_that_lost_zeros_of_named_ends_are_told_which_id_is_meant(tmp_path: Path) -> None:
    nodes = {"id": PADDED, "age": NUMBERS}
    edges = {"src": NUMBERS, "dst": NUMBERS}
    told = assert_fails(tmp_path, "id '1' in column 'src'", nodes, edges)
    assert "the node table has '0001'" in told
    assert "--id-type integer" in told


def test_an_end_that_is_named_wrongly_is_all_that_is_told(tmp_path: Path) -> None:
    edges = {"payer": PADDED, "payee": PADDED, "days": PADDED}
    told = assert_fails(tmp_path, "no column 'payr'", {"id": PADDED}, edges, src="payr")
    assert "did you mean 'payer'" in told
    assert "dst" not in told


def test_nodes_that_are_there_twice_are_counted_once(tmp_path: Path) -> None:
    ids, kinds = [*PADDED, *PADDED[:5]], ["a", "b"] * 20 + list("ababa")
    nodes = {"id": ids, "age": [*NUMBERS, *NUMBERS[:5]], "kind": kinds, "one": kinds}
    nodes |= {"pay": [0.5] * 39 + [None] + [0.5] * 5}
    edges = {"src": PADDED, "dst": PADDED}
    graph, told = made(tmp_path / "class", nodes, edges, label="kind", features=("age",))
    assert "a: 20, b: 20" in told
    assert schema_of(graph).targets[0].counts == (20, 20)
    graph, _ = made(tmp_path / "number", nodes, edges, label="pay", features=("age",))
    assert schema_of(graph).targets[0].gaps == 1
    flags = {f"is_{one}": [int(kind == one) for kind in kinds] for one in "ab"}
    graph, _ = made(tmp_path / "labels", nodes | flags, edges, label=tuple(flags))
    assert schema_of(graph).targets[0].counts == (20, 20)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_gap_among_ids_of_pandas_makes_them_no_other_ids(tmp_path: Path, ending: str) -> None:
    numbers = list(range(200))
    gap = pa.array([float(one) for one in numbers[1:]] + [None], pa.float64())
    write = pa_csv.write_csv if ending == "csv" else pq.write_table
    write(pa.table({"person": numbers, "age": [5.5] * 200}), tmp_path / f"nodes.{ending}")
    write(pa.table({"reader": numbers, "film": gap}), tmp_path / f"edges.{ending}")
    if ending == "csv":
        lines = "\n".join(f"{one}.0,{one + 1}.0" for one in range(199))
        (tmp_path / "edges.csv").write_text(f"reader,film\n{lines}\n4.0,\n")
    notes = ingest_to_store(tmp_path, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    assert (graph.ids.to_arrow().to_pylist(), graph.num_edges) == (numbers, 199)
    assert notes[0] == "Edges go from column reader to column film."
    ingest_to_store(tmp_path / f"edges.{ending}", tmp_path / "alone")
    assert load_store(tmp_path / "alone").ids.to_arrow().to_pylist() == numbers
    large = pa.table({"src": [1.0, 2.0**60], "dst": [1.0, 2.0]})
    pq.write_table(large, tmp_path / "large.parquet")
    with pytest.raises(DataError, match="integers or text"):
        ingest_to_store(tmp_path / "large.parquet", tmp_path / "no")


def test_tables_that_are_swapped_or_misspelt_are_told_so(tmp_path: Path) -> None:
    persons = {"person": PADDED, "age": NUMBERS, "town": ["Ulm"] * 40}
    pq.write_table(pa.table(persons), tmp_path / "persons.parquet")
    pq.write_table(pa.table({"reader": PADDED, "film": PADDED}), tmp_path / "reads.parquet")
    swapped = TableOptions(nodes=tmp_path / "reads.parquet")
    with pytest.raises(DataError, match="The two tables seem to be swapped"):
        ingest_to_store(tmp_path / "persons.parquet", tmp_path / "store", options=swapped)
    # Small numbers of nodes look like ids that edges name: it is the ends that tell.
    right = TableOptions(nodes=tmp_path / "persons.parquet", label="kind")
    with pytest.raises(DataError, match="no column 'kind'") as told:
        ingest_to_store(tmp_path / "reads.parquet", tmp_path / "store", options=right)
    assert told.value.problem == "The node table has no column 'kind'."
    misspelt = TableOptions(nodes=tmp_path / "person.parquet")
    with pytest.raises(DataError, match=r"did you mean 'persons\.parquet'"):
        ingest_to_store(tmp_path / "reads.parquet", tmp_path / "store", options=misspelt)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_blanks_around_ids_of_edges_are_none(tmp_path: Path, ending: str) -> None:
    nodes = {"id": ["a", "b ", "c"], "age": [1, 2, 3]}
    edges = {"src": ["a", " c", "b "], "dst": ["c ", "a", "a"]}
    source = write_tables(tmp_path / "tables", nodes, edges, ending)
    graph, notes = build(tmp_path, source)
    assert graph.edge_index().T.tolist() == [[2, 0], [1, 0], [0, 2]]
    assert "Left blanks out around 2 ids of edges, to find the nodes they mean." in notes


def test_a_table_of_nodes_alone_is_told_what_is_missing(tmp_path: Path) -> None:
    nodes = {"person": PADDED, "age": NUMBERS, "town": ["Ulm"] * 40}
    pq.write_table(pa.table(nodes), tmp_path / "persons.parquet")
    with pytest.raises(DataError, match="no columns of the two ends") as told:
        ingest_to_store(tmp_path / "persons.parquet", tmp_path / "store")
    assert "name this table with --nodes" in told.value.fix
    swapped = TableOptions(src="persn")
    with pytest.raises(DataError, match="no column 'persn'"):
        ingest_to_store(tmp_path / "persons.parquet", tmp_path / "store", options=swapped)


def test_a_word_of_a_name_is_nearer_than_a_longer_word(tmp_path: Path) -> None:
    starts = {"id": PADDED}, {"started_at": PADDED, "start_station": PADDED, "end": PADDED}
    told = assert_fails(tmp_path, "no column 'start'", *starts, src="start")
    assert "did you mean 'start_station'" in told

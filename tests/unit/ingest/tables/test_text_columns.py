"""Text columns of numbers: which odd cells are gaps, and which are a way of writing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError
from siafu.graph import load_store
from siafu.ingest import TableOptions, ingest_to_store

NUMBERS = [f"{row / 10}" for row in range(400)]


def tables_with(folder: Path, cells: list[str], ending: str = "csv") -> Path:
    """Return a folder of tables whose nodes have a good feature, and these cells."""
    folder.mkdir()
    count = len(cells)
    nodes = pa.table({"id": range(count), "size": [1.5] * count, "code": cells})
    edges = pa.table({"src": [0, 1], "dst": [1, 2]})
    write = pa_csv.write_csv if ending == "csv" else pq.write_table
    write(nodes, folder / f"nodes.{ending}")
    write(edges, folder / f"edges.{ending}")
    return folder


HOUSES = [*NUMBERS[:380], *["40a", "40b"] * 5]
FEW = [*NUMBERS[:20], "oops"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("cells", [HOUSES, FEW], ids=lambda c: c[-1])
def test_codes_among_numbers_are_left_out_with_the_reason(
    tmp_path: Path, cells: list[str], ending: str
) -> None:
    source = tables_with(tmp_path / "tables", cells, ending)
    notes = ingest_to_store(source, tmp_path / "store")
    assert load_store(tmp_path / "store").num_features == 1
    assert any("mostly numbers, but" in note for note in notes)


MISTAKES = [*NUMBERS, "1,5", "oops", "x", "x"]
MARKS = [*NUMBERS[:90], "-", "?", "None", " na ", "N/a"]
HALF_MISSING = [*NUMBERS[:40], *["-"] * 10]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("cells", "gaps"), [(MISTAKES, 4), (MARKS, 5), (HALF_MISSING, 10)], ids=["x", "na", "-"]
)
def test_odd_cells_among_numbers_are_gaps(
    tmp_path: Path, cells: list[str], gaps: int, ending: str
) -> None:
    source = tables_with(tmp_path / "tables", cells, ending)
    notes = ingest_to_store(source, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    assert graph.schema is not None
    assert [(one.kind, one.gaps) for one in graph.schema.nodes] == [("number", 0), ("number", gaps)]
    np.testing.assert_array_equal(graph.x[: len(cells) - gaps, 1], np.float32(cells[:-gaps]))
    told = [note for note in notes if "'1,5' in data row 400" in note]
    assert len(told) == (cells is MISTAKES)


def test_odd_cells_beyond_the_first_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.ingest.tables.kinds.SAMPLE_ROWS", 100)
    monkeypatch.setattr("siafu.ingest.tables.kinds._ROWS_AT_ONCE", 100)
    source = tables_with(tmp_path / "tables", HOUSES, "parquet")
    with pytest.raises(DataError, match=r"'40a' in data row 380 .*; 10 such in 390 rows"):
        ingest_to_store(source, tmp_path / "store")
    ingest_to_store(source, tmp_path / "store", options=TableOptions(features=("size",)))
    assert load_store(tmp_path / "store").num_features == 1


def test_text_far_down_a_csv_column_of_numbers_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.ingest.tables.files._BLOCK_BYTES", 256)
    source = tables_with(tmp_path / "tables", [*NUMBERS, "oops", *NUMBERS])
    notes = ingest_to_store(source, tmp_path / "store")
    graph = load_store(tmp_path / "store")
    assert np.flatnonzero(np.isnan(graph.x[:, 1])).tolist() == [400]
    assert any("'oops' in data row 400" in note for note in notes)

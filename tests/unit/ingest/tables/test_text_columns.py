"""Text columns of numbers: which odd cells are mistakes, and which are a way of writing."""

from pathlib import Path

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


ICD = [*NUMBERS, *(f"V{row}" for row in range(4))]
HOUSES = [*NUMBERS[:380], *["40a", "40b"] * 5]
FEW = [*NUMBERS[:20], "oops"]
HALF_MISSING = [*NUMBERS[:40], *["-"] * 10]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("cells", [ICD, HOUSES, FEW, HALF_MISSING], ids=lambda c: c[-1])
def test_codes_among_numbers_are_left_out_with_a_note(
    tmp_path: Path, cells: list[str], ending: str
) -> None:
    source = tables_with(tmp_path / "tables", cells, ending)
    notes = ingest_to_store(source, tmp_path / "store")
    assert load_store(tmp_path / "store").num_features == 1
    assert any(note.startswith("code is text (first value that is no number") for note in notes)


MISTAKES = [*NUMBERS, "1,5", "oops", "x", "x"]
MARKS = [*NUMBERS[:90], "-", "?", "None", " na ", "N/a"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("cells", "seen"),
    [
        (MISTAKES, r"'1,5' in data row 400 .*; 4 such in 404 cells"),
        (MARKS, r"'-' in data row 90 .*; 5 such in 95 cells"),
    ],
    ids=["mistakes", "marks"],
)
def test_mistakes_among_numbers_are_refused(
    tmp_path: Path, cells: list[str], seen: str, ending: str
) -> None:
    source = tables_with(tmp_path / "tables", cells, ending)
    with pytest.raises(DataError, match=rf"cell that is none.\n  seen: column 'code': {seen}"):
        ingest_to_store(source, tmp_path / "store")


def test_odd_cells_are_counted_beyond_the_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.ingest.tables.columns._ROWS_AT_ONCE", 100)
    source = tables_with(tmp_path / "tables", ICD, "parquet")
    assert any("'V0', row 400" in note for note in ingest_to_store(source, tmp_path / "store"))


def test_naming_the_features_is_a_way_out(tmp_path: Path) -> None:
    source = tables_with(tmp_path / "tables", MISTAKES)
    with pytest.raises(DataError, match=r"siafu ingest SOURCE .* --features COLUMN,"):
        ingest_to_store(source, tmp_path / "store")
    ingest_to_store(source, tmp_path / "store", options=TableOptions(features=("size",)))
    assert load_store(tmp_path / "store").num_features == 1

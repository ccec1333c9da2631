"""Tables read within a budget: refused in words, the smallest named, the same store to the byte."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from siafu.errors import BudgetError, DataError
from siafu.ingest import TableOptions, ingest_to_store
from siafu.ingest.tables.budget import (
    edge_pieces,
    fit_tables,
    least_ingest_bytes,
    node_pieces,
    predict_ingest_bytes,
)
from siafu.memory import Budget, held_bytes
from siafu.options import read_bytes

NODES, EDGES = 3_000, 200_000
GB = 10**9


def write_graph(folder: Path, ending: str) -> Path:
    """Write tables of a graph with edge features, and return their folder."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    nodes = {"id": np.arange(NODES), "a": draw.standard_normal(NODES)}
    ends = draw.integers(0, NODES, (2, EDGES))
    edges = {"src": ends[0], "dst": ends[1], "w": draw.standard_normal(EDGES)}
    for name, columns in (("nodes", nodes), ("edges", edges)):
        table, file = pa.table(columns), folder / f"{name}.{ending}"
        if ending == "csv":
            pa_csv.write_csv(table, file)
        else:
            pq.write_table(table, file, row_group_size=20_000)
    return folder


def budget_named(error: BudgetError | DataError) -> Budget:
    found = re.search(r"give --memory ([0-9]+MB) or more", error.fix)
    assert found is not None, error.fix
    return Budget(most=read_bytes(found[1]))


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_what_is_refused_names_a_budget_that_works(tmp_path: Path, ending: str) -> None:
    source = write_graph(tmp_path / "tables", ending)
    plain, tight = tmp_path / "plain", tmp_path / "tight"
    ingest_to_store(source, plain)
    with pytest.raises(BudgetError, match="would not fit in memory") as caught:
        ingest_to_store(source, tight, budget=Budget(most=held_bytes() + 1000))
    assert not tight.exists()
    ingest_to_store(source, tight, budget=budget_named(caught.value))
    for path in plain.glob("*.npy"):
        assert (tight / path.name).read_bytes() == path.read_bytes(), path.name


def test_nodes_that_only_reading_tells_are_counted_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_graph(tmp_path / "tables", "csv")
    monkeypatch.setattr("siafu.ingest.tables.budget._NODE_BYTES", GB // NODES)
    with pytest.raises(BudgetError, match=f"tables of {NODES:,} nodes need") as caught:
        ingest_to_store(source, tmp_path / "store", budget=Budget(most=held_bytes() + GB // 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tables"]
    ingest_to_store(source, tmp_path / "store", budget=budget_named(caught.value))


def test_pieces_and_buckets_become_smaller_before_anything_is_refused() -> None:
    whole, num_nodes = TableOptions(), 10**6
    least = least_ingest_bytes(num_nodes, whole)
    assert least < predict_ingest_bytes(num_nodes, whole) / 3
    for room in (2 * least, least + 30_000_000):
        budget = Budget(most=held_bytes() + room)
        fitted = fit_tables(TableOptions(budget=budget), num_nodes)
        assert fitted.bucket_edges < whole.bucket_edges
        assert fitted.piece_edges < whole.piece_edges
        assert predict_ingest_bytes(num_nodes, fitted) <= room
        assert fitted.budget is None
    assert fit_tables(TableOptions(budget=Budget(most=held_bytes() + GB)), None).budget is not None


def test_wide_tables_are_read_in_fewer_rows() -> None:
    whole, small = TableOptions(), TableOptions(piece_edges=1 << 14)
    assert edge_pieces(whole, 3)["rows"] == 1 << 18
    assert edge_pieces(whole, 80)["rows"] < 1 << 15
    assert node_pieces(whole, 100)["rows"] == 1 << 15
    assert node_pieces(whole, 2_000)["rows"] == (1 << 18) * 24 // 2_000
    assert node_pieces(small, 10**9)["rows"] == 64
    assert small.piece_edges * 512 == node_pieces(small, 1)["decoded_bytes"]


def test_graphs_that_are_held_have_to_fit_too(tmp_path: Path) -> None:
    little = Budget(most=held_bytes() // 2)
    np.savez(tmp_path / "g.npz", edge_index=np.zeros((2, 5), int), x=np.zeros((3, 2)))
    for source, named in ((tmp_path / "g.npz", "npz"), ("planted:200", "built-in")):
        with pytest.raises(DataError, match=named) as caught:
            ingest_to_store(source, tmp_path / "store", budget=little)
        ingest_to_store(
            source, tmp_path / "store", budget=budget_named(caught.value), overwrite=True
        )

"""The fraud example from files to scores, at a small size: right ids, and better than by lot."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tests.command import Command
from tests.docs.pages import ROOT

pytest.importorskip("sklearn", reason="average precision of the example: pip install 'siafu[test]'")

EXAMPLE = ROOT / "examples" / "fraud"
CUSTOMERS = 3000


@pytest.fixture
def siafu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in a folder with the tables."""
    monkeypatch.chdir(tmp_path)
    sizes = ["--customers", str(CUSTOMERS), "--transactions", "30000"]
    made = [sys.executable, str(EXAMPLE / "make_data.py"), "data", *sizes]
    subprocess.run(made, cwd=tmp_path, check=True)
    return Command(tmp_path, monkeypatch, capsys)


def text_column(path: Path, name: str) -> list[str]:
    """Return a column of a CSV file as it is written."""
    options = pa_csv.ConvertOptions(column_types={name: "string"}, include_columns=[name])
    return pa_csv.read_csv(path, convert_options=options)[name].to_pylist()


def test_two_tables_lead_to_scores_of_new_customers(siafu: Command) -> None:
    tables = ["data/transactions.csv", "--nodes", "data/customers.csv", "--label", "is_fraud"]
    settings = ["--undirected", "--model", "sage", "--class-weights", "balanced", "--epochs", "40"]
    trained = siafu("train", *tables, *settings, "--out", "run", "--quiet")
    assert trained.code == 0, trained.err
    assert "average-precision" in trained.out
    new = ["--data", "data/new/transactions.csv", "--nodes", "data/new/customers.csv"]
    inferred = siafu("infer", "run", *new, "--out", "scores")
    assert inferred.code == 0, inferred.err

    scores = pq.read_table("scores")
    assert scores["id"].to_pylist() == text_column(Path("data/new/customers.csv"), "customer")
    assert scores["id"][0].as_py().startswith("00")
    sums = [a.as_py() + b.as_py() for a, b in zip(scores["p(0)"], scores["p(1)"], strict=True)]
    assert sums == pytest.approx([1.0] * CUSTOMERS, abs=1e-6)

    compare = [sys.executable, str(EXAMPLE / "boosting.py"), "data", "--scores", "scores"]
    told = subprocess.run(compare, capture_output=True, text=True, check=True).stdout
    assert [line.split("  ")[0] for line in told.splitlines()] == [
        "gradient boosting",
        "siafu",
        "a draw by lot",
    ]
    result = json.loads(Path("run/result.json").read_text())
    assert result["metric"] == "average-precision"
    assert result["score"]["train"] > 0.03  # 0.01 by lot

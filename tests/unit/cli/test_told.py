"""What users are told: scores, classes in their order, right plurals, why a run ended early."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import siafu as package
from siafu.record import counted, installed, shortened
from tests.command import Command


def fraud_tables(folder: Path) -> Path:
    """Write 40 accounts, one in four a fraud, in a circle."""
    folder.mkdir()
    ids = list(range(40))
    labels = ["fraud" if k % 4 == 0 else "ok" for k in ids]
    nodes = {"id": ids, "age": [float(k % 4) for k in ids], "label": labels}
    csv.write_csv(pa.table(nodes), folder / "nodes.csv")
    edges = {"src": ids, "dst": [(k + 1) % 40 for k in ids]}
    csv.write_csv(pa.table(edges), folder / "edges.csv")
    return folder


@pytest.mark.parametrize(
    ("count", "noun", "told"),
    [(1, "rank", "1 rank"), (2, "rank", "2 ranks"), (0, "epoch", "0 epochs")],
)
def test_one_is_no_plural(count: int, noun: str, told: str) -> None:
    assert counted(count, noun) == told


def test_long_lists_are_shortened() -> None:
    assert shortened(["a", "b", "c"], 2) == "a, b, and 1 more"
    assert shortened(["a", "b"], 2) == "a, b"


def test_version_is_told(siafu: Command) -> None:
    answer = siafu("--version")
    versions = [f"{name} {installed(name)}" for name in ("siafu", "torch")]
    assert (answer.code, answer.out.splitlines()[:2]) == (0, versions)
    assert answer.out.splitlines()[2].startswith(f"kernels numba {installed('numba')}")
    assert package.__version__ == installed("siafu")


def test_classes_are_told_in_their_order(siafu: Command) -> None:
    tables = fraud_tables(siafu.here / "tables")
    shown = siafu("ingest", tables, "store", "--split", "0.5,0.25").out
    assert "0 fraud (10), 1 ok (30)" in " ".join(shown.split())
    assert "1.0 on average, 1 at most" in " ".join(shown.split())
    rows = json.loads(siafu("inspect", "store", "--json").out)
    assert rows["classes in order"] == "0 fraud (10), 1 ok (30)"
    siafu("partition", "store", "one.parts", "--parts", 1)
    parts = json.loads(siafu("inspect", "one.parts", "--json").out)
    assert parts["classes in order"] == "0 fraud (10), 1 ok (30)"

    trained = siafu("train", "store", "--epochs", 1, "--out", "run")
    assert "Classes: 0 fraud (10), 1 ok (30)." in trained.err
    assert "halo (exact), 1 rank, 1 stage" in trained.out
    assert "one rank has nobody to send to" in trained.out


def test_classes_of_edges_are_told_and_scores_are_percentages(siafu: Command) -> None:
    answer = siafu("train", "drifting:40", "--model", "gcrn", "--epochs", 1, "--out", "run")
    assert answer.code == 0, answer
    assert "Classes of edges: 0 apart (" in answer.err
    assert " %" in answer.out
    assert "1 rank, 1 time block," in answer.out
    assert " %" in siafu("inspect", "run").out


def test_inspect_of_a_run_has_scores_and_the_settings_that_were_asked_for(siafu: Command) -> None:
    first = siafu("train", "planted:200", "--epochs", 2, "--lr", 0.02, "--out", "runs/a")
    assert first.code == 0, first
    assert siafu("train", "planted:200", "--epochs", 1, "--out", "runs/b").code == 0
    rows = json.loads(siafu("inspect", "runs/a", "--json").out)
    assert rows["settings"] == {"out": "runs/a", "epochs": 2, "lr": 0.02}
    assert rows["scores"]["val"].keys() == {"accuracy"}
    assert (rows["best_epoch"] in (1, 2), rows["epochs"], rows["finished"]) == (True, 2, True)
    assert rows["predictions"] == "runs/a/predictions"
    lines = [line.split() for line in siafu("inspect", "runs/a").out.splitlines()]
    order = [line[0] for line in lines if line]
    assert order[1:6] == ["kind", "state", "test", "validation", "training"]
    assert ["settings", "out=runs/a", "epochs=2", "lr=0.02"] in lines

    listed = json.loads(siafu("inspect", "runs", "--json").out)
    assert [run["run"] for run in listed["runs"]] == ["a", "b"]
    assert listed["runs"][0]["scores"].keys() == {"train", "val", "test"}
    text = siafu("inspect", "runs").out
    assert "accuracy" in text
    assert "%" in text


def test_an_unfinished_run_is_listed_with_its_last_scores(siafu: Command) -> None:
    assert siafu("train", "planted:200", "--epochs", 2, "--out", "runs/a").code == 0
    (siafu.here / "runs" / "a" / "result.json").unlink()
    assert "unfinished" in siafu("inspect", "runs").out
    rows = json.loads(siafu("inspect", "runs/a", "--json").out)
    assert (rows["epochs"], rows["state"]) == (2, "unfinished")
    assert rows["scores"].keys() == {"train", "val", "test"}


def test_patience_is_told_as_the_reason_of_the_end(siafu: Command) -> None:
    settings = ("--epochs", 9, "--patience", 2, "--lr", 1e-9, "--out", "run")
    answer = siafu("train", "planted:200", *settings)
    assert "(epoch 1 of 3) ended stopped after 3 epochs: no better for 2" in " ".join(
        answer.out.split()
    )
    result = json.loads((siafu.here / "run" / "result.json").read_text())
    assert result["stopped_by_patience"] == 2


@pytest.mark.usefixtures("runs_on_pool")
def test_bytes_are_told_in_words_with_their_sum(siafu: Command) -> None:
    told = " ".join(siafu("train", "planted:200", "--ranks", 2, "--epochs", 1).out.split())
    assert "between ranks in all: " in told
    assert "gradients of weights" in told
    assert "halo_" not in told


def test_settings_of_an_earlier_version_are_taken_by_their_new_names(siafu: Command) -> None:
    Path("old.yaml").write_text("data: planted:120\nvertex_parts: 1\nepochs: 1\nout: run\n")
    assert siafu("train", "old.yaml", "--quiet").code == 0
    assert "node_parts: 1" in Path("run/config.yaml").read_text()


def test_scores_of_several_targets_are_told_by_name(siafu: Command) -> None:
    rng = np.random.default_rng(0)
    values = {"price": rng.random(40) + 0.5, "rent": rng.random(40) * 9, "x": rng.random(40)}
    pq.write_table(pa.table({"id": np.arange(40), **values}), siafu.here / "homes.parquet")
    ends = rng.integers(0, 40, (2, 90))
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), siafu.here / "near.parquet")
    named = ("--nodes", "homes.parquet", "--label", "price,rent", "--task", "regression")
    answer = siafu("train", "near.parquet", *named, "--epochs", 2, "--quiet", "--out", "run")
    assert answer.code == 0, answer
    for text in (answer.out, siafu("inspect", "run").out):
        for target in ("price, test", "rent, test"):
            (line,) = [line for line in text.splitlines() if target in line]
            assert all(f" {name} " in line for name in ("rmse", "mae", "r2"))


def test_a_run_by_columns_is_told(siafu: Command) -> None:
    settings = ("--strategy", "columns", "--epochs", 1, "--hidden", 4, "--quiet", "--out", "run")
    answer = siafu("train", "planted:60", "--model", "sage", *settings)
    assert answer.code == 0, answer
    assert "columns (exact), 1 rank, by columns" in " ".join(answer.out.split())

"""`siafu infer`: predictions by the user's own ids, of a run's graph or another."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from siafu.ingest import load
from siafu.launch.local import run_ranks
from tests.command import Command
from tests.unit.cli.test_commands import result_of, text_tables


@pytest.mark.usefixtures("runs_on_pool")
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_predictions_carry_the_users_ids(siafu: Command, num_ranks: int) -> None:
    tables = text_tables(siafu.here / "tables")
    settings = ("--epochs", 12, "--out", "run", "--seed", 1, "--threads", 1)
    result = result_of(siafu, "train", tables, *settings, "--ranks", num_ranks)
    assert len(result["peak_mb"]) == num_ranks
    assert (sum(result["bytes_sent"].values()) > 0) is (num_ranks > 1)
    told = result_of(siafu, "infer", "run", "--out", "answers", "--embeddings")
    assert told["rows"] == 300
    by_id = _by_id(siafu.here / "answers")
    assert {row["id"] for row in by_id} == {f"node é{k}" for k in range(300)}
    nodes = {row["id"]: row for row in pq.read_table(tables / "nodes.parquet").to_pylist()}
    for row in by_id:
        assert row["label"] == nodes[row["id"]]["label"]
        assert row["split"] == nodes[row["id"]]["split"]
        assert len(row["embedding"]) == 64
    right = [row["prediction"] == row["label"] for row in by_id if row["split"] == "test"]
    assert np.mean(right) == pytest.approx(result["score"]["test"])
    of_training = _by_id(siafu.here / "run" / "predictions")
    assert [row["prediction"] for row in of_training] == [row["prediction"] for row in by_id]

    if num_ranks == 2:  # the same weights on one process, whose parts are the whole graph
        alone = result_of(siafu, "train", tables, *settings[:2], "--out", "one", *settings[4:])
        assert alone["losses"] == pytest.approx(result["losses"], rel=1e-5)
        result_of(siafu, "infer", "one", "--out", "alone", "--embeddings")
        for row, other in zip(by_id, _by_id(siafu.here / "alone"), strict=True):
            assert (row["id"], row["prediction"]) == (other["id"], other["prediction"])
            assert row["embedding"] == pytest.approx(other["embedding"], rel=1e-3, abs=1e-4)


def _by_id(folder: Path) -> list[dict]:
    return sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["id"])


def test_inference_on_another_graph_leaves_the_run_as_it_was(siafu: Command) -> None:
    result_of(siafu, "train", "planted:300", "--epochs", 3, "--out", "run")
    job = (siafu.here / "run" / "job.json").read_text()
    told = result_of(siafu, "infer", "run", "--data", "planted:250", "--out", "others")
    assert told["rows"] == 250
    assert (siafu.here / "run" / "job.json").read_text() == job
    assert result_of(siafu, "infer", "run", "--out", "own")["rows"] == 300
    made = {path.name for path in siafu.here.iterdir()}
    assert made == {".cache", "run", "others", "own"}


def test_predictions_of_two_runs_never_mix(siafu: Command) -> None:
    result_of(siafu, "train", "planted:300", "--epochs", 2, "--out", "run")
    (siafu.here / "answers").mkdir()
    result_of(siafu, "infer", "run", "--out", "answers")
    stray = siafu.here / "answers" / "part1.parquet"  # as a run of two ranks leaves it
    shutil.copy(siafu.here / "answers" / "part0.parquet", stray)
    refused = siafu("infer", "run", "--out", "answers")
    assert refused.code == 2
    assert "exists already" in refused.err
    assert "--overwrite" in refused.err
    told = result_of(siafu, "infer", "run", "--out", "answers", "--overwrite")
    assert told["rows"] == 300
    assert not stray.exists()
    refused = siafu("infer", "run", "--out", "run", "--overwrite")
    assert "more than predictions" in refused.err
    assert (siafu.here / "run" / "weights.safetensors").exists()


@pytest.mark.usefixtures("runs_on_pool")
def test_failed_rank_leaves_no_predictions(siafu: Command, monkeypatch) -> None:
    result_of(siafu, "train", "planted:300", "--epochs", 2, "--out", "run", "--ranks", 2)
    # Ranks of its own are to fail, not those of the pool.
    monkeypatch.setattr(importlib.import_module("siafu.launch.ranks"), "run_ranks", run_ranks)
    file = siafu.here / "run" / "data.parts" / "part1" / "x.npy"
    file.write_bytes(file.read_bytes()[:-4])
    before = {path.name for path in siafu.here.iterdir()}
    assert siafu("infer", "run", "--out", "answers").code == 2
    assert {path.name for path in siafu.here.iterdir()} == before


@pytest.mark.usefixtures("runs_on_pool")
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_inference_within_a_budget_answers_alike(siafu: Command, num_ranks: int) -> None:
    settings = ("--strategy", "batchgnn", "--fanout", "4,4", "--epochs", 2, "--threads", 1)
    result_of(siafu, "train", "planted:300", *settings, "--ranks", num_ranks, "--out", "run")
    result_of(siafu, "infer", "run", "--out", "plain")
    result_of(siafu, "infer", "run", "--out", "within", "--memory", "3GB")
    plain, within = (_by_id(siafu.here / name) for name in ("plain", "within"))
    assert [row["prediction"] for row in plain] == [row["prediction"] for row in within]


def test_ranks_refuse_a_budget_that_inference_does_not_fit(siafu: Command) -> None:
    settings = ("--strategy", "batchgnn", "--fanout", "4,4", "--epochs", 1, "--device", "cpu")
    result_of(siafu, "train", "planted:300", *settings, "--ranks", 2, "--out", "run")
    for memory, problem in (("1MB", "for any rank"), ("370MB", "to infer in"), ("5XB", "5XB")):
        told = siafu("infer", "run", "--out", "small", "--memory", memory)
        assert told.code == 2
        assert problem in told.err
    assert not (siafu.here / "small").exists()


def test_a_budget_tells_where_an_own_model_reads_more_than_its_pieces(siafu: Command) -> None:
    (siafu.here / "nets.py").write_text(
        "from torch import nn\n"
        "from torch_geometric.nn import GCNConv\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, in_channels, out_channels):\n"
        "        super().__init__()\n"
        "        self.one = GCNConv(in_channels, 8)\n"
        "        self.two = GCNConv(8, out_channels)\n\n"
        "    def forward(self, x, edge_index):\n"
        "        return self.two(self.one(x, edge_index).relu(), edge_index)\n"
    )
    settings = ("--strategy", "batchgnn", "--fanout", "4,4", "--epochs", 1, "--device", "cpu")
    for name, inference in (("run", "full"), ("unscored", "none")):
        own = ("--model", "nets.py:Net", "--inference", inference, "--out", name)
        result_of(siafu, "train", "planted:300", *settings, *own)
        told = siafu(
            "infer", name, "--model", "nets.py:Net", "--out", f"{name} within", "--memory", "3GB"
        )
        assert "Net reads more of the graph than 2 hops" in told.err
    told = siafu("infer", "run", "--model", "nets.py:Net", "--out", "whole")
    assert "reads more" not in told.err


def test_a_budget_for_inference_is_refused_where_it_means_nothing(siafu: Command) -> None:
    result_of(siafu, "train", "planted:300", "--epochs", 1, "--out", "run")
    told = siafu("infer", "run", "--out", "answers", "--memory", "3GB")
    assert told.code == 2
    assert "Only runs on minibatches" in told.err


def test_inference_on_other_features_is_refused(siafu: Command) -> None:
    result_of(siafu, "train", "planted:300", "--epochs", 2, "--out", "run")
    x = np.ones((5, 3), np.float32)
    edges = np.array([[0, 1], [1, 2]])
    np.savez(siafu.here / "narrow.npz", edge_index=edges, x=x, y=np.arange(5))
    answer = siafu("infer", "run", "--data", "narrow.npz", "--out", "answers")
    assert answer.code == 2
    assert "features do not fit" in answer.err
    assert "3 columns in narrow, the model was trained on 32" in answer.err
    assert not (siafu.here / "answers").exists()


def test_inference_needs_no_labels(siafu: Command) -> None:
    graph = load("planted:300")
    train = ("--epochs", 3, "--out", "run", "--split", "0.5,0.2")
    result_of(siafu, "train", "planted:300", *train)
    known = _by_id(siafu.here / "run" / "predictions")
    one_each = {"y": np.minimum(graph.y, 4)}
    many_each = {"y": np.eye(9, dtype=np.int64)[graph.y]}
    for name, labels in {"none": {}, "too few": one_each, "many": many_each}.items():
        np.savez(siafu.here / "new.npz", edge_index=graph.edge_index(), x=graph.x, **labels)
        result_of(siafu, "infer", "run", "--data", "new.npz", "--out", name)
        rows = _by_id(siafu.here / name)
        assert [row["prediction"] for row in rows] == [row["prediction"] for row in known], name
        assert "split" not in rows[0], name
        assert ("label" in rows[0]) is (name == "too few")


def test_moved_run_still_infers_and_resumes(siafu: Command) -> None:
    settings = ("--epochs", 4, "--checkpoint-every", 2, "--out", "run")
    result_of(siafu, "train", "planted:300", *settings)
    (siafu.here / "away").mkdir()
    (siafu.here / "run").rename(siafu.here / "away" / "moved")
    assert result_of(siafu, "infer", "away/moved", "--out", "answers")["rows"] == 300
    assert result_of(siafu, "train", "--resume", "away/moved", "--epochs", 5)["epochs"] == 5

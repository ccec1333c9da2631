"""Every command: what it prints for programs, what it writes, what comes back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.cli import demo
from siafu.ingest import load
from tests.command import Command

KEYS = {
    "rank_seconds",
    "traffic",
    "ended",
    "phases",
    "score",
    "quality",
    "metric",
    "best_epoch",
    "losses",
    "epochs",
    "stopped_by_patience",
    "seconds_per_epoch",
    "bytes_sent",
    "evaluation",
    "peak_mb",
    "ranks",
    "backend",
    "strategy",
    "choices",
    "exactness",
    "widths",
    "kept",
    "sampling",
    "pipeline",
    "bill",
    "model",
    "data",
    "run",
}
PURPOSES = {
    "halo_forward",
    "halo_refetch",
    "host",
    "halo_backward",
    "column_forward",
    "column_backward",
    "gradient",
    "sample",
    "feature",
    "metric",
    "norm",
    "control",
}


def result_of(siafu: Command, *arguments: object) -> dict:
    answer = siafu(*arguments, "--json")
    assert answer.code == 0, answer
    lines = answer.out.splitlines()
    assert len(lines) == 1, "stdout is for the result alone"
    return json.loads(lines[0])


def text_tables(folder: Path) -> Path:
    """The built-in graph as Parquet tables whose ids are text."""
    graph = load("planted:300")
    folder.mkdir()
    names = np.array([f"node é{row * 7 % 300}" for row in range(300)])
    dst = np.repeat(np.arange(300), np.diff(graph.indptr))
    split = np.select([graph.train, graph.val], ["train", "val"], "test")
    columns = {f"f{k}": graph.x[:, k] for k in range(graph.x.shape[1])}
    nodes = {"id": names, "label": graph.y, "split": split, **columns}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    pq.write_table(pa.table({"src": names[graph.src], "dst": names[dst]}), folder / "edges.parquet")
    return folder


def test_doctor_names_versions_and_fast_paths(siafu: Command) -> None:
    rows = result_of(siafu, "doctor")
    assert {"python", "torch", "cores", "memory", "device", "METIS", "network"} <= rows.keys()
    assert "fast path: numba" in rows
    assert "torch" in siafu("doctor").out


def test_ingest_partition_and_inspect(siafu: Command) -> None:
    store = result_of(siafu, "ingest", text_tables(siafu.here / "tables"), "store")
    assert store["kind"] == "store"
    assert (store["nodes"], store["classes"], store["features"]) == (300, 7, 32)
    assert store["masks"] == {"train": 180, "val": 60, "test": 60}
    assert result_of(siafu, "inspect", "store", "--verify") == store

    quality = result_of(siafu, "partition", "store", "two.parts", "--parts", 2)
    assert {"cut edges", "halo rows", "balance", "traffic a layer"} <= quality.keys()
    parts = result_of(siafu, "inspect", "two.parts", "--verify")
    assert (parts["kind"], parts["parts"]) == ("parts", 2)
    assert parts["num_nodes"] == 300
    assert "two.parts" in siafu("inspect", "two.parts").out

    again = siafu("ingest", "planted:200", "store", "--overwrite", "--split", "20,5", "--json")
    assert json.loads(again.out)["masks"]["train"] == 140


def test_inspect_counts_edge_types(siafu: Command) -> None:
    store = result_of(siafu, "ingest", "relations", "store")
    assert store["edge types"] == 3
    assert list(store["edges a type"]) == ["same", "next", "previous"]
    assert sum(store["edges a type"].values()) == store["edges"]
    result_of(siafu, "partition", "store", "three.parts", "--parts", 3)
    parts = result_of(siafu, "inspect", "three.parts", "--verify")
    assert parts["edges a type"] == store["edges a type"]
    assert "previous" in siafu("inspect", "store").out

    edges = {"src": range(20), "dst": range(20), "kind": [f"r{k:02}" for k in range(20)]}
    pq.write_table(pa.table({k: list(v) for k, v in edges.items()}), siafu.here / "e.parquet")
    many = result_of(siafu, "ingest", "e.parquet", "many", "--edge-type", "kind")
    assert many["edge types"] == 20
    assert list(many["edges a type"].items())[-2:] == [("r07", 1), ("and 12 more types", 12)]
    plain = result_of(siafu, "ingest", "e.parquet", "plain")
    assert plain["edge types"] == 0
    assert "edges a type" not in plain


def test_undirected_adds_reverse_edges(siafu: Command) -> None:
    np.savez(siafu.here / "line.npz", edge_index=np.array([[0, 1, 1], [1, 2, 0]]))
    assert result_of(siafu, "ingest", "line.npz", "plain")["edges"] == 3
    assert result_of(siafu, "ingest", "line.npz", "both", "--undirected")["edges"] == 4


def test_training_reports_every_documented_key(siafu: Command) -> None:
    result = result_of(siafu, "train", "planted:300", "--epochs", 4, "--quiet")
    assert result.keys() == KEYS
    assert result["score"].keys() == {"train", "val", "test"}
    assert result["bytes_sent"].keys() == PURPOSES
    assert sum(result["bytes_sent"].values()) == 0
    assert len(result["losses"]) == result["epochs"] == 4
    assert len(result["peak_mb"]) == 1
    assert result["peak_mb"][0] > 50
    assert (result["strategy"], result["exactness"]) == ("halo", "exact")
    run = siafu.here / result["run"]
    phases = result.pop("phases")
    assert {"cutting", "training", "evaluating", "writing predictions"} <= phases.keys()
    assert json.loads((run / "result.json").read_text()) == result
    written = {path.name for path in run.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "weights.safetensors"} <= written

    shown = result_of(siafu, "inspect", result["run"], "--verify")
    assert (shown["kind"], shown["epochs"], shown["finished"]) == ("run", 4, True)
    text = siafu("train", "planted:300", "--epochs", 2).out
    assert "accuracy" in text
    assert "halo (exact), 1 rank," in text


def test_brackets_in_a_folder_name_are_printed_as_they_are(siafu: Command) -> None:
    answer = siafu("train", "planted:200", "--epochs", 1, "--out", "r[/a]:ant:")
    assert answer.code == 0, answer
    assert "r[/a]:ant:" in answer.out
    assert "r[/a]:ant:" in siafu("inspect", "r[/a]:ant:").out


@pytest.mark.usefixtures("runs_on_pool")
def test_demo_fails_where_losses_differ(siafu: Command, monkeypatch) -> None:
    monkeypatch.setattr(demo, "SAME_WITHIN", -1.0)
    answer = siafu("demo", "--ranks", 2, "--epochs", 2)
    assert answer.code == 1
    assert "losses are NOT the same" in answer.out


def test_flags_come_before_the_file(siafu: Command) -> None:
    (siafu.here / "run.yaml").write_text("data: planted:300\nepochs: 9\nhidden: 8\nmodel: sage\n")
    result = result_of(siafu, "train", "run.yaml", "--epochs", 2, "--no-residual")
    assert (result["epochs"], result["model"]) == (2, "sage")
    written = (siafu.here / result["run"] / "config.yaml").read_text()
    assert "hidden: 8" in written
    assert "epochs: 2" in written


def test_config_of_a_run_starts_the_same_run(siafu: Command) -> None:
    first = result_of(siafu, "train", "planted:300", "--epochs", 3, "--lr", 0.02, "--seed", 5)
    again = result_of(siafu, "train", Path(first["run"]) / "config.yaml")
    assert again["losses"] == first["losses"]
    assert again["run"] != first["run"]


def test_resume_keeps_settings_but_may_go_further(siafu: Command) -> None:
    settings = ("--epochs", 6, "--checkpoint-every", 4, "--out", "run", "--hidden", 8)
    result_of(siafu, "train", "planted:300", *settings)
    before = (siafu.here / "run" / "config.yaml").read_text()
    refused = siafu("train", "--resume", "run", "--hidden", 16, "--lr", 0.5)
    assert refused.code == 2
    assert "--resume with hidden, lr" in refused.err
    assert (siafu.here / "run" / "config.yaml").read_text() == before
    assert result_of(siafu, "train", "--resume", "run", "--epochs", 8)["epochs"] == 8
    straight = result_of(
        siafu, "train", "planted:300", *settings[2:4], "--hidden", 8, "--epochs", 8
    )
    assert (
        json.loads((siafu.here / "run" / "result.json").read_text())["losses"]
        == (straight["losses"])
    )


def test_resume_with_other_data_is_refused(siafu: Command) -> None:
    refused = siafu("train", "planted:200", "--resume", "run")
    assert refused.code == 2
    assert "planted:200 with --resume run" in refused.err


def test_parts_are_used_as_they_were_cut(siafu: Command) -> None:
    result_of(siafu, "partition", "planted:300", "cut", "--parts", 1)
    for flag in (("--undirected",), ("--split", "0.5,0.2"), ("--partition", "hash")):
        refused = siafu("train", "cut", "--epochs", 1, *flag)
        assert refused.code == 2
        assert f"{flag[0]} with the parts in cut" in refused.err
    assert not (siafu.here / "runs").exists()
    result = result_of(siafu, "train", "cut", "--epochs", 1)
    assert result_of(siafu, "train", Path(result["run"]) / "config.yaml")["epochs"] == 1


def test_resume_without_a_checkpoint_changes_nothing(siafu: Command) -> None:
    result_of(siafu, "train", "planted:300", "--epochs", 2, "--out", "run", "--checkpoint-every", 0)
    before = (siafu.here / "run" / "config.yaml").read_text()
    refused = siafu("train", "--resume", "run", "--epochs", 8)
    assert refused.code == 2
    assert "no checkpoint" in refused.err
    assert (siafu.here / "run" / "config.yaml").read_text() == before


def test_multi_label_data_is_scored_by_micro_f1(siafu: Command) -> None:
    graph = load("planted:300")
    y = np.eye(7, dtype=np.int64)[graph.y]
    y[np.arange(300), (graph.y + 1) % 7] = graph.y % 2
    dst = np.repeat(np.arange(300), np.diff(graph.indptr))
    np.savez(siafu.here / "many.npz", edge_index=np.stack([graph.src, dst]), x=graph.x, y=y)
    result = result_of(siafu, "train", "many.npz", "--epochs", 30, "--out", "run")
    assert result["metric"] == "micro-f1"
    rows = pq.read_table(siafu.here / "run" / "predictions").to_pylist()
    test = [row for row in rows if row["split"] == "test"]
    said = np.array([[k in row["prediction"] for k in range(7)] for row in test])
    true = np.array([y[row["id"]] > 0 for row in test])
    score = 2 * (said & true).sum() / (said.sum() + true.sum())
    assert result["score"]["test"] == pytest.approx(score)


def under_torchrun(*arguments: object) -> dict:
    torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", "2"]
    finished = subprocess.run(
        [*torchrun, "-m", "siafu", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert len(lines) == 1, "only one rank prints"
    return json.loads(lines[0])


@pytest.mark.usefixtures("runs_on_pool")
def test_torchrun_gives_the_same_losses_and_resumes(siafu: Command) -> None:
    arguments = ("train", "planted:600", "--threads", 1, "--checkpoint-every", 3)
    local = result_of(siafu, *arguments, "--ranks", 2, "--epochs", 7)
    first = under_torchrun(*arguments, "--epochs", 5, "--out", "under")
    assert first["ranks"] == 2
    assert first["losses"] == local["losses"][:5]
    resumed = under_torchrun("train", "--resume", "under", "--epochs", 7)
    assert resumed["losses"] == local["losses"]
    assert resumed["score"] == local["score"]
    metrics = (siafu.here / "under" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in metrics] == list(range(1, 8))


def test_help_lists_every_command(siafu: Command) -> None:
    answer = siafu("--help")
    assert answer.code == 0
    for command in (
        "demo",
        "doctor",
        "ingest",
        "partition",
        "inspect",
        "train",
        "infer",
        "cache",
        "runs",
    ):
        assert command in answer.out


def test_help_of_train_shows_what_tables_need(siafu: Command) -> None:
    text = siafu("train", "--help").out
    most = text.partition("Settings people use most")[2].partition("All other settings")
    for flag in ("node-id", "src", "dst", "features", "label", "edge-label", "class-weights"):
        assert f" --{flag} " in most[0]
    assert {"--metric", "--patience"} <= set(most[0].split())
    assert "Data:" not in most[2], "a head without settings"
    assert "Columns of tables: --label-as" in most[2]

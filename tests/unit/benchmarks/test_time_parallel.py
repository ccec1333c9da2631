"""What 128 GPUs would do is predicted from seconds of a GPU alone, those of the engine if known."""

import json
from pathlib import Path

import pytest

from benchmarks import elsewhere
from benchmarks.table_time import runs_of
from benchmarks.time_parallel import checked, predictions_of
from siafu.ingest import drifting, graph_from_events


def test_nothing_is_predicted_from_seconds_of_a_cpu() -> None:
    graph = graph_from_events(drifting(30, num_steps=4), window="each", edge_life=3)[0]
    row = {"model": "tm-gcn", "ranks": 1, "block": 0, "epoch_seconds": 0.5}
    assert predictions_of([row], graph, "cpu") == []
    found = predictions_of([row], graph, "cuda")
    assert [each["exchange"] for each in found] == ["all-to-all", "banded"]
    assert all(each["speed_up"] > 1 for each in found)


def test_seconds_of_a_snapshot_are_the_engines_where_it_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, told = elsewhere.machines()["cuda"], tmp_path / "engine.jsonl"
    monkeypatch.setattr(elsewhere, "ENGINE", told)
    assert elsewhere.measured_share(gpu, "cd-gcn")[1] == "delta_transfer"
    facts = {"device": "cuda", "nodes": 200_000, "snapshots": 32, "band": 20}
    row = {"model": "cd-gcn", "ranks": 1, "block": 0, "edges": 1_500_000, "epoch_seconds": 0.5}
    smaller = {**facts, "nodes": 20_000, "rows": [{**row, "epoch_seconds": 9.0}]}
    lines = [{**facts, "rows": [{**row, "epoch_seconds": 9.0}]}, {**facts, "rows": [row]}, smaller]
    told.write_text("".join(json.dumps(line) + "\n" for line in lines))
    share, measured_by = elsewhere.measured_share(gpu, "cd-gcn")
    assert measured_by == "time_parallel"
    (found,) = (each for each in elsewhere.dynamic(gpu) if each["model"] == "cd-gcn")
    by_kernels = found["seconds_on_1_by_kernels"]
    assert found["seconds_on_1"] == pytest.approx(share * by_kernels, abs=0.01)
    assert elsewhere.measured_share(gpu, "tm-gcn")[1] == "delta_transfer"


def test_figures_count_only_with_the_gradient_of_one_rank() -> None:
    row = {"model": "tm-gcn", "wire": "32", "losses": [1.0], "gradient": 0.5}
    truth: dict[str, list[float]] = {}
    assert checked(dict(row), truth) == {"model": "tm-gcn", "wire": "32"}
    with pytest.raises(SystemExit, match="gradient"):
        checked({**row, "gradient": 0.51}, truth)


def test_lines_of_a_run_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"run": "a", "rows": [1]}, {"rows": [2]}, {"run": "a", "rows": [3]}, {"rows": [4]}]
    monkeypatch.setattr("benchmarks.table_time.rows_of", lambda name: lines)
    assert [run["rows"] for run in runs_of("any")] == [[1, 3], [2], [4]]

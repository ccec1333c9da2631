"""What 128 GPUs would do is predicted from seconds of a GPU alone, those of the engine if known."""

import json
from pathlib import Path

import pytest

from benchmarks import elsewhere
from benchmarks.table_time import scaling_table
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


def line(run: str, nodes: int, *rows: tuple[str, str, int, str, float, bool]) -> dict:
    """Return a line of the benchmark's file: model, exchange, ranks, overlap, seconds, kept."""
    usual = {"block": 0, "node_parts": 1, "wire": "32", "peak_mb": 100.4}
    names = ("model", "exchange", "ranks", "overlap", "epoch_seconds", "kept")
    told = [{**usual, **dict(zip(names, row, strict=True))} for row in rows]
    return {"run": run, "nodes": nodes, "snapshots": 32, "band": 20, "rows": told}


def test_ranks_of_both_sizes_stand_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"nodes": 20_000, "snapshots": 32, "rows": []},
        line("a", 20_000, ("tm-gcn", "auto", 1, "on", 8.0, False)),
        line("a", 20_000, ("tm-gcn", "all-to-all", 2, "on", 2.0, True)),
        line("a", 20_000, ("tm-gcn", "all-to-all", 2, "off", 4.0, True)),
        line("a", 20_000, ("tm-gcn", "all-to-all", 8, "on", 0.5, True)),
        line("b", 20_000, ("tm-gcn", "auto", 1, "on", 6.0, False)),
        line("b", 20_000, ("tm-gcn", "all-to-all", 16, "on", 0.25, True)),
        line("c", 200_000, ("cd-gcn", "auto", 1, "on", 9.0, True)),
        line("c", 200_000, ("cd-gcn", "wavefront", 2, "on", 6.0, True)),
    ]
    monkeypatch.setattr("benchmarks.table_time.rows_of", lambda name: lines)
    rows = [text.split(" | ") for text in scaling_table().splitlines() if text.startswith("| 2")]
    assert [row[:4] for row in rows] == [
        ["| 20,000", "32", "tm-gcn, band 20", "all-to-all, no overlap"],
        ["| 20,000", "32", "tm-gcn, band 20", "all-to-all, overlap"],
        ["| 200,000", "32", "cd-gcn", "wavefront"],
    ]
    # Of one rank the newest; what others are beside it is by their own run.
    assert rows[0][4:] == ["6.00 s*, 100 MB", "4.00 s, 100 MB, 2.0 x faster", "-", "- |"]
    assert rows[1][4:6] == ["6.00 s*, 100 MB", "2.00 s, 100 MB, 4.0 x faster"]
    assert rows[1][6:] == [
        "0.50 s, 100 MB, 16 x faster (4.0 x faster than 2)",
        "0.25 s, 100 MB, 24 x faster |",
    ]
    assert rows[2][4:6] == ["9.00 s, 100 MB", "6.00 s, 100 MB, 1.50 x faster"]
    assert "anew from deltas" in scaling_table()


def test_the_table_of_ranks_takes_what_was_measured() -> None:
    text = scaling_table()
    assert "| 20,000 | 32 | cd-gcn | wavefront |" in text
    assert "overlap |" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1

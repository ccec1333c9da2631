"""A run with a simulated pool tells what the cluster it stands for would take."""

from pathlib import Path

import pytest

from siafu.ingest import load
from siafu.partitioning import partition_graph
from tests.harness import RankPool
from tests.unit.engine.runs import run_engine

EPOCHS, RANKS = 3, 2
SETTINGS = {
    "strategy": "dorylus",
    "pool": "simulated",
    "pool_workers": "2",
    "intervals": 3,
    "epochs": EPOCHS,
    "hidden": 8,
    "input_dropout": 0.5,
    "inference": "none",
}


def test_time_and_money_are_those_of_a_cluster(ranks: RankPool, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(load("planted:200"), parts, num_parts=RANKS, method="hash")
    found = {}
    for cloud in ("0ms", "500ms"):
        settings = {**SETTINGS, "cloud": cloud}
        told = ranks.run(run_engine, RANKS, parts, tmp_path / cloud, False, settings)
        found[cloud] = [one["summary"] for one in told]
    near, far = (found[cloud][0] for cloud in ("0ms", "500ms"))
    cluster = far["pipeline"]["cluster"]
    assert cluster == found["500ms"][1]["pipeline"]["cluster"]
    # As many calls as were made here, and no epoch shorter than the latencies that follow in turn.
    again = near["pipeline"]["relaunched"]  # on a busy machine some take too long
    assert cluster["requests"] == (near["pipeline"]["requests"] - again) / EPOCHS
    assert cluster["epoch_seconds"] > 2 * 3 * 0.5
    assert near["pipeline"]["cluster"]["epoch_seconds"] < cluster["epoch_seconds"]
    for run in (near, far):
        each = run["pipeline"]["cluster"]
        assert run["bill"]["seconds"] == pytest.approx(EPOCHS * each["epoch_seconds"])
        assert run["bill"]["usage"]["requests"] == EPOCHS * each["requests"]
        assert "simulated cluster" in run["bill"]["rows"]["  time"]


def test_other_pools_are_billed_by_the_clock(ranks: RankPool, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(load("planted:200"), parts, num_parts=1, method="hash")
    settings = {**SETTINGS, "pool": "none", "pool_workers": "1"}
    told = ranks.run(run_engine, 1, parts, tmp_path / "run", False, settings)[0]["summary"]
    assert "cluster" not in told["pipeline"]

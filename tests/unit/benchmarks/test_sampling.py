"""Sampling beside peers: who answers what, and a peer that can't."""

import sys
from pathlib import Path

import pytest

from benchmarks.sampling import Turn, here, measure, peer_of


def test_sides_are_compared_by_time_and_by_edges() -> None:
    sides = {
        "ours": lambda n: Turn(wall=0.010, cpu=0.008, edges=1000),
        "dgl": lambda n: Turn(wall=0.030, cpu=0.024, edges=1500),
    }
    row = measure(sides, repeats=3)
    assert row["dgl / ours"] == 3
    assert row["dgl / ours, cpu"] == 3
    assert row["ours / dgl, edges_per_cpu_s"] == 2, "the peer draws more edges in its time"
    assert row["ours samples"] == 3
    assert here(lambda n: n + 1)(4).edges == 5


def test_a_peer_that_is_not_installed_ends_the_benchmark(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(SystemExit, match="did not answer"),
        peer_of("nobody", Path(sys.executable), tmp_path / "none.npz"),
    ):
        pytest.fail("there is no such peer")
    assert "FileNotFoundError" in capfd.readouterr().err

"""Sampling beside peers: who answers what, and a peer that can't."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.sampling import Peer, Turn, here, measure, peer_of
from benchmarks.sampling_peer import Task, whole_batches


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


def test_a_peer_that_dies_between_minibatches_ends_the_benchmark(
    capfd: pytest.CaptureFixture[str],
) -> None:
    dies = 'import sys; print(\'{"peer": "mine"}\', flush=True); sys.exit("out of memory")'
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", dies], stdin=pipe, stdout=pipe, bufsize=0
    ) as process:
        peer = Peer(process)
        process.wait(timeout=60)
        with pytest.raises(SystemExit, match="did not answer"):
            peer(0)
    assert "out of memory" in capfd.readouterr().err


@pytest.mark.parametrize(("seeds", "batches"), [(4, 1), (7, 1), (8, 2), (9, 2)])
def test_minibatches_are_all_that_are_whole(seeds: int, batches: int) -> None:
    order = torch.arange(seeds)
    assert [len(batch) for batch in whole_batches(order, 4)] == [4] * batches
    drawn = Task(order, order, order, fanouts=[1], batch_size=4).seeds()
    firsts = [int(batch[0]) for batch in itertools.islice(drawn, 3)]
    assert firsts == ([0, 0, 0] if batches == 1 else [0, 4, 0])


def test_seeds_that_fill_no_minibatch_are_refused() -> None:
    with pytest.raises(SystemExit, match="3 seeds don't fill a minibatch of 4"):
        whole_batches(torch.arange(3), 4)

"""Ranks on the nodes of a real Ray cluster: the same losses as local ones, and errors that tell."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from siafu.errors import PoolError
from siafu.launch import fit
from tests.command import start
from tests.ray.conftest import TwoNodes, wait_until

SETTINGS = {"ranks": 2, "epochs": 5, "seed": 3, "hidden": 16, "threads": 1}


def ranks_now() -> list[psutil.Process]:
    """Return the processes of ranks that Ray started, by rank."""
    found = []
    for process in psutil.process_iter():
        try:
            if "siafu.launch" in process.cmdline() and "RAY_JOB_ID" in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: int(process.environ()["RANK"]))


def wait_for_epochs(command: subprocess.Popen[str], run: Path, epochs: int) -> None:
    metrics = run / "metrics.jsonl"

    def done() -> bool:
        assert command.poll() is None, command.communicate()
        return metrics.exists() and metrics.read_text().count("\n") >= epochs

    wait_until(done, f"epoch {epochs}")


@pytest.fixture
def endless(nodes: TwoNodes, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A training on both nodes that runs until something ends it, and its folder."""
    run = tmp_path / "run"
    flags = ("--ranks", 2, "--epochs", 100_000, "--threads", 1, "--checkpoint-every", 5)
    where = ("--launcher", "ray", "--ray-address", nodes.address, "--out", run)
    command = start("train", "planted:600", *flags, *where, here=tmp_path)
    wait_for_epochs(command, run, 6)
    yield command, run
    command.kill()
    command.communicate()


def test_ranks_on_two_nodes_train_as_local_ones_do(joined: TwoNodes, tmp_path: Path) -> None:
    local = fit("planted:300", out=str(tmp_path / "local"), **SETTINGS)
    on_ray = fit(
        "planted:300",
        out=str(tmp_path / "ray"),
        launcher="ray",
        ray_address=joined.address,
        **SETTINGS,
    )
    assert on_ray.result["losses"] == pytest.approx(local.result["losses"], abs=1e-6)
    assert on_ray.accuracy == local.accuracy
    assert not ranks_now()


def test_cluster_that_is_too_small_is_told(joined: TwoNodes, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="its 2 nodes hold 4"):
        fit("planted:300", ranks=5, launcher="ray", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_killed_rank_ends_the_run_and_is_named(
    endless: tuple[subprocess.Popen[str], Path],
) -> None:
    command, _ = endless
    ranks = ranks_now()
    assert len(ranks) == 2
    assert {rank.environ()["LOCAL_WORLD_SIZE"] for rank in ranks} == {"1"}, "one on each node"
    ranks[1].kill()
    _, err = command.communicate(timeout=30)
    assert command.returncode == 2
    assert "Rank 1 was killed" in err
    assert "SIGKILL" in err
    assert "--resume" in err
    assert "Traceback" not in err
    assert not ranks_now()


def test_interrupt_ends_all_ranks(endless: tuple[subprocess.Popen[str], Path]) -> None:
    command, run = endless
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=30)
    assert command.returncode == 130
    assert f"siafu train --resume {run}" in err
    assert "Traceback" not in err
    assert not ranks_now()


def test_killed_node_ends_the_run_and_names_its_rank(
    endless: tuple[subprocess.Popen[str], Path], nodes: TwoNodes
) -> None:
    command, run = endless
    nodes.kill_second()
    _, err = command.communicate(timeout=60)
    assert command.returncode == 2
    assert "was lost; the others were stopped" in err
    assert f"siafu train --resume {run}" in err
    assert "Traceback" not in err
    wait_until(lambda: not ranks_now(), "the ranks to end")
    nodes.replace_second()

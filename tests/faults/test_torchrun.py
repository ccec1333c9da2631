"""Ranks that torchrun starts again go on with the run that the earlier ones began."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Command

MODEL = f"{Path(__file__).with_name('own_models.py')}:KilledInFirstAttempt"
SETTINGS = ("--model", MODEL, "--epochs", 8, "--checkpoint-every", 2, "--threads", 1)
ENDS_WITHIN = 300.0
"""Each attempt imports torch in every rank; the machine may be busy with other tests."""


@pytest.mark.usefixtures("runs_on_pool")
def test_run_whose_rank_was_killed_ends_as_if_unbroken(siafu: Command, tmp_path: Path) -> None:
    data = ("train", "planted:300", "--partition", "hash", *SETTINGS, "--json", "--quiet")
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 3]
    command = [*agent, "--max-restarts", 2, "-m", "siafu", *data, "--out", "restarted"]
    ended = subprocess.run(
        [*map(str, command)],
        cwd=tmp_path,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "SIGKILL" in ended.stderr or "-9" in ended.stderr, "torchrun tells of the first attempt"
    got = json.loads((tmp_path / "restarted" / "result.json").read_text())
    answer = siafu(*data, "--ranks", 3, "--out", "unbroken")
    assert answer.code == 0, answer
    assert got["losses"] == json.loads(answer.out.splitlines()[-1])["losses"]
    rows = (tmp_path / "restarted" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == list(range(1, 9))


def test_ranks_that_do_not_see_the_run_go_on_with_it_and_infer(tmp_path: Path) -> None:
    script = Path(__file__).with_name("apart_script.py")
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    ended = subprocess.run(
        [*map(str, (*agent, script, tmp_path))],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = (tmp_path / "disk0/run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    told = [json.loads((tmp_path / f"disk{rank}/rows.json").read_text()) for rank in (0, 1)]
    assert told == [300, 0]

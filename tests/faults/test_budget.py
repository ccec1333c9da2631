"""`--memory` in a control group that ends whoever takes more: cutting, training and scores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cgroup import NoGroupError, limited
from benchmarks.synthetic import write_store

MIB = 1 << 20


def test_cut_and_training_live_within_an_enforced_budget(tmp_path: Path) -> None:
    store, parts, run = (tmp_path / name for name in ("big.store", "big.parts", "run"))
    write_store(store, nodes=150_000, edges=600_000, features=256)
    cut = ["partition", store, parts, "--parts", 1, "--method", "streaming", "--memory", "800MiB"]
    train = ["train", parts, "--model", "sage", "--strategy", "batchgnn", "--memory", "1000MB"]
    train += ["--fanout", "5,5", "--epochs", 1, "--out", run]
    try:
        # The process that starts the rank has libraries of its own beside the rank's budget.
        for limit, words in ((800 * MIB, cut), (1400 * MIB, train)):
            with limited(limit) as group:
                command = [sys.executable, "-m", "siafu", *map(str, words), "--quiet"]
                done = subprocess.run(
                    group.command(command), capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, done.stderr[-2000:]
    except NoGroupError as error:
        pytest.skip(str(error))
    assert json.loads((run / "result.json").read_text())["score"]["test"] > 0

"""Every fault at every moment in every engine: named in bounded time, nothing lost, nothing left.

One run per engine meets them one after another, each where the one before left it, and must end to
the bit as a run that met none.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import siafu
from siafu.checkpoint import checkpoints_in
from siafu.errors import SiafuError
from siafu.launch import local, warm
from tests.faults.faulty_ranks import FIT

ENDS_WITHIN = 60.0
"""Well below the deadline of a run's waits."""
EPOCHS = 8
STATIC: dict[str, Any] = {"data": "planted:120", "partition": "hash", "hidden": 8}
ENGINES: dict[str, dict[str, Any]] = {
    "halo": STATIC,
    "sar": {**STATIC, "strategy": "sar", "model": "gat"},
    "columns": {**STATIC, "strategy": "columns"},
    "adaqp": {**STATIC, "strategy": "adaqp", "wire_period": 3},
    "batchgnn": {**STATIC, "strategy": "batchgnn", "model": "sage", "batch_size": 8},
    "dorylus": {**STATIC, "strategy": "dorylus", "pool": "none", "intervals": 2},
    "dynamic": {"data": "drifting:40", "model": "tm-gcn", "hidden": 8},
}
NAMED = {
    "kill": "Rank {rank} was killed",
    "stop": "rank {rank}",
    "raise": "Rank {rank} failed; the others were stopped.*ZeroDivisionError: a mistake while",
    "full": "The disk is full",
    "unwritable": "No permission to write there",
}
FAULTS = (
    # kind, moment, rank
    ("kill", "prepare", 0),
    ("kill", "start", 1),
    ("raise", "start", 0),
    ("stop", "start", 1),
    ("kill", "epoch", 1),
    ("raise", "epoch", 1),
    ("stop", "epoch", 1),
    ("kill", "saving", 0),
    ("full", "saving", 0),
    ("damage", "saving", 1),
    ("raise", "saving", 0),
    ("stop", "saving", 0),
    ("kill", "predicting", 1),
    ("unwritable", "predicting", 1),
    ("raise", "predicting", 0),
    ("stop", "predicting", 1),
)
ALIKE = [
    (kind, moment) for kind in ("raise", "stop") for moment in ("start", "saving", "predicting")
]
"""What these reach is the same code in all engines: for one engine."""


@pytest.fixture(scope="module")
def forks() -> Iterator[warm.WarmProcess]:
    """What ranks that go wrong are forked from."""
    popen, module = subprocess.Popen, "tests.faults.faulty_ranks"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            warm.subprocess,
            "Popen",
            lambda words, **more: popen([*words[:2], module, *words[3:]], **more),
        )
        process = warm.WarmProcess(os.environ | {"OMP_NUM_THREADS": "1"})
    yield process
    process.close()


class Trial:
    """A run that meets faults, in a folder of its own."""

    def __init__(
        self, here: Path, forks: warm.WarmProcess, patched: pytest.MonkeyPatch, engine: str
    ) -> None:
        self.here, self.forks, self.patched, self.run = here, forks, patched, here / "run"
        self.settings = {**ENGINES[engine], "ranks": 2, "threads": 1, "epochs": EPOCHS}
        self.settings |= {"checkpoint_every": 1, "eval_every": 3, "deadline": 2 * ENDS_WITHIN}
        self.settings |= {"out": str(self.run), "quiet": True}
        self.pids: set[int] = set()
        fork = forks.fork

        def noted(*words: Any) -> warm.Fork:
            made = fork(*words)
            self.pids.add(made.pid)
            return made

        patched.setattr(forks, "fork", noted)
        self.before = self.rests()

    def rests(self) -> tuple[object, ...]:
        """Return what a command might leave behind: processes, files open here, memory, folders."""
        process = psutil.Process(self.forks._process.pid)
        scratch = [path.name for path in self.here.glob("siafu-scratch-*")]
        # Torch names its shared memory after the process; others on this machine have some too.
        shared = [n for n in os.listdir("/dev/shm") if n.startswith("torch_")]
        ours = [name for name in shared if int(name.split("_")[1]) in self.pids]
        return process.children(), psutil.Process().num_fds(), scratch, ours

    def saved(self) -> int:
        """Return the epochs of the newest checkpoint."""
        found = checkpoints_in(self.run / "checkpoints")
        return int(found[-1].name.removeprefix("epoch-")) if found else 0

    def kill_while_preparing(self) -> None:
        """Kill the launcher itself."""
        environment = {**os.environ, "RANK": "0", "FAULT": "kill prepare 0"}
        launcher = self.forks.fork([FIT, json.dumps(self.settings)], environment)
        end = time.monotonic() + ENDS_WITHIN
        while launcher.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert launcher.returncode == -9
        assert not (self.run / "job.json").exists()

    def damage(self) -> None:
        """Flip a bit of the newest checkpoint, of a rank's share where there is one."""
        folder = checkpoints_in(self.run / "checkpoints")[-1]
        share = folder.with_name(f"{folder.name}.rank-1")
        file = share / "codes.npy" if share.exists() else folder / "model-0.npy"
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)

    def meet(self, kind: str, moment: str, rank: int) -> None:
        """Go on with the run until it fails as it should."""
        self.patched.setenv("FAULT", f"{kind} {moment} {rank}")
        began = time.monotonic()
        with pytest.raises(SiafuError, match=f"(?s){NAMED[kind].format(rank=rank)}"):
            siafu.resume(self.run)
        assert time.monotonic() - began < ENDS_WITHIN


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_meets_every_fault_ends_as_if_it_had_met_none(
    engine: str,
    forks: warm.WarmProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for module in ("siafu.launch.local", "siafu.launch.ranks"):
        monkeypatch.setattr(f"{module}.warm_process", lambda variables: forks)
    monkeypatch.setattr(local, "_GRACE_SECONDS", 0.5)
    trial = Trial(tmp_path, forks, monkeypatch, engine)
    saved = 0
    for kind, moment, rank in FAULTS:
        if (kind, moment) in ALIKE and engine != "halo":
            continue
        if kind == "stop" and engine == "dorylus":
            continue  # waits of its mailboxes begin long before; `benchmarks.faults` stops it
        if kind == "damage":
            trial.damage()
            saved -= 1
            continue
        if moment == "prepare":
            trial.kill_while_preparing()
        else:
            trial.meet(kind, moment, rank)
            saved = {"start": saved, "predicting": EPOCHS}.get(moment, saved + 1)
        assert trial.saved() == saved, f"{kind} while {moment}"
        assert trial.rests() == trial.before, f"{kind} while {moment}"
    assert len(trial.pids) >= 15
    assert "Passed over a damaged checkpoint, epoch-" in capfd.readouterr().err
    monkeypatch.delenv("FAULT")
    run = siafu.resume(trial.run, quiet=True)
    assert trial.rests() == trial.before
    whole = siafu.fit(**{**trial.settings, "out": "whole"})
    assert run.result["losses"] == whole.result["losses"]
    assert len(run.metrics) == EPOCHS
    assert run.predictions.equals(whole.predictions)

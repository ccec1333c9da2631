"""Cutting tables: killed at any point, out of disk, or asked for something else in between."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.config import make_config
from siafu.graph import partial
from siafu.launch import prepare_parts
from siafu.partitioning import open_parts
from siafu.record import PhaseProgress
from tests.command import Command, listing, start
from tests.faults.kill_chain import make_tables
from tests.faults.test_disk import small_disk

__all__ = ["small_disk"]

STEPS = {
    "nodes",
    "edges read",
    "edges sorted",
    "ingest",
    "cluster 1",
    "cluster 4",
    "start",
    "move 1",
    "assigned",
    "edges",
    "part 0",
    "part 2",
    "sends",
    "nodes y",
}


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: each state is brought to the disk, a hundred times."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes that are killed")
def test_processes_killed_at_every_state_end_with_the_same_parts(quick_folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.kill_chain", str(quick_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for name, chain in told["chains"].items():
        assert chain["made"] == told["whole"], name
        assert chain["left"] == [], name
        assert set(chain["steps"]) >= STEPS, name
        assert chain["processes"] > 8, name
    assert "fingerprint" in told["chains"]["just after each state"]["steps"]  # noted at the end


def _fingerprints(target: Path) -> list[str]:
    parts = open_parts(target)
    folders = [parts.folder, *(parts.part(part) for part in range(parts.num_parts))]
    return [folder.fingerprint for folder in folders]


def _plain_tables(folder: Path, num_edges: int, num_nodes: int = 5000) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    ids = np.arange(num_nodes) * 3
    columns = {"id": ids, "label": ids % 5, "a": rng.random(num_nodes)}
    pq.write_table(pa.table(columns), folder / "nodes.parquet")
    source, destination = ids[rng.integers(0, num_nodes, (2, num_edges))]
    pq.write_table(pa.table({"src": source, "dst": destination}), folder / "edges.parquet")
    return folder


def _kill_once_there(command: subprocess.Popen[str], unfinished: Path) -> None:
    deadline = time.monotonic() + 90
    while not unfinished.exists() and command.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    command.kill()
    command.communicate()
    assert unfinished.exists()


def test_a_command_killed_from_outside_goes_on(siafu: Command) -> None:
    tables = _plain_tables(siafu.here / "tables", 400_000)
    asked = ("partition", tables, "my.parts", "--parts", 2, "--method", "streaming")
    command = start(*asked, here=siafu.here)
    _kill_once_there(command, siafu.here / "my.parts.partial")
    answer = siafu(*asked)
    assert answer.code == 0, answer
    assert siafu("partition", tables, "whole", *asked[3:]).code == 0
    assert _fingerprints(siafu.here / "my.parts") == _fingerprints(siafu.here / "whole")
    assert sorted(path.name for path in siafu.here.iterdir()) == [
        ".cache",
        "my.parts",
        "tables",
        "whole",
    ]
    assert not list((siafu.here / ".cache" / "tables").iterdir())


TRAIN = ("--strategy", "batchgnn", "--model", "sage", "--hidden", 8, "--epochs", 1, "--quiet")


def _prepared(tables: Path, ranks: int, target: Path) -> list[str]:
    """Return the fingerprints of parts that were made in one go."""
    config = make_config(data=str(tables), ranks=ranks, partition="streaming")
    quiet = PhaseProgress(quiet=True)
    prepare_parts(str(tables), config, target, say=lambda line: None, progress=quiet)
    return _fingerprints(target)


def test_training_killed_while_it_prepares_goes_on(siafu: Command) -> None:
    tables = _plain_tables(siafu.here / "tables", 400_000)
    settings = (*TRAIN, "--ranks", 2, "--partition", "streaming", "--batch-size", 2000)
    command = start("train", tables, *settings, "--out", "my_run", here=siafu.here)
    _kill_once_there(command, siafu.here / "my_run" / "data.parts.partial")
    again = siafu("train", tables, *settings, "--out", "my_run")
    assert again.code == 2
    assert "siafu train --resume my_run" in again.err
    answer = siafu("train", "--resume", "my_run", "--quiet")
    assert answer.code == 0, answer
    made = _fingerprints(siafu.here / "my_run" / "data.parts")
    assert made == _prepared(tables, 2, siafu.here / "whole")
    assert not list((siafu.here / "my_run").glob("*.partial"))


def test_training_out_of_disk_says_how_to_go_on(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(siafu.here / "tables")
    settings = (*TRAIN, "--partition", "streaming")
    with monkeypatch.context() as patch:
        patch.setattr("siafu.partitioning.write.write_sends", _full)
        answer = siafu("train", "tables", *settings)
    assert answer.code == 2
    assert "free some space and run `siafu train --resume runs/tables-sage-001`" in answer.err
    assert "Going on" not in answer.err
    answer = siafu("train", "--resume", "runs/tables-sage-001", "--quiet")
    assert answer.code == 0, answer
    assert "Going on from runs/tables-sage-001/data.parts.partial" in answer.err
    made = _fingerprints(siafu.here / "runs" / "tables-sage-001" / "data.parts")
    assert made == _prepared(siafu.here / "tables", 1, siafu.here / "whole")


def test_wrong_data_leaves_no_run(siafu: Command) -> None:
    make_tables(siafu.here / "tables")
    edges = pa.table({"src": ["v000"], "dst": ["nobody"], "type": ["likes"]})
    pq.write_table(edges, siafu.here / "tables" / "edges" / "2.parquet")
    answer = siafu("train", "tables", "--no-drop-unknown", *TRAIN)
    assert answer.code == 2
    assert "nobody" in answer.err
    assert not (siafu.here / "runs").exists()


def _full(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def stopped(siafu: Command, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """A command that failed half way for want of disk, every state of it written."""
    make_tables(siafu.here / "tables")
    asked = ("partition", "tables", "my.parts", "--parts", 3, "--method", "streaming")

    monkeypatch.setattr(partial, "STEP_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr("siafu.partitioning.write.write_sends", _full)
        answer = siafu(*asked)
    assert answer.code == 2
    assert "The disk is full" in answer.err
    assert "run the same command again" in answer.err
    return asked


def test_a_command_goes_on_and_says_from_where(siafu: Command, stopped) -> None:
    answer = siafu(*stopped)
    assert answer.code == 0, answer
    assert "Going on from my.parts.partial" in answer.err
    assert "assigned" in answer.err
    assert siafu("partition", "tables", "whole", *stopped[3:]).code == 0
    assert _fingerprints(siafu.here / "my.parts") == _fingerprints(siafu.here / "whole")
    assert not list(siafu.here.glob("*.partial"))


def test_another_command_is_told_of_unfinished_work(siafu: Command, stopped) -> None:
    other = (*stopped[:4], 2, *stopped[5:])
    answer = siafu(*other)
    assert answer.code == 2
    assert "num_parts was 3, now 2" in answer.err
    assert "--overwrite" in answer.err
    answer = siafu(*other, "--overwrite")
    assert answer.code == 0, answer
    assert open_parts(siafu.here / "my.parts").num_parts == 2
    assert not list(siafu.here.glob("*.partial"))


def test_changed_data_is_told_of_unfinished_work(siafu: Command, stopped) -> None:
    nodes = siafu.here / "tables" / "nodes.parquet"
    pq.write_table(pq.read_table(nodes).append_column("b", pa.array(np.arange(61.0))), nodes)
    answer = siafu(*stopped)
    assert answer.code == 2
    assert "data that changed since" in answer.err
    assert "files was" in answer.err


@pytest.mark.parametrize("source", ["store", "tables"])
def test_a_disk_that_fills_leaves_the_source_and_goes_on_after_room_is_made(
    siafu: Command, small_disk, source: str
) -> None:
    tables = _plain_tables(siafu.here / "tables", 300_000)
    assert siafu("ingest", tables, "store").code == 0
    before = listing(siafu.here)
    disk = small_disk("2m")
    asked = ("partition", source, disk / "my.parts", "--method", "streaming", "--quiet")
    answer = siafu(*asked)
    assert answer.code == 2, answer
    assert "error: The disk is full." in answer.err
    assert "Traceback" not in answer.err
    assert listing(siafu.here) == before
    assert not (disk / "my.parts").exists()
    subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
    answer = siafu(*asked)
    assert answer.code == 0, answer
    assert [path.name for path in disk.iterdir()] == ["my.parts"]
    assert siafu("inspect", disk / "my.parts", "--verify").code == 0


def test_a_second_process_is_refused_while_one_works(siafu: Command, stopped) -> None:
    holding = partial._locked(siafu.here / "my.parts.partial")
    with holding:
        answer = siafu(*stopped)
    assert answer.code == 2
    assert "Another process" in answer.err


def test_a_budget_that_can_not_be_kept_is_refused_with_the_number(siafu: Command) -> None:
    make_tables(siafu.here / "tables")
    answer = siafu("partition", "tables", "my.parts", "--memory", "300MB")
    assert answer.code == 2
    assert "needs about" in answer.err
    assert "bytes" in answer.err
    assert sorted(path.name for path in siafu.here.iterdir()) == [".cache", "tables"]


def test_a_run_stopped_before_its_first_checkpoint_starts_over(siafu: Command) -> None:
    flags = ["--epochs", 3, "--checkpoint-every", 0, "--seed", 3]
    for out in ("whole", "run"):
        assert siafu("train", "planted:200", *flags, "--out", out).code == 0
    whole = json.loads(Path("whole/result.json").read_text())
    for name in ("weights.safetensors", "result.json"):  # as if it had been killed in epoch 3
        Path("run", name).unlink()
    again = siafu("train", "--resume", "run")
    assert again.code == 0
    assert "starting at the first epoch" in again.out + again.err
    result = json.loads(Path("run/result.json").read_text())
    assert result["losses"] == whole["losses"]
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 3

"""Ranks that die, raise or are stopped: the command ends at once, says why, leaves no orphan."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.command import start
from tests.harness import RankPool
from tests.unit.engine.runs import run_engine

ENDS_WITHIN = 30.0
"""Well below the deadline of a run's waits, which is what would end it if nothing else did."""
STARTS_WITHIN = 90.0
"""Starting ranks imports torch in each; the machine may be busy with other tests."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def epochs_done(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait_for_epochs(command: subprocess.Popen, run: Path, epochs: int) -> None:
    def done() -> bool:
        assert command.poll() is None, command.communicate()
        return epochs_done(run) >= epochs

    wait_until(done, STARTS_WITHIN, f"epoch {epochs}")


def ranks_of(command: subprocess.Popen) -> list[psutil.Process]:
    """Return the rank processes, by rank."""
    children = psutil.Process(command.pid).children(recursive=True)
    found = {}
    for child in children:
        with suppress(psutil.NoSuchProcess):  # another child, which has ended since
            if child.name().startswith("siafu rank "):
                found[int(child.name().removeprefix("siafu rank "))] = child
    return [found[rank] for rank in sorted(found)]


def gone(processes: list[psutil.Process]) -> bool:
    return all(_has_ended(process) for process in processes)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_killed_rank_ends_the_command_which_names_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--ranks", 3, "--epochs", 100_000, "--quiet", "--out", run)
    command = start("train", "planted:2000", *settings, here=tmp_path)
    wait_for_epochs(command, run, 3)
    ranks = ranks_of(command)
    assert len(ranks) == 3
    ranks[1].send_signal(signal.SIGKILL)
    _, err = command.communicate(timeout=ENDS_WITHIN)
    assert command.returncode == 2
    assert "Rank 1 was killed" in err
    assert "SIGKILL" in err
    assert "Traceback" not in err
    assert gone(ranks)


def test_exception_in_one_rank_shows_its_own_traceback(tmp_path: Path) -> None:
    run, model = tmp_path / "run", Path(__file__).with_name("own_models.py")
    settings = ("--ranks", 2, "--model", f"{model}:RaisesOnRankOne", "--quiet", "--out", run)
    command = start("train", "planted:300", *settings, here=tmp_path)
    _, err = command.communicate(timeout=STARTS_WITHIN + ENDS_WITHIN)  # it ends by itself
    assert command.returncode == 2
    assert "Rank 1 failed" in err
    assert "ZeroDivisionError: the mistake of rank one" in err
    assert "in forward" in err
    assert "CommError" not in err, "the rank that only lost its peer should not speak"
    assert epochs_done(run) == 2


def test_stuck_rank_is_named_soon_after_the_deadline(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--ranks", 2, "--epochs", 100_000, "--deadline", 4, "--quiet", "--out", run)
    command = start("train", "planted:600", *settings, here=tmp_path)
    wait_for_epochs(command, run, 3)
    ranks = ranks_of(command)
    ranks[1].send_signal(signal.SIGSTOP)
    # Torch's own way to end ranks waits 30 s for one that does not react.
    _, err = command.communicate(timeout=4 + ENDS_WITHIN)
    assert command.returncode == 2
    assert "deadline" in err
    assert "no sign of rank 1" in err
    assert "memory" not in err
    assert gone(ranks)


def saved_epoch(run: Path) -> int:
    """Return the epoch of the only checkpoint."""
    [checkpoint] = (run / "checkpoints").iterdir()
    return int(checkpoint.name.removeprefix("epoch-"))


def test_terminated_command_saves_its_epoch_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--ranks", 2, "--epochs", 100_000, "--checkpoint-every", 90_000, "--quiet")
    command = start("train", "planted:600", *settings, "--out", run, here=tmp_path)
    wait_for_epochs(command, run, 3)
    ranks = ranks_of(command)
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate(timeout=ENDS_WITHIN)
    assert command.returncode == 143
    assert saved_epoch(run) == epochs_done(run)
    assert f"epoch {saved_epoch(run)} is saved" in err
    assert f"siafu train --resume {run}" in err
    assert "Traceback" not in err
    assert gone(ranks)


def test_terminated_rank_is_named_and_its_epoch_saved(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--ranks", 2, "--epochs", 100_000, "--checkpoint-every", 90_000, "--quiet")
    command = start("train", "planted:600", *settings, "--out", run, here=tmp_path)
    wait_for_epochs(command, run, 3)
    ranks = ranks_of(command)
    ranks[1].send_signal(signal.SIGTERM)
    _, err = command.communicate(timeout=ENDS_WITHIN)
    assert command.returncode == 2
    assert "Rank 1 was told to end" in err
    assert f"stopped after epoch {saved_epoch(run)}" in err
    assert f"siafu train --resume {run}" in err
    assert gone(ranks)


def test_interrupt_ends_cleanly(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--ranks", 2, "--epochs", 100_000, "--quiet", "--out", run)
    command = start("train", "planted:600", *settings, here=tmp_path)
    wait_for_epochs(command, run, 3)
    ranks = ranks_of(command)
    os.killpg(command.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
    out, err = command.communicate(timeout=ENDS_WITHIN)
    assert command.returncode == 130
    assert "Traceback" not in err
    assert out == ""
    assert gone(ranks)


def test_interrupt_of_a_run_in_one_process_ends_cleanly(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("--epochs", 100_000, "--quiet", "--out", run)
    command = start("train", "planted:600", *settings, here=tmp_path)
    wait_for_epochs(command, run, 3)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=ENDS_WITHIN)
    assert command.returncode == 130
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A run whose launcher was killed in mid-training, and whether its ranks ended as well."""
    here = tmp_path_factory.mktemp("killed")
    run = here / "run"
    settings = ("--ranks", 2, "--threads", 1, "--epochs", 100_000, "--checkpoint-every", 10)
    shape = ("--hidden", 16, "--seed", 3, "--quiet", "--out", run)
    command = start("train", "planted:300", *settings, *shape, here=here)
    wait_for_epochs(command, run, 25)
    ranks = ranks_of(command)
    command.kill()
    command.communicate()
    try:
        wait_until(lambda: gone(ranks), ENDS_WITHIN, "the ranks to end")
    except AssertionError:
        return run, False
    return run, True


def test_killed_launcher_takes_its_ranks_along(killed_run: tuple[Path, bool]) -> None:
    run, ranks_ended = killed_run
    assert ranks_ended
    assert not (run / "result.json").exists()


def test_killed_run_resumes_and_ends_as_if_unbroken(
    ranks: RankPool, killed_run: tuple[Path, bool], tmp_path: Path
) -> None:
    run, _ = killed_run
    epochs = epochs_done(run) + 20
    command = start("train", "--resume", run, "--epochs", epochs, "--json", here=tmp_path)
    out, err = command.communicate(timeout=STARTS_WITHIN)
    assert command.returncode == 0, err
    result = json.loads(out.splitlines()[-1])

    settings = {"epochs": epochs, "hidden": 16, "seed": 3, "checkpoint_every": 0}
    unbroken = ranks.run(run_engine, 2, run / "data.parts", tmp_path / "unbroken", False, settings)
    assert result["losses"] == unbroken[0]["losses"]
    weights = load_file(run / "weights.safetensors")
    assert weights.keys() == unbroken[0]["best"].keys()
    for name, tensor in unbroken[0]["best"].items():
        assert torch.equal(weights[name], tensor), name
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))
    assert [row["loss"] for row in rows] == result["losses"]

"""Runs that were stopped, killed or damaged: nothing prepared is lost, what is advised works."""

import errno
import importlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import siafu as package
from siafu.config import make_config, read_config
from siafu.errors import RankError, Terminated
from siafu.launch import run_state
from siafu.launch.run_state import held
from siafu.record import RunFolder
from tests.command import Command

fit = importlib.import_module("siafu.launch.fit")

SMALL = ("--hidden", 8, "--epochs", 6, "--quiet")


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*args: Any, **settings: Any) -> NoReturn:
        raise error

    return fail


def losses(run: Path) -> list[float]:
    found: list[float] = json.loads((run / "result.json").read_text())["losses"]
    return found


STOPS = {
    130: KeyboardInterrupt(),
    143: Terminated(),
    2: RankError("Rank 1 was killed.", seen="signal SIGKILL", fix="end other programs"),
}


@pytest.mark.parametrize("code", STOPS)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_run_that_ends_before_its_first_epoch_keeps_its_data(
    siafu: Command, monkeypatch: pytest.MonkeyPatch, code: int, is_resumed: bool
) -> None:
    run = siafu.here / "run"
    start = ("train", "planted:200", *SMALL, "--out", run)
    with monkeypatch.context() as patched:
        patched.setattr(fit, "carry_out", raising(STOPS[code]))
        answer = siafu(*start)
        if is_resumed:
            answer = siafu("train", "--resume", run)
    assert answer.code == code
    assert (run / "data.parts").exists()
    if not (is_resumed and code == 2):
        assert f"siafu train --resume {run}" in answer.err.replace("\n", " ")
    answer = siafu("train", "--resume", run)
    assert answer.code == 0, answer
    assert len(losses(run)) == 6


def test_run_that_is_refused_before_its_data_is_prepared_leaves_nothing(siafu: Command) -> None:
    answer = siafu("train", "absent.npz", "--out", siafu.here / "run")
    assert answer.code == 2
    assert not (siafu.here / "run").exists()


def test_sigterm_while_data_is_prepared_ends_cleanly(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_told(*args: Any, **settings: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(fit, "prepare_parts", be_told)
    before = signal.getsignal(signal.SIGTERM)
    answer = siafu("train", "planted:200", "--out", siafu.here / "run")
    assert answer.code == 143
    assert "nothing was kept" in answer.err
    assert not (siafu.here / "run").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_run_that_is_told_to_end_saves_its_epoch(
    siafu: Command, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    append = RunFolder.append_metrics

    def be_told(folder: RunFolder, row: dict[str, Any]) -> None:
        append(folder, row)
        if row["epoch"] == 3:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append_metrics", be_told)
        answer = siafu("train", "planted:200", *SMALL, "--out", "run")
    assert answer.code == code
    assert "epoch 3 is saved" in answer.err
    assert os.listdir("run/checkpoints") == ["epoch-000003"]
    assert siafu("train", "--resume", "run").code == 0
    assert siafu("train", "planted:200", *SMALL, "--out", "unbroken").code == 0
    assert losses(Path("run")) == losses(Path("unbroken"))


DATA = {
    "built-in": ("planted:200",),
    "dynamic": ("drifting:60", "--model", "gcrn"),
    "links": ("planted:200", "--task", "link", "--strategy", "batchgnn"),
}


@pytest.mark.parametrize("kind", DATA)
def test_run_killed_while_its_data_is_prepared_goes_on(
    siafu: Command, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run, data = Path("run"), DATA[kind]
    start = ("train", *data, *SMALL, "--out", run)
    with monkeypatch.context() as patched:  # a kill leaves what there is, and says nothing
        patched.setattr(run_state, "discard_if_empty", lambda folder: None)
        patched.setattr(fit, "prepare_parts", raising(KeyboardInterrupt()))
        siafu(*start)
    (run / ".data.parts.abcd.tmp").mkdir()
    assert not (run / "job.json").exists()
    answer = siafu(*start)
    assert answer.code == 2
    assert "siafu train --resume run" in answer.err
    answer = siafu("train", "--resume", run)
    assert answer.code == 0, answer
    assert len(losses(run)) == 6
    assert not list(run.glob(".data.parts*"))


def test_folder_that_a_kill_left_empty_is_used(siafu: Command) -> None:
    Path("run").mkdir()
    assert siafu("train", "planted:200", *SMALL, "--out", "run").code == 0


def test_folder_without_a_run_is_not_offered_to_be_resumed(siafu: Command) -> None:
    Path("run").mkdir()
    Path("run/notes.txt").write_text("mine")
    answer = siafu("train", "planted:200", "--out", "run")
    assert answer.code == 2
    assert "--resume" not in answer.err


def test_finished_run_is_not_offered_to_be_resumed(siafu: Command) -> None:
    assert siafu("train", "planted:200", *SMALL, "--out", "run").code == 0
    answer = siafu("train", "planted:200", *SMALL, "--out", "run")
    assert answer.code == 2
    assert "finished" in answer.err
    assert "--resume" not in answer.err


def test_graph_that_has_no_name_is_not_taken_for_one_that_has(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = package.load("planted:200")  # its name is that of another graph, of 2,000 nodes
    monkeypatch.setattr(run_state, "discard_if_empty", lambda folder: None)
    monkeypatch.setattr(fit, "prepare_parts", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        package.fit(graph, out="run")
    assert siafu("train", "--resume", "run").code == 2


def test_run_is_held_by_one_process(siafu: Command) -> None:
    assert siafu("train", "planted:200", *SMALL, "--out", "run").code == 0
    with held(RunFolder(Path("run"))):
        answer = siafu("train", "--resume", "run", "--epochs", 8)
    assert answer.code == 2
    assert "Another process works on this run" in answer.err
    assert f"process {os.getpid()} on " in answer.err
    assert not Path("run/lock").exists()
    assert siafu("infer", "run", "--out", "predictions").code == 0


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


def test_damaged_checkpoint_is_passed_over(siafu: Command) -> None:
    start = ("train", "planted:200", *SMALL, "--checkpoint-every", 2)
    assert siafu(*start, "--epochs", 4, "--out", "run").code == 0
    checkpoints = Path("run/checkpoints")
    shutil.copytree(checkpoints / "epoch-000004", checkpoints / ".epoch-000006.abcd.tmp")
    flip(checkpoints / "epoch-000004" / "model-0.npy")
    answer = siafu("train", "--resume", "run", "--epochs", 6)
    assert answer.code == 0, answer
    assert "epoch-000004" in answer.err
    assert "wrong checksum" in answer.err
    assert sorted(os.listdir(checkpoints)) == ["epoch-000004", "epoch-000006"]
    assert siafu(*start, "--out", "unbroken").code == 0
    assert losses(Path("run")) == losses(Path("unbroken"))


def test_run_without_a_whole_checkpoint_is_told_what_works(siafu: Command) -> None:
    start = ("train", "planted:200", *SMALL, "--checkpoint-every", 3)
    assert siafu(*start, "--out", "run").code == 0
    checkpoints = Path("run/checkpoints")
    for checkpoint in checkpoints.iterdir():
        flip(checkpoint / "model-0.npy")
    Path("run/weights.safetensors").unlink()
    answer = siafu("train", "--resume", "run")
    assert answer.code == 2
    assert "rm -rf run/checkpoints run/weights.safetensors" in answer.err
    shutil.rmtree(checkpoints)
    before = losses(Path("run"))
    assert siafu("train", "--resume", "run").code == 0
    assert losses(Path("run")) == before


def test_job_that_was_cut_short_is_made_again(siafu: Command) -> None:
    assert siafu("partition", "planted:200", "my.parts", "--parts", 1, "--quiet").code == 0
    flags = (*SMALL, "--checkpoint-every", 2)
    assert siafu("train", "my.parts", *flags, "--out", "run").code == 0
    Path("run/job.json").write_text("")
    answer = siafu("train", "--resume", "run")
    assert answer.code == 0, answer


def test_disk_that_is_full_at_the_weights_is_told(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr("siafu.engine.weights.write_bytes_atomically", raising(full))
        answer = siafu("train", "planted:200", *SMALL, "--checkpoint-every", 2, "--out", "run")
    assert answer.code == 2
    assert "The disk is full." in answer.err
    assert not list(Path("run").glob("weights*"))
    assert siafu("train", "--resume", "run").code == 0


def test_a_resumed_run_keeps_what_its_settings_resolved_to(siafu: Command) -> None:
    flags = ("--strategy", "batchgnn", "--model", "sage", "--fanout", "3,3,3", "--epochs", 1)
    assert siafu("train", "planted:200", *flags, "--checkpoint-every", 1, "--out", "run").code == 0
    folder, config = (
        RunFolder(Path("run")),
        make_config(
            data="planted:200", strategy="batchgnn", model="sage", fanout="3,3,3", epochs=2
        ),
    )
    run_state.resumed_job(folder, config, True, lambda line: None)  # as a restarted rank does
    assert read_config(folder.config)["layers"] == 3
    assert siafu("train", "--resume", "run", "--epochs", 2).code == 0


def test_a_run_that_ended_while_it_wrote_predictions_goes_on(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("train", "planted:200", *SMALL, "--checkpoint-every", 0, "--out", "run")
    with monkeypatch.context() as patched:
        patched.setattr("siafu.engine.static.write_predictions", raising(KeyboardInterrupt()))
        assert siafu(*start).code == 130
    assert "not finished" in siafu(*start).err
    assert siafu("train", "--resume", "run").code == 0
    assert list(Path("run/predictions").iterdir())


def test_resume_auto_begins_goes_on_and_refuses_other_settings(siafu: Command) -> None:
    given = ("train", "planted:60", "--hidden", "4", "--out", "run", "--resume", "auto", "--json")
    first = siafu(*given, "--epochs", 3)
    assert json.loads(first.out.splitlines()[-1])["epochs"] == 3
    again = siafu(*given, "--epochs", 5)
    assert json.loads(again.out.splitlines()[-1])["epochs"] == 5
    assert len(json.loads(again.out.splitlines()[-1])["losses"]) == 5
    other = siafu(*given, "--epochs", 5, "--seed", 4)
    assert (other.code, "seed 0 then, 4 now" in other.err) == (2, True)
    nowhere = siafu("train", "planted:60", "--resume", "auto")
    assert (nowhere.code, "--out" in nowhere.err) == (2, True)

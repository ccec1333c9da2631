"""A run folder that someone changed: told plainly by `--resume` and `infer`, never a traceback."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from siafu import fit
from tests.command import Command
from tests.folders import change_array

DEEP = "[" * 20_000
EPOCHS = ["--epochs", 6]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that resumes and infers."""
    root = tmp_path_factory.mktemp("made")
    fit("planted:60", epochs=4, checkpoint_every=2, hidden=4, out=str(root / "run"))
    return root / "run"


@pytest.fixture
def run(made: Path, siafu: Command) -> Path:
    return shutil.copytree(made, siafu.here / "run")


def told(siafu: Command, *arguments: object) -> str:
    """Return the error a command ended with, in the agreed form."""
    answer = siafu(*arguments)
    assert answer.code == 2, answer
    assert "Traceback" not in answer.err
    assert "error: " in answer.err
    assert "\n  seen: " in answer.err
    assert "\n  fix:  " in answer.err
    return answer.err


def both(siafu: Command, run: Path) -> list[str]:
    return [
        told(siafu, "train", "--resume", run, *EPOCHS, "--quiet"),
        told(siafu, "infer", run, "--out", siafu.here / "predicted"),
    ]


def test_an_untouched_run_goes_on(siafu: Command, run: Path) -> None:
    assert siafu("train", "--resume", run, *EPOCHS, "--quiet").code == 0
    assert siafu("infer", run, "--out", siafu.here / "predicted").code == 0


@pytest.mark.parametrize("content", ["", "3", "data: [", "data:\n\tx", DEEP, "\x00", "a: &a [*a]"])
def test_settings_that_can_not_be_read(siafu: Command, run: Path, content: str) -> None:
    (run / "config.yaml").write_text(content)
    for text in both(siafu, run):
        assert "onfig" in text or "setting" in text


@pytest.mark.parametrize("kind", ["pipe", "bytes"])
def test_settings_that_are_no_text(siafu: Command, run: Path, kind: str) -> None:
    (run / "config.yaml").unlink()
    if kind == "pipe":
        os.mkfifo(run / "config.yaml")
    else:
        (run / "config.yaml").write_bytes(b"data: \xff\xfe")
    both(siafu, run)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", DEEP, '{"verb": "train"}', '{"verb": 3, "parts": []}']
)
def test_a_job_that_can_not_be_read(siafu: Command, run: Path, content: str) -> None:
    shutil.rmtree(run / "data.parts")
    (run / "job.json").write_text(content)
    text = told(siafu, "infer", run, "--out", siafu.here / "predicted")
    assert f"siafu train --resume {run}" in text
    weights = (run / "weights.safetensors").read_bytes()
    answer = siafu("train", "--resume", run, *EPOCHS, "--quiet")
    assert answer.code == 0, answer.err
    assert "epoch 6" in answer.out or "of 6" in answer.out
    assert (run / "weights.safetensors").read_bytes() != weights
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 6, "it went on after epoch 4"


def test_metrics_that_are_a_pipe_are_not_waited_for(siafu: Command, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    assert "metrics.jsonl" in told(siafu, "train", "--resume", run, *EPOCHS, "--quiet")


def test_weights_that_are_damaged(siafu: Command, run: Path) -> None:
    raw = (run / "weights.safetensors").read_bytes()
    (run / "weights.safetensors").write_bytes(raw[:-3])
    text = told(siafu, "infer", run, "--out", siafu.here / "predicted")
    assert "weights.safetensors" in text


@pytest.mark.parametrize("value", [2**31 - 1, -1])
def test_parts_with_a_row_that_is_not_there(siafu: Command, run: Path, value: int) -> None:
    change_array(run / "data.parts" / "part0", "src", 0, value)
    text = told(siafu, "infer", run, "--out", siafu.here / "predicted")
    assert "src.npy is damaged" in text
    assert f"is {value}" in text


@pytest.mark.parametrize("damage", ["number", "bit", "cut short", "gone", "manifest"])
def test_damaged_parts_of_a_run_are_made_again_from_its_data(
    siafu: Command, run: Path, damage: str
) -> None:
    expected = fit("planted:60", epochs=6, hidden=4, out=str(siafu.here / "other"), quiet=True)
    part = run / "data.parts" / "part0"
    file = part / ("manifest.json" if damage == "manifest" else "src.npy")
    if damage == "number":
        change_array(part, "src", 0, 2**31 - 1)
    elif damage == "gone":
        file.unlink()
    else:
        raw = bytearray(file.read_bytes())
        raw[-30] ^= 4
        file.unlink()  # another run may have the same file by another name
        file.write_bytes(raw[:-7] if damage == "cut short" else raw)
    answer = siafu("train", "--resume", run, *EPOCHS, "--quiet")
    assert answer.code == 0, answer
    assert "is damaged" in answer.err
    assert "cut anew" in answer.err
    assert json.loads((run / "result.json").read_text())["losses"] == expected.result["losses"]


def test_a_store_with_a_row_that_is_not_there(siafu: Command) -> None:
    assert siafu("ingest", "planted:60", "store", "--quiet").code == 0
    change_array(siafu.here / "store", "src", 0, np.int32(2**31 - 1))
    for command in (["train", "store"], ["partition", "store", "target"]):
        assert "src.npy is damaged" in told(siafu, *command)
    assert "src.npy is damaged" in told(siafu, "inspect", "store", "--verify")

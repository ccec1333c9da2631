"""A training goes on by itself after it lost a rank, and ends as if it had lost none."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import siafu
from siafu.errors import RankError

MODEL = f"{Path(__file__).with_name('own_models.py')}:KilledOnce"
SETTINGS: dict[str, Any] = {"model": MODEL, "ranks": 2, "epochs": 8, "partition": "hash"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("every", [2, 50])
def test_it_ends_bit_for_bit_as_if_nothing_was_lost(
    every: int, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[int] = []
    run = siafu.fit(
        "planted:300",
        **SETTINGS,
        checkpoint_every=every,
        max_restarts=1,
        out="lost",
        quiet=True,
        on_epoch=lambda epoch, metrics: told.append(epoch),
    )
    assert Path("killed").exists()
    line = "Rank 1 was killed; the others were stopped. (signal SIGKILL) Restart 1 of 1."
    assert line in (run.path / "warnings.txt").read_text()
    # Epochs since the newest checkpoint are trained, and told of, again.
    assert told == [1, 2, 3, 4, 5, *range(5 if every == 2 else 1, 9)]
    assert len(run.metrics) == 8
    whole = siafu.fit("planted:300", **SETTINGS, out="whole", quiet=True)
    assert run.result["losses"] == whole.result["losses"]
    kept = load_file(whole.path / "weights.safetensors")
    for name, tensor in load_file(run.path / "weights.safetensors").items():
        assert torch.equal(tensor, kept[name]), name


def test_it_goes_on_without_the_rank_that_was_lost() -> None:
    settings = {**SETTINGS, "ranks": 3, "epochs": 7, "checkpoint_every": 2}
    run = siafu.fit("planted:300", **settings, max_restarts=2, min_ranks=2, out="lost", quiet=True)
    line = (
        "Rank 1 was killed; the others were stopped. (signal SIGKILL) Restart 1 of 2, on 2 ranks."
    )
    assert (run.path / "warnings.txt").read_text().splitlines().count(line) == 1
    assert line in (run.path / "report.html").read_text()
    assert (run.result["ranks"], len(run.result["traffic"])) == (2, 2)
    assert len(run.metrics) == 7
    whole = siafu.fit("planted:300", **{**settings, "ranks": 1}, out="whole", quiet=True)
    assert run.result["losses"] == pytest.approx(whole.result["losses"], rel=1e-5)
    assert len(run.predictions) == 300


def test_without_leave_to_restart_it_ends_and_says_how_to_go_on() -> None:
    with pytest.raises(RankError, match="Rank 1 was killed") as told:
        siafu.fit("planted:300", **SETTINGS, out="lost", quiet=True)
    assert "resume" in told.value.fix


def test_a_rank_that_hangs_is_told_with_its_place_in_the_code() -> None:
    settings = {**SETTINGS, "model": MODEL.replace("KilledOnce", "WaitsForEver"), "deadline": 3.0}
    with pytest.raises(RankError, match="no sign of rank 1, which had to be killed") as told:
        siafu.fit("planted:300", **settings, out="hangs", quiet=True)
    assert "rank 1 was at File" in told.value.seen
    assert "own_models.py" in told.value.seen
    assert "in forward" in told.value.seen
    rows = told.value.seen.splitlines()[-2:]
    assert re.fullmatch(r"rank 1: works for \d+ s, having waited for .*, epoch [23]", rows[0])
    assert re.fullmatch(r"rank 0: waits for \d+ s for .*, epoch 3", rows[1])


def test_a_mistake_of_the_model_is_not_tried_again(capfd: pytest.CaptureFixture[str]) -> None:
    model = MODEL.replace("KilledOnce", "RaisesOnRankOne")
    settings = {**SETTINGS, "model": model}
    with pytest.raises(RankError, match="Rank 1 failed"):
        siafu.fit("planted:300", **settings, max_restarts=3, out="failed", quiet=True)
    assert "Restart" not in capfd.readouterr().err

"""A function of the caller's after every epoch: what it is told, and that it can end a run."""

from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.errors import SiafuError

SETTINGS: dict[str, Any] = {"epochs": 6, "hidden": 8, "eval_every": 2}


class Seen:
    """Notes what it is told and has enough after some epoch."""

    def __init__(self, enough: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.epochs: list[int] = []
        self.enough = enough

    def __call__(self, epoch: int, metrics: dict[str, Any]) -> bool:
        self.epochs.append(epoch)
        self.rows.append(metrics)
        return epoch == self.enough


def test_epochs_are_told_and_may_be_the_last(tmp_path: Path) -> None:
    seen = Seen(enough=3)
    run = siafu.fit("planted:120", on_epoch=seen, out=str(tmp_path / "run"), **SETTINGS)
    assert seen.epochs == [1, 2, 3]
    assert [row["loss"] for row in seen.rows] == run.result["losses"]
    assert ["val" in row for row in seen.rows] == [False, True, False]
    assert run.result["epochs"] == 3
    assert "callback" in run.result["ended"]


def test_ranks_of_their_own_stop_after_the_same_epoch(tmp_path: Path) -> None:
    seen = Seen(enough=3)
    run = siafu.fit("planted:120", ranks=2, on_epoch=seen, out=str(tmp_path / "run"), **SETTINGS)
    assert seen.epochs == [1, 2, 3]
    assert run.result["epochs"] == 3
    assert not list((tmp_path / "run").glob(".answer*"))


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "batchgnn", "batch_size": 20},
        {"strategy": "dorylus", "pool": "none", "staleness": 1, "checkpoint_every": 0},
    ],
    ids=["minibatches", "pipeline"],
)
def test_other_engines_stop_too(settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {**SETTINGS, **settings, "out": str(tmp_path / "run")}
    run = siafu.fit("planted:120", on_epoch=Seen(enough=3), **settings)
    # A pipeline stands still where it is scored.
    assert run.result["epochs"] == (4 if settings["strategy"] == "dorylus" else 3)


def test_what_a_callback_raises_is_the_callers(tmp_path: Path) -> None:
    def fail(epoch: int, metrics: dict[str, Any]) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        siafu.fit("planted:120", on_epoch=fail, out=str(tmp_path / "run"), **SETTINGS)


def test_models_over_time_are_told_by_name(tmp_path: Path) -> None:
    seen = Seen(enough=1)
    siafu.fit("drifting:60", model="tm-gcn", epochs=3, on_epoch=seen, out=str(tmp_path / "run"))
    assert len(seen.rows) == 1
    assert "val" in seen.rows[0]


def test_ray_is_refused() -> None:
    with pytest.raises(SiafuError, match="callback"):
        siafu.fit("planted:120", launcher="ray", ranks=2, on_epoch=Seen(), **SETTINGS)


def test_a_resumed_run_calls_too(tmp_path: Path) -> None:
    run = siafu.fit("planted:60", epochs=2, hidden=4, out=tmp_path / "run", quiet=True)
    seen = Seen(enough=4)
    done = siafu.resume(run, epochs=9, on_epoch=seen, quiet=True)
    assert (seen.epochs, done.result["epochs"]) == ([3, 4], 4)
    with pytest.raises(SiafuError, match="callback needs ranks"):
        siafu.resume(run, launcher="ray", on_epoch=seen, quiet=True)

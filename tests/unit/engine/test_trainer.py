"""Which weights a trainer keeps, whatever the merits of epochs are, resumed or not."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from siafu.checkpoint import save_checkpoint
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Evaluation, Trainer, begin
from siafu.ingest import load
from siafu.partitioning import partition_graph
from siafu.shard import open_shard

NAN = math.nan
Start = Callable[..., Trainer]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Make a training of a small graph."""
    partition_graph(load("planted:120"), tmp_path / "parts", num_parts=1)

    def make(**settings: object) -> Trainer:
        config = make_config(data="planted", hidden=4, **settings).resolved()
        return begin(config, open_shard(tmp_path / "parts", World()))

    return make


@pytest.mark.parametrize(
    ("merits", "best"),
    [
        ([0.1, 0.9, 0.5], 2),
        ([NAN, 0.1, 0.9], 3),
        ([0.5, NAN, 0.4], 1),
        ([NAN, NAN, 0.2], 3),
        ([-math.inf, 0.1, 0.0], 2),
    ],
)
def test_the_best_epoch_is_never_one_without_a_merit(
    start: Start, monkeypatch: pytest.MonkeyPatch, merits: list[float], best: int
) -> None:
    trainer, left = start(), list(merits)

    def evaluate() -> Evaluation:
        merit = left.pop(0)
        return Evaluation(scores={"val": merit}, merit=merit, chooses=True)

    monkeypatch.setattr(trainer.workload, "evaluate", evaluate)
    for _ in merits:
        trainer.progress.epochs += 1
        trainer.score()
    assert trainer.progress.best_epoch == best


def test_a_loss_that_was_none_is_replaced_after_resuming(start: Start, tmp_path: Path) -> None:
    trainer = start(keep="loss")
    trainer.run_epoch()
    trainer.progress.best_merit = NAN
    saved = trainer.checkpoint()
    assert saved.facts["best_merit"] is None
    save_checkpoint(saved, tmp_path / "checkpoints")
    again = start(keep="loss")
    again.resume(tmp_path / "checkpoints")
    assert again.progress.best_merit == -math.inf
    again.run_epoch()
    assert again.progress.best_epoch == 2


def test_settings_can_be_told_as_a_schema() -> None:
    told = type(make_config(data="planted")).model_json_schema()["properties"]
    assert told["hidden"]["description"].startswith("hidden width")

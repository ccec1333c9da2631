"""Runs end, saved, before they would cost more than they may."""

from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.partitioning import partition_graph
from siafu.record import RunFolder
from siafu.shard import open_shard
from tests.harness import RankPool

PER_EPOCH = 0.5
ENGINES: dict[str, dict[str, Any]] = {
    "halo": {},
    "dorylus": {"strategy": "dorylus", "pool": "none", "intervals": 2},
    "lagging": {"strategy": "dorylus", "pool": "none", "intervals": 2, "staleness": 1},
}


def train(
    world: World, parts: Path, folder: Path, resume: bool, settings: dict[str, Any]
) -> tuple[int, str]:
    """Return the epochs of a run whose bill grows by half a dollar an epoch, and why it ended.

    Ranks but the first think that nothing costs anything: its word must count.
    """
    config = make_config(data="planted", ranks=world.size, hidden=8, epochs=9, **settings)
    run = RunFolder(folder)
    training = begin(
        config.resolved(), open_shard(parts, world), run.checkpoints if resume else None
    )
    price = PER_EPOCH * (world.rank == 0)
    training.workload.dollars = lambda seconds, epochs: price * epochs  # type: ignore[method-assign]
    try:
        result = training.train(run, lambda row: None)
    finally:
        training.close()
    return result.epochs, result.ended


@pytest.mark.parametrize("engine", ENGINES)
def test_a_budget_ends_a_run_saved_and_more_money_goes_on(
    ranks: RankPool, tmp_path: Path, engine: str
) -> None:
    parts, run = tmp_path / "parts", tmp_path / "run"
    run.mkdir()
    partition_graph(load("planted:200"), parts, num_parts=2, method="hash")
    settings = ENGINES[engine] | {"max_dollars": 1.7, "eval_every": 2}
    # Three epochs are 1.5 dollars; a pipeline stands still when it is scored.
    affordable = 3 if engine == "halo" else 2
    told = ranks.run(train, 2, parts, run, False, settings)
    assert [epochs for epochs, _ in told] == [affordable, affordable]
    assert "above --max-dollars 1.7" in told[0][1]
    assert [path.name for path in run.glob("checkpoints/*")] == [f"epoch-{affordable:06d}"]
    assert ranks.run(train, 2, parts, run, True, settings)[0][0] == affordable
    more = settings | {"max_dollars": 2.6}
    assert ranks.run(train, 2, parts, run, True, more)[0][0] == (5 if engine == "halo" else 4)


def test_calls_of_a_pool_end_a_run_too(ranks: RankPool, tmp_path: Path) -> None:
    parts, run = tmp_path / "parts", tmp_path / "run"
    run.mkdir()
    partition_graph(load("planted:200"), parts, num_parts=2, method="hash")
    settings = next(more for name, more in ENGINES.items() if name != "halo")
    told = ranks.run(train, 2, parts, run, False, settings | {"max_calls": 1, "eval_every": 2})
    assert told[0][0] == 2, "the first stop is after two epochs"
    assert "calls, above --max-calls 1" in told[0][1]


def test_a_budget_makes_a_bill_and_no_budget_stops_nothing(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(load("planted:200"), parts, num_parts=1, method="hash")
    settings = {"max_dollars": 1000.0, "hidden": 8, "epochs": 2}
    config = make_config(data="planted", **settings).resolved()
    training = begin(config, open_shard(parts, World()))
    result = training.train(RunFolder(tmp_path), lambda row: None)
    assert result.epochs == 2
    assert result.bill is not None
    assert result.bill["dollars"] > 0

"""Runs with intervals in a pipeline: versions, the end of lagging, rounding, traces and bills."""

from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.elastic import LocalPool, Task
from siafu.engine import Trainer, begin
from siafu.engine.networks.pipelined import PipelinedNetwork
from siafu.engine.static import IntervalPipeline
from siafu.ingest import load
from siafu.launch import fit
from siafu.partitioning import partition_graph
from siafu.pipeline import Pipeline
from siafu.record import RunFolder, read_trace
from siafu.shard import Shard, open_shard


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    folder = tmp_path_factory.mktemp("pipelined") / "planted.parts"
    partition_graph(load("planted:300"), folder, num_parts=1)
    return open_shard(folder, World())


def training_of(shard: Shard, **settings: Any) -> Trainer:
    chosen = {"strategy": "dorylus", "pool": "none", "hidden": 8, "epochs": 40, **settings}
    return begin(make_config(data="planted", **chosen).resolved(), shard)


def pipeline_of(training: Trainer) -> Pipeline:
    assert isinstance(training.workload.network, PipelinedNetwork)
    assert training.workload.network.pipeline is not None
    return training.workload.network.pipeline


def test_backward_uses_the_weights_that_forward_used(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[tuple[str, int], set[str]] = {}
    start = LocalPool.start

    def note(pool: LocalPool, task: Task) -> None:
        interval = next(b.key.split("/")[-1] for b in task.bundles if "/ids/" in b.key)
        version = next(b.key.split("/")[-2] for b in task.bundles if "/w/" in b.key)
        used.setdefault((interval, int(task.facts["epoch"])), set()).add(version)
        start(pool, task)

    monkeypatch.setattr(LocalPool, "start", note)
    training = training_of(shard, staleness=2, intervals=4, eval_every=20)
    for _ in range(20):
        training.run_epoch()
    training.close()
    assert all(len(versions) == 1 for versions in used.values())
    late = [epoch - 1 - int(*versions) for (_, epoch), versions in used.items()]
    assert set(late) <= {0, 1, 2}
    assert max(late) > 0


def test_nothing_lags_once_the_score_is_high_enough(shard: Shard) -> None:
    training = training_of(shard, staleness=1, exact_from=0.0, eval_every=5)
    for _ in range(5):
        training.run_epoch()
    ages = pipeline_of(training).ages
    before = ages[1]
    assert before > 0
    assert pipeline_of(training).most_age == 0
    for _ in range(5):
        training.run_epoch()
    training.close()
    assert ages[1] == before


@pytest.mark.parametrize(("metric", "better"), [("accuracy", 0.9), ("rmse", 0.1)])
def test_errors_are_good_enough_when_they_are_low(
    shard: Shard, metric: str, better: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_of(shard, staleness=1, exact_from=0.5, eval_every=5)
    workload, stopped = training.workload, list[str]()
    assert isinstance(workload, IntervalPipeline)
    monkeypatch.setattr(workload, "metrics", (metric,))
    monkeypatch.setattr(workload.network, "stop_lagging", lambda: stopped.append(metric))
    workload._note_scores({"val": 1 - better})
    assert stopped == []
    workload._note_scores({"val": better})
    training.close()
    assert stopped == [metric]


def test_a_pipeline_stands_still_where_it_is_scored_or_saved(shard: Shard) -> None:
    training = training_of(shard, staleness=1, eval_every=6, checkpoint_every=4)
    assert [training.workload.horizon(epoch) for epoch in (1, 4, 5, 7, 13, 39)] == [
        4,
        4,
        6,
        8,
        16,
        40,
    ]
    for epoch in range(1, 9):
        training.run_epoch()
        if epoch in (4, 6, 8):
            assert not pipeline_of(training)._passages
    training.close()


def test_rounded_rows_learn_nearly_the_same(shard: Shard) -> None:
    losses: dict[int, list[float]] = {}
    for bits in (32, 8):
        training = training_of(shard, pool_bits=bits)
        losses[bits] = [training.run_epoch()["loss"] for _ in range(20)]
        training.close()
    assert losses[8] != losses[32]
    assert losses[8] == pytest.approx(losses[32], rel=0.02)


def test_a_run_leaves_a_trace_of_both_kinds_of_tasks_and_a_bill(tmp_path: Path) -> None:
    settings = {"strategy": "dorylus", "pool": "none", "intervals": 2, "trace": True}
    run = fit("planted:200", epochs=3, hidden=8, out=str(tmp_path / "run"), **settings)
    categories = {span.category for span in read_trace(run.path / "trace.json")}
    assert categories == {"graph", "tensor", "phase"}
    bill, seconds = run.result["bill"], sum(_seconds(run.path))
    assert bill["epochs"] == 3
    assert bill["seconds"] == pytest.approx(seconds)
    assert bill["usage"]["requests"] == 0, "threads of the rank are paid for already"
    assert run.result["pipeline"]["requests"] == 3 * 2 * 5


def _seconds(path: Path) -> list[float]:
    return [row["seconds"] for row in RunFolder(path).read_metrics()]

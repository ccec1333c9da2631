"""Pipelines whose pools fail: losses as without a pool, no interval lost, bounded time."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.elastic.dispatch import Dispatcher
from siafu.elastic.pools.process import ProcessPool
from siafu.engine import Trainer, begin
from siafu.engine.networks.pipelined import PipelinedNetwork
from siafu.errors import PlanError
from siafu.ingest import load
from siafu.launch import fit
from siafu.partitioning import partition_graph
from siafu.shard import Shard, open_shard
from tests.lambda_emulator import Emulator
from tests.unit.elastic.pings import wait_until

EPOCHS = 6
ENDS_WITHIN = 60.0
"""Without a fault it takes less than a second; lost replies are waited for half a second each."""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    folder = tmp_path_factory.mktemp("pipelines") / "planted.parts"
    partition_graph(load("planted:400"), folder, num_parts=1)
    return open_shard(folder, World())


@contextmanager
def training_of(shard: Shard, **settings: Any) -> Iterator[Trainer]:
    chosen = {"model": "gat", "heads": 2, "hidden": 8, "eval_every": EPOCHS, **settings}
    config = make_config(data="planted", strategy="dorylus", epochs=1000, **chosen).resolved()
    training = begin(config, shard)
    try:
        yield training
    finally:
        training.close()


def losses_of(training: Trainer, epochs: int = EPOCHS) -> list[float]:
    found = []
    for _ in range(epochs):
        found.append(training.step())
        training.progress.epochs += 1
    return found


def dispatcher_of(training: Trainer) -> Dispatcher:
    assert isinstance(training.workload.network, PipelinedNetwork)
    assert training.workload.network.runner is not None
    return training.workload.network.runner.dispatcher


@pytest.fixture(scope="module")
def want(shard: Shard) -> list[float]:
    """What a pool that never fails gives, to the bit: sums have one order."""
    with training_of(shard, pool="none") as training:
        return losses_of(training)


def started_pool(*arguments: Any, **settings: Any) -> ProcessPool:
    """Return a pool whose workers take tasks: what they need to start is no time of a task."""
    pool = ProcessPool(*arguments, **settings)
    wait_until(lambda: len(pool.process_ids) == pool.workers, "workers", 2 * ENDS_WITHIN)
    return pool


def test_replies_lost_repeated_failed_and_late_change_nothing(
    shard: Shard, want: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Replies that waited for a start would have lost ones waited for five times as long.
    monkeypatch.setattr("siafu.elastic.open.ProcessPool", started_pool)
    cloud = tmp_path / "cloud.yaml"
    chances = {"failure": 0.1, "loss": 0.03, "duplicate": 0.2, "straggler": 0.1}
    lines = [f"{name}: {chance}" for name, chance in chances.items()]
    cloud.write_text("\n".join([*lines, "straggler_factor: 10", "latency_seconds: 0.005"]))
    with training_of(shard, pool="simulated", cloud=str(cloud), deadline=120.0) as training:
        got = losses_of(training, 1)
        began = time.monotonic()
        assert got + losses_of(training, EPOCHS - 1) == want
        counters = dispatcher_of(training).counters
        assert counters.failures > 0
        assert counters.duplicates > 0
        assert counters.relaunched > 0
        assert not dispatcher_of(training).degraded
        assert time.monotonic() - began < ENDS_WITHIN


def test_a_pool_that_always_fails_is_given_up_and_training_goes_on(
    shard: Shard, want: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = tmp_path / "cloud.yaml"
    cloud.write_text("failure: 1.0\n")
    with training_of(shard, pool="simulated", cloud=str(cloud)) as training:
        assert losses_of(training) == want
        assert dispatcher_of(training).degraded
    assert "given up" in capsys.readouterr().err


def test_workers_killed_at_random_change_nothing(shard: Shard, want: list[float]) -> None:
    draw = random.Random(0)
    with training_of(shard, pool="process", pool_workers="3") as training:
        got = losses_of(training, 2)
        pool = dispatcher_of(training)._pool
        assert isinstance(pool, ProcessPool)

        def kill_one() -> None:
            with suppress(psutil.NoSuchProcess):  # the pool may have ended it since
                psutil.Process(draw.choice(pool.process_ids)).kill()

        # While it has a task: training waits for the pool most of the time.
        killer = threading.Timer(0.03, kill_one)
        killer.start()
        got += losses_of(training, EPOCHS - 2)
        killer.join()
    assert got == want


def test_a_run_that_diverges_leaves_no_worker(tmp_path: Path) -> None:
    settings = {"strategy": "dorylus", "pool": "process", "pool_workers": "1", "lr": 1e30}
    before = psutil.Process().children(recursive=True)
    with pytest.raises(PlanError, match="loss is not finite"):
        fit("planted:300", epochs=20, out=str(tmp_path / "run"), **settings)
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not [child for child in left if "siafu.elastic.pools.worker" in child.cmdline()]


def test_rows_are_never_older_than_the_bound_in_a_million_reads(shard: Shard) -> None:
    settings = {"pool": "none", "staleness": 1, "model": "gcn", "eval_every": 1000}
    with training_of(shard, **settings, checkpoint_every=0) as training:
        assert isinstance(training.workload.network, PipelinedNetwork)
        reads = 0
        while reads < 1_000_000:
            losses_of(training, 10)
            assert training.workload.network.pipeline is not None
            reads = sum(training.workload.network.pipeline.ages.values())
        assert set(training.workload.network.pipeline.ages) == {0, 1}


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    service = Emulator(tmp_path, {})
    service.start()
    yield service
    service.kill()


def test_functions_of_an_emulated_lambda_train_the_same(
    shard: Shard, want: list[float], emulator: Emulator
) -> None:
    settings = {"pool": "aws-lambda", "lambda_function": "siafu", "pool_workers": "2"}
    with training_of(shard, **settings, lambda_endpoint=emulator.url, intervals=2) as training:
        got = losses_of(training, 2)
        assert not dispatcher_of(training).degraded
        # The last ones are counted when their calls return, just after their results came.
        assert training.workload.network.runner.use.totals()[0] >= 2 * 2 * 4
    with training_of(shard, pool="none", intervals=2) as training:
        assert got == losses_of(training, 2)

"""Predicted bytes are those that the meter counts: rows, gradients of weights, sums of norms."""

from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.nn import CARDS, ModelSpec
from siafu.partitioning import open_parts, partition_graph
from siafu.plan import EpochTraffic, full_graph_traffic
from siafu.plan.bytes import column_traffic
from siafu.shard import open_shard
from siafu.strategy import Strategy
from tests.harness import RankPool

SIZES = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root, graph = tmp_path_factory.mktemp("bytes"), load("relations:300")
    folders = {size: root / f"{size}.parts" for size in SIZES}
    for size, folder in folders.items():
        partition_graph(graph, folder, num_parts=size, method="hash")
    return folders


def trained(world: World, folder: Path, settings: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the model and strategy are, and the bytes of an epoch and of an evaluation."""
    config = make_config(data=str(folder), **settings)
    trainer = begin(config.resolved(), open_shard(folder, world))
    network: Any = trainer.workload
    trainer.step()  # with what is sent once
    counts = []
    for work in (trainer.step, trainer.workload.evaluate):
        world.meter.bytes_sent.clear()
        work()
        counts.append(dict(world.meter.bytes_sent))
    return network.module.spec, network.network.strategy, *counts


def summed(counts: list[dict[str, int]], name: str) -> int:
    return sum(rank.get(name, 0) for rank in counts)


def check(ranks: RankPool, folder: Path, size: int, **settings: Any) -> EpochTraffic:
    """Compare prediction and meter for the run with these settings."""
    got = ranks.run(trained, size, folder, settings)
    spec: ModelSpec = got[0][0]
    strategy: Strategy = got[0][1]
    want = full_graph_traffic(spec, sum(open_parts(folder).quality.halo_rows), size, strategy)
    epoch, evaluation = [rank[2] for rank in got], [rank[3] for rank in got]
    assert summed(epoch, "halo_forward") == sum(layer.forward for layer in want.layers)
    assert summed(epoch, "halo_refetch") == sum(layer.again for layer in want.layers)
    assert summed(epoch, "halo_backward") == sum(layer.backward for layer in want.layers)
    assert summed(epoch, "gradient") == want.gradients
    assert summed(epoch, "norm") == want.norms
    assert summed(evaluation, "halo_forward") == want.evaluation
    return want


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model", CARDS)
def test_bytes_of_every_model_are_predicted(
    ranks: RankPool, parts: dict[int, Path], model: str, size: int
) -> None:
    strategy = "sar" if size % 2 else "halo"
    want = check(ranks, parts[size], size, model=model, strategy=strategy, layers=3)
    assert (want.training > 0) == (size > 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "batch", "jk": "cat"},
        {"norm": "batch", "layers": 3, "hidden": 200},
        {"layers": 1},
        {"hidden": 200, "wire": "8"},
        {"hidden": 200, "wire": "16"},
        {"hidden": 16, "wire": "4", "model": "gat"},
        {"model": "sage", "input_cache": True, "input_dropout": 0.0},
        {"model": "rgcn", "input_cache": True, "input_dropout": 0.0},
        {"memory": "2GB", "model": "gat"},
    ],
)
def test_bytes_of_other_choices_are_predicted(
    ranks: RankPool, parts: dict[int, Path], settings: dict[str, Any]
) -> None:
    check(ranks, parts[3], 3, **{"model": "gcn", **settings})


@pytest.mark.parametrize("model", CARDS)
def test_bytes_by_columns_are_predicted_whatever_the_cut(
    ranks: RankPool, parts: dict[int, Path], model: str
) -> None:
    size = 2
    got = ranks.run(trained, size, parts[size], {"model": model, "strategy": "columns"})
    spec, strategy = got[0][0], got[0][1]
    want = column_traffic(spec, sum(open_parts(parts[size]).quality.nodes), size, strategy)
    epoch, evaluation = [rank[2] for rank in got], [rank[3] for rank in got]
    rows = summed(epoch, "column_forward") + summed(epoch, "column_backward")
    assert rows == pytest.approx(want.rows, rel=0.05)  # parts are not quite even
    assert summed(epoch, "gradient") == want.gradients
    assert summed(evaluation, "column_forward") == pytest.approx(want.evaluation, rel=0.05)

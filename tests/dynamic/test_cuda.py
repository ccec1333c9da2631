"""Dynamic training on a GPU, which ranks share here, equals the sequential reference too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.comm import World
from siafu.strategy import Strategy, TimeStrategy
from tests.dynamic.steps import MODELS, distributed_steps
from tests.dynamic.test_parity import CASES, assert_same
from tests.harness import RankPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def on_gpu(world: World, *given: Any) -> dict[str, Any]:
    return distributed_steps(replace(world, device=torch.device("cuda")), *given)


@pytest.mark.parametrize(("size", "block"), [(1, 0), (1, 4), (2, 4), (4, 0)])
@pytest.mark.parametrize(("model", "exchange"), CASES)
def test_steps_equal_the_reference(ranks: RankPool, model, exchange, block, size) -> None:
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=3)
    assert_same(ranks.run(on_gpu, size, model, strategy), model)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_snapshots_made_on_the_device_from_deltas(ranks: RankPool, model: str, size: int) -> None:
    strategy = TimeStrategy(block=3, chunks=2)
    assert_same(ranks.run(on_gpu, size, model, strategy, 0), model)


@pytest.mark.parametrize("most_edges", [1000, 0])
@pytest.mark.parametrize("model", MODELS)
def test_groups_of_nodes(ranks: RankPool, model: str, most_edges: int) -> None:
    strategy = TimeStrategy(block=4, chunks=2)
    got = ranks.run(on_gpu, 4, model, strategy, most_edges, (), 4, (0, 0, 1))
    assert_same(got, model)


@pytest.mark.parametrize(("model", "exchange"), [("tm-gcn", "banded"), ("cd-gcn", "all-to-all")])
def test_rounded_rows_are_those_of_the_cpu(ranks: RankPool, model: str, exchange) -> None:
    strategy = TimeStrategy(block=4, exchange=exchange, rounding=Strategy(wire=8))
    given = (2, model, strategy, 1000, (), 20)
    gpu, cpu = ranks.run(on_gpu, *given), ranks.run(distributed_steps, *given)
    # A row a rounding error away from a level's middle may be rounded the other way.
    assert gpu[0]["losses"] == pytest.approx(cpu[0]["losses"], rel=1e-4)
    assert gpu[0]["sent"] == cpu[0]["sent"]


@pytest.mark.parametrize("task", ["edge", "link", "node"])
@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (2, 1), (2, 2)])
def test_runs_on_the_gpu_are_those_of_the_cpu(
    tmp_path: Path, task: str, ranks: int, parts: int
) -> None:
    settings = {"model": "cd-gcn", "task": task, "epochs": 5, "time_block": 6, "seed": 1}
    want = siafu.fit("drifting:80", **settings, device="cpu", out=str(tmp_path / "cpu"))
    got = siafu.fit(
        "drifting:80",
        **settings,
        device="cuda",
        ranks=ranks,
        node_parts=parts,
        out=str(tmp_path / "cuda"),
    )
    # float32 sums in another order, five steps apart.
    assert got.result["losses"] == pytest.approx(want.result["losses"], abs=1e-3)
    assert got.result["scores"]["test"] == pytest.approx(want.result["scores"]["test"], abs=0.02)

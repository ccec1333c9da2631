"""What is alive at the peak of a training step is what was predicted."""

from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.network import model_spec
from siafu.ingest import load
from siafu.nn import CARDS
from siafu.partitioning import partition_graph
from siafu.plan import predict_training_bytes
from siafu.shard import open_shard
from tests.harness import RankPool
from tests.unit.alive import Alive


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Parts that no one took care to cut: most rows are read by all."""
    root, graph = tmp_path_factory.mktemp("alive"), load("planted:8000")
    folders = {size: root / f"{size}.parts" for size in (1, 4)}
    for size, folder in folders.items():
        partition_graph(graph, folder, num_parts=size, method="hash")
    return folders


def alive_and_predicted(world: World, parts: Path, settings: dict[str, Any]) -> tuple[int, int]:
    """Return one rank's bytes in a step: what was alive at the peak, what was predicted."""
    config = make_config(data="planted", hidden=128, layers=3, **settings).resolved()
    shard = open_shard(parts, world)
    predicted = predict_training_bytes(config, model_spec(config, shard), shard)
    with Alive([shard.x, shard.csr.index, shard.csr.indptr]) as alive:
        training = begin(config, shard)
        weights = sum(p.nbytes for p in training.workload.network.module.parameters())
        for training.progress.epochs in range(3):  # what is kept or late is there from the second
            training.step()
    return alive.peak - 4 * weights, predicted  # these, their gradients and what Adam keeps


MODELS = [name for name, card in CARDS.items() if card.aggregation != "relations"]
MODELS.remove("typed-gat")
WIRES: dict[str, dict[str, Any]] = {
    "4 bits": {"wire": "4"},
    "fp8": {"wire": "fp8"},
    "changes": {"wire": "4", "changes": True},
    "late": {"staleness": 1},
    "adaptive": {"wire": "adaptive"},
}
NEAR = (0.97, 1.15)
"""Late rows and fp8 in stages take up to 2.4 % more than is counted."""
LOOSE = {
    "sage-max halo": 1.22,
    "sage-max columns": 1.31,
    "gin halo": 1.24,
    "gin columns": 1.18,
    "gat halo": 1.2,
    "transformer columns": 1.34,
    "sage halo 4 bits": 1.19,
    "sage halo changes": 1.17,
    "gat halo 4 bits": 1.27,
    "gat halo fp8": 1.27,
    "gat halo changes": 1.17,
    # Widths are assigned after these steps, and sorting for it makes no tensors: not seen here.
    **{f"{model} {way} adaptive": 1.78 for model in ("sage", "gat") for way in ("halo", "sar")},
}
"""Where more is counted than is needed: as measured, rounded up; why is not known for each."""


def check(ranks: RankPool, parts, settings: dict[str, Any], wire: str = "") -> None:
    # Compiles the kernels here, where nothing waits for four ranks to do so at once.
    alive_and_predicted(World(), parts[1], settings)
    found = ranks.run(alive_and_predicted, 4, parts[4], settings)
    case = f"{settings['model']} {settings['strategy']} {wire}".strip()
    for alive, predicted in found:
        assert NEAR[0] < predicted / alive < LOOSE.get(case, NEAR[1]), case


@pytest.mark.parametrize("strategy", ["halo", "sar", "columns"])
@pytest.mark.parametrize("model", MODELS)
def test_peak_of_a_step_is_near_the_prediction(ranks: RankPool, parts, model, strategy) -> None:
    check(ranks, parts, {"model": model, "strategy": strategy})


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("strategy", ["halo", "sar"])
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_peak_with_rounded_or_kept_rows_is_too(
    ranks: RankPool, parts, model, strategy, wire
) -> None:
    check(ranks, parts, {"model": model, "strategy": strategy, **WIRES[wire]}, wire)

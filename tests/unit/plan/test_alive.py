"""What is alive at the peak of a training step is what was predicted."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
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
from siafu.strategy.rounding import book
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


@contextmanager
def assignments() -> Iterator[list[Any]]:
    """Yield a list of what widths are assigned from, beside training."""
    found: list[Any] = []
    assign = book.assign_bytes

    def noted(*arguments: Any) -> Any:
        found.append(arguments)
        return assign(*arguments)

    book.assign_bytes = noted
    try:
        yield found
    finally:
        book.assign_bytes = assign


def assigning_bytes(arguments: Any) -> int:
    """Return what an assignment takes that no tensor tells: made again, with nothing beside it."""
    tracemalloc.start()
    book.assign_bytes(*arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def alive_and_predicted(world: World, parts: Path, settings: dict[str, Any]) -> tuple[int, int]:
    """Return one rank's bytes in a step: what was alive at the peak, what was predicted."""
    config = make_config(data="planted", hidden=128, layers=3, **settings).resolved()
    shard = open_shard(parts, world)
    predicted = predict_training_bytes(config, model_spec(config, shard), shard)
    # What is kept or late is there from the second epoch on, widths are assigned after the fifth.
    epochs = 8 if config.chosen.assigns_widths else 3
    with assignments() as beside, Alive([shard.x, shard.csr.index, shard.csr.indptr]) as alive:
        training = begin(config, shard)
        weights = sum(p.nbytes for p in training.workload.network.module.parameters())
        for training.progress.epochs in range(epochs):
            training.step()
    # Less the weights, their gradients and what Adam keeps.
    return alive.peak - 4 * weights + max(map(assigning_bytes, beside), default=0), predicted


MODELS = [name for name, card in CARDS.items() if card.aggregation != "relations"]
MODELS.remove("typed-gat")
WIRES: dict[str, dict[str, Any]] = {
    "4 bits": {"wire": "4"},
    "fp8": {"wire": "fp8"},
    "changes": {"wire": "4", "changes": True},
    "narrow": {"wire": "4", "changes": True, "kept_bits": 16},
    "late": {"staleness": 1},
    "adaptive": {"wire": "adaptive"},
}
NEAR = (0.97, 1.15)
"""Late rows and fp8 in stages take up to 2.4 % more than is counted."""
MORE = {"sage sar adaptive": 1.18}
"""Where more is counted: an assignment has no steps for rows that never change, here four of ten;
and gradients of two paths are added up in place here, out of place elsewhere."""


def check(ranks: RankPool, parts, settings: dict[str, Any], wire: str = "") -> None:
    # Compiles the kernels here, where nothing waits for four ranks to do so at once.
    alive_and_predicted(World(), parts[1], settings)
    found = ranks.run(alive_and_predicted, 4, parts[4], settings)
    case = f"{settings['model']} {settings['strategy']} {wire}".strip()
    for alive, predicted in found:
        assert NEAR[0] < predicted / alive < MORE.get(case, NEAR[1]), case


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

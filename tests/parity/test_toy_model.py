"""A model entered by one card is trained by every engine, alike on one rank and on three."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.nn import CARDS, ModelCard, Neighbours
from siafu.nn.sparse import Rows, dense
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from tests.harness import RankPool


class ToyLayer(nn.Module):
    """Half the own row, and the sum of the neighbours."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO."""
        x_NO = self.linear(dense(x))
        return 0.5 * neighbours.own(x_NO) + 0.1 * neighbours.sum(x_NO)


TOY = ModelCard(
    name="toy",
    layer=lambda spec, at: ToyLayer(at.in_width, at.out_width),
    aggregation="sum",
    keeps=lambda width: width.out,
    lets_go=lambda width: 0,
    stands=lambda width: 2 * width.out,
    returns=lambda width: 2 * width.out,
    sends=lambda width: width.out,
    maps=lambda width: width.into * width.out,
    maps_first="always",
    lr=0.01,
    dropout=0.0,
)
ENGINES: dict[str, dict[str, Any]] = {
    "halo": {},
    "sar": {"strategy": "sar", "memory": "4GB"},
    "adaqp": {"strategy": "adaqp", "wire_period": 3},
    "batchgnn": {
        "strategy": "batchgnn",
        "fanout": "4,3",
        "batch_size": 40,
        "seed_order": "global",
        "step_minibatches": 3,
    },
    "dorylus": {"strategy": "dorylus", "pool": "none", "intervals": 2},
}


def train_toy(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the losses and weights of some epochs on a rank that is told of the card first."""
    CARDS[TOY.name] = TOY
    try:
        config = make_config(data="toy", model="toy", hidden=8, ranks=world.size, **settings)
        training = begin(config.resolved(), open_shard(parts, world))
        rows = [training.run_epoch() for _ in range(4)]
        training.close()
        weights = {n: t.clone() for n, t in training.workload.module.state_dict().items()}
        return {"losses": [row["loss"] for row in rows], "weights": weights}
    finally:
        del CARDS[TOY.name]


@pytest.mark.parametrize("name", ENGINES)
def test_one_card_is_enough(name: str, ranks: RankPool, tmp_path: Path) -> None:
    graph, found = load("planted:300"), {}
    for size in (1, 3):
        parts = tmp_path / f"parts{size}"
        partition_graph(graph, parts, num_parts=size, method="hash")
        found[size] = ranks.run(train_toy, size, parts, ENGINES[name])[0]
    assert found[3]["losses"][-1] < found[3]["losses"][0]
    if name == "adaqp":  # rounded on three ranks, on one there is nobody to send to
        return
    torch.testing.assert_close(found[3]["losses"], found[1]["losses"], rtol=1e-4, atol=1e-5)
    for key, weight in found[1]["weights"].items():
        torch.testing.assert_close(found[3]["weights"][key], weight, rtol=1e-3, atol=1e-4)

"""A loop of one's own over ranks trains as the engine does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.shard import Shard, open_shard
from tests.harness import RankPool

EXACT = {"rtol": 1e-10, "atol": 1e-12}
FANOUT, BATCH = [3, 2], 2


class Net(GraphSAGE):
    """PyG's own model, as a user's class."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, hidden_channels, num_layers=2, out_channels=out_channels)


def double_shard(world: World, parts: Path) -> Shard:
    """Return a rank's shard with features in float64."""
    shard = open_shard(parts, world)
    return replace(shard, x=shard.x.double())


def by_engine(world: World, parts: Path) -> dict[str, Any]:
    """Return weights and gradients after an epoch of the engine."""
    torch.set_default_dtype(torch.float64)
    try:
        settings = {"strategy": "batchgnn", "model": "tests.parity.test_loader:Net"}
        settings |= {"fanout": ",".join(map(str, FANOUT)), "batch_size": BATCH, "hidden": 7}
        settings["precision"] = "float64"
        training = begin(make_config(data="g", **settings).resolved(), double_shard(world, parts))
        training.step()
        training.close()
        return told(training.workload.network.module)
    finally:
        torch.set_default_dtype(torch.float32)


def by_hand(world: World, parts: Path) -> dict[str, Any]:
    """Return the same from a loop over the loader; another one is read from in between."""
    torch.set_default_dtype(torch.float64)
    try:
        shard = double_shard(world, parts)
        torch.manual_seed(0)
        model = Net(shard.x.size(1), 7, shard.num_classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        with (
            siafu.MinibatchLoader(
                shard, FANOUT, batch_size=BATCH, input_nodes=shard.train, macrobatch=2
            ) as loader,
            siafu.MinibatchLoader(shard, [2], batch_size=50, macrobatch=1) as other,
        ):
            sizes = []
            for batch in loader:
                optimiser.zero_grad()
                if batch.batch_size:
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    cross_entropy(out, batch.y).backward()
                loader.average_gradients(model, batch.batch_size)
                optimiser.step()
                sizes.append(batch.batch_size)
                assert sum(one.batch_size for one in other) == shard.num_owned
        assert len(sizes) == len(loader)
        return told(model) | {"sizes": sizes}
    finally:
        torch.set_default_dtype(torch.float32)


def told(model: torch.nn.Module) -> dict[str, Any]:
    """Return what a model came to."""
    return {name: (weight.detach(), weight.grad) for name, weight in model.named_parameters()}


def test_averaged_gradients_are_the_engines(ranks: RankPool, parts_of) -> None:
    parts = parts_of("gap", 3, True)  # one rank owns nothing
    want = ranks.run(by_engine, 3, parts)[0]
    got = ranks.run(by_hand, 3, parts)
    sizes = [one.pop("sizes") for one in got]
    assert len({len(one) for one in sizes}) == 1
    assert 0 in sizes[1]
    for one in got:
        for name, pair in want.items():
            torch.testing.assert_close(one[name], pair, **EXACT)


def name_missing(world: World, parts: Path) -> str:
    """Return what a rank is told of an id that no rank has."""
    try:
        siafu.MinibatchLoader(open_shard(parts, world), [1], input_ids=[0, 40, 77])
    except siafu.SiafuError as error:
        return str(error)
    return "nothing"


def test_every_rank_names_the_missing_id(ranks: RankPool, parts_of) -> None:
    told = ranks.run(name_missing, 2, parts_of("hash", 2, True))
    assert all("77" in text for text in told)
    assert all("40" not in text for text in told)

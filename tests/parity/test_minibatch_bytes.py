"""What sampled training sends equals its formula, and a budget that can't be kept is refused."""

from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.sampled import SampledNetwork
from siafu.errors import PlanError
from siafu.minibatch.served import owners_of
from siafu.shard import open_shard
from tests.harness import RankPool


def test_too_small_a_budget_names_one_that_works(parts_of) -> None:
    settings = {"strategy": "batchgnn", "memory": "10MB", "model": "sage"}
    shard = open_shard(parts_of("hash", 1, False), World(), place="host")
    with pytest.raises(PlanError, match="GB or more"):
        begin(make_config(data="awkward", **settings).resolved(), shard)


def traffic(world: World, parts: Path, size: int) -> dict[str, Any]:
    """Return the feature bytes of an epoch's macrobatches, and the formula's."""
    shard = open_shard(parts, world, place="host")
    settings = {"strategy": "batchgnn", "fanout": "3,2", "batch_size": 4, "model": "sage"}
    training = begin(make_config(data="a", macrobatch="1", **settings).resolved(), shard)
    assert isinstance(training.workload.network, SampledNetwork)
    sampler = training.workload.network.feed.sampler
    before = world.meter.bytes_sent.get("feature", 0)
    far = 0
    for macrobatch in sampler.macrobatches(1, size):
        far += int((owners_of(macrobatch.rows.addresses_U) != world.rank).sum())
    training.close()
    return {"sent": world.meter.bytes_sent["feature"] - before, "far": far}


@pytest.mark.parametrize("size", [1, 3])
def test_each_far_row_of_a_macrobatch_travels_once(ranks: RankPool, parts_of, size: int) -> None:
    told = ranks.run(traffic, 3, parts_of("hash", 3, False), size)
    width = 6
    a_row = 8 + 4 * width + 8  # its number there; its features and its id back
    labels = 0  # seeds are the ranks' own
    assert sum(one["sent"] for one in told) == a_row * sum(one["far"] for one in told) + labels

"""Rows fetched and worked on a few at a time, as large graphs are: nothing changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.nn import Draws, ModelSpec
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool
from tests.parity.steps import Plan, assert_same, distributed_steps, single_steps
from tests.parity.test_models import EXACT, spec_of

PIECE_ROWS = 3
SMALL = {
    "siafu.strategy.blocks._SMALLEST_PIECE": PIECE_ROWS,
    "siafu.strategy.blocks._PIECES": 1000,
    "siafu.strategy.blocks._PIECE_ELEMENTS": 60,
    "siafu.ops.csr.matrix._EDGES_AT_ONCE": 7,
}
"""A handful of rows or edges where a real graph has millions."""

PLANS: dict[str, Plan] = {
    "gcn": spec_of("gcn", "plain"),
    "sage-max": spec_of("sage-max", "plain"),
    "gat": replace(spec_of("gat", "plain"), edge_width=2),
    "gatv2": replace(spec_of("gatv2", "plain"), edge_width=2),
    "rgcn": spec_of("rgcn", "plain"),
    "sum": "sum",
    "max": "max",
    "softmax": "softmax",
}


def steps_in_small_pieces(
    world: World, parts: Path, plan: Plan, strategy: Strategy
) -> dict[str, Any]:
    """Return the steps of one rank, and how many rows each stage reads on it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(name, value)
        steps = distributed_steps(world, parts, plan, strategy)
        shard = open_shard(parts, world)
        reach = BlockNeighbours(shard, Draws(seed=0), strategy).reach
        steps["stage_rows"] = [block.csr.num_cols for block in reach.stages]
        steps["halo_rows"] = shard.num_halo
    return steps


@pytest.mark.parametrize(("size", "recompute"), [(3, False), (4, True)])
@pytest.mark.parametrize("name", PLANS)
def test_small_pieces_change_nothing(ranks: RankPool, parts_of, name, size, recompute) -> None:
    plan = PLANS[name]
    want = single_steps(parts_of("hash", 1, True), plan)
    strategy = Strategy(stages=4, recompute=recompute)
    kind = "metis" if size == 3 else "hash"
    got = ranks.run(steps_in_small_pieces, size, parts_of(kind, size, True), plan, strategy)
    for part in got:
        assert sum(part["stage_rows"]) == part["halo_rows"], "each halo row is fetched once"
        assert max(part["stage_rows"]) <= PIECE_ROWS
        assert len(part["stage_rows"]) > size - 1, "the peers' blocks were not cut"
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
def test_small_pieces_of_pruned_layers_change_nothing(ranks: RankPool, parts_of, name) -> None:
    plan: ModelSpec = replace(spec_of(name, "plain"), edge_width=2)
    want = single_steps(parts_of("hash", 1, True), plan)
    strategy = Strategy(stages=4, recompute=True, prune=True)
    got = ranks.run(steps_in_small_pieces, 4, parts_of("hash", 4, True), plan, strategy)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(("stages", "size"), [(1, 1), (4, 3), (1, 4)])
@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer"])
def test_pruning_with_edge_features_changes_nothing(
    ranks: RankPool, parts_of, model, stages, size
) -> None:
    spec = replace(spec_of(model, "layer-jk-cat"), edge_width=2)
    want = single_steps(parts_of("hash", 1, True), spec)
    strategy = Strategy(stages=stages, recompute=stages > 1, prune=True)
    kind = "gap" if size == 4 else "hash"
    got = ranks.run(distributed_steps, size, parts_of(kind, size, True), spec, strategy)
    assert_same(got, want, **EXACT)

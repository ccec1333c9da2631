"""Snapshots shared out among ranks by node, and time by stretch: equal to the reference."""

from dataclasses import dataclass

import pytest
import torch

from siafu.comm import World
from siafu.nn import DynamicGNN, NodeGRU
from siafu.partitioning import plan_time
from siafu.strategy import Strategy, TimeRunner, TimeStrategy
from siafu.strategy.time.cost import choose_exchange
from tests.dynamic.steps import MODELS, distributed_steps
from tests.dynamic.test_parity import CASES, assert_same
from tests.harness import RankPool

UNEVEN = (0, 0, 1)
"""Groups of nodes, dealt out again and again."""


@pytest.mark.parametrize(("size", "block"), [(2, 4), (4, 4)])
@pytest.mark.parametrize(("model", "exchange"), CASES)
def test_steps_of_two_groups_equal_the_reference(ranks: RankPool, model, exchange, size, block):
    """One stretch of time and two; a block of 4 snapshots on 2 stretches, one of 3 too."""
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=2)
    got = ranks.run(distributed_steps, size, model, strategy, 1000, (), 4, UNEVEN)
    assert_same(got, model)
    assert got[0]["sent"]["halo_forward"] > 0


@pytest.mark.parametrize("groups", [(2, 0, 1, 1), (0, 2)])
@pytest.mark.parametrize("model", MODELS)
def test_three_groups_one_of_them_empty(ranks: RankPool, model: str, groups) -> None:
    got = ranks.run(distributed_steps, 3, model, TimeStrategy(block=3), 1000, (), 4, groups)
    assert_same(got, model)


@pytest.mark.parametrize("model", MODELS)
def test_shared_snapshots_made_from_deltas_change_nothing(ranks: RankPool, model: str) -> None:
    strategy = TimeStrategy(block=3, chunks=2)
    assert_same(ranks.run(distributed_steps, 4, model, strategy, 0, (), 4, (0, 1, 2, 3)), model)


@pytest.mark.parametrize(("model", "exchange"), [("tm-gcn", "banded"), ("cd-gcn", "all-to-all")])
def test_rounded_rows_of_a_grid_are_those_of_time_alone(ranks: RankPool, model, exchange) -> None:
    """Draws go by snapshot and node; the rows that change stretches are the same ones."""
    strategy = TimeStrategy(block=4, exchange=exchange, rounding=Strategy(wire=8))
    alone = ranks.run(distributed_steps, 2, model, strategy, 1000, (), 20)
    grid = ranks.run(distributed_steps, 4, model, strategy, 1000, (), 20, UNEVEN)
    if exchange == "banded":
        assert grid[0]["losses"] == pytest.approx(alone[0]["losses"], rel=1e-9)
    exact = ranks.run(distributed_steps, 2, model, TimeStrategy(block=4), 1000, (), 20)
    assert grid[0]["losses"] != pytest.approx(exact[0]["losses"], rel=1e-9)
    assert grid[0]["losses"] == pytest.approx(exact[0]["losses"], rel=1e-2)


@dataclass
class Group:
    """As much of a source as a choice needs: the nodes of one group."""

    num_nodes: int
    most_nodes: int = 780
    num_all_nodes: int = 1536
    starts_transformed: bool = False

    @property
    def node_ids(self) -> torch.Tensor:
        return torch.arange(self.num_nodes)


def test_groups_of_other_sizes_choose_the_same_exchange() -> None:
    """By itself the smaller group would choose another, and ranks would wait for each other."""
    part, plan = NodeGRU(16, 16), plan_time([1] * 8, 2, train_steps=8)
    alone = {
        size: choose_exchange(part, plan, size, TimeStrategy().num_chunks(size, 2))
        for size in (756, 780)
    }
    assert alone[756] != alone[780]
    model = DynamicGNN([part], out_width=16)
    runners = [
        TimeRunner(model, Group(size), plan, World(size=2), TimeStrategy()) for size in (756, 780)
    ]
    assert runners[0].exchanges == runners[1].exchanges == [alone[780]]

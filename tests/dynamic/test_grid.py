"""Snapshots shared out among ranks by vertex, and time by stretch: equal to the reference."""

import pytest

from siafu.strategy import TimeStrategy
from tests.dynamic.steps import MODELS, distributed_steps
from tests.dynamic.test_parity import CASES, assert_same
from tests.harness import RankPool

UNEVEN = (0, 0, 1)
"""Groups of vertices, dealt out again and again."""


@pytest.mark.parametrize(("size", "block"), [(2, 4), (4, 0), (4, 4)])
@pytest.mark.parametrize(("model", "exchange"), CASES)
def test_steps_of_two_groups_equal_the_reference(ranks: RankPool, model, exchange, size, block):
    """One stretch of time and two; a block of 4 snapshots on 2 stretches, one of 3 too."""
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=2)
    got = ranks.run(distributed_steps, size, model, strategy, 1000, (), UNEVEN)
    assert_same(got, model)
    assert got[0]["sent"]["halo_forward"] > 0


@pytest.mark.parametrize("groups", [(2, 0, 1, 1), (0, 2)])
@pytest.mark.parametrize("model", MODELS)
def test_three_groups_one_of_them_empty(ranks: RankPool, model: str, groups) -> None:
    got = ranks.run(distributed_steps, 3, model, TimeStrategy(block=3), 1000, (), groups)
    assert_same(got, model)


@pytest.mark.parametrize("model", MODELS)
def test_shared_snapshots_made_from_deltas_change_nothing(ranks: RankPool, model: str) -> None:
    strategy = TimeStrategy(block=3, chunks=2)
    assert_same(ranks.run(distributed_steps, 4, model, strategy, 0, (), (0, 1, 2, 3)), model)

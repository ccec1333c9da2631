"""Snapshots are dealt out by edges, in stretches, and blocks end where training ends."""

import itertools

import numpy as np
import pytest

from siafu.errors import PlanError
from siafu.partitioning import balanced_cuts, plan_time


def best_by_trying(costs: list[int], parts: int) -> int:
    """Return the smallest possible largest load, over all ways to cut."""
    ways = itertools.combinations(range(1, len(costs)), parts - 1)
    spans = ([0, *way, len(costs)] for way in ways)
    return min(max(sum(costs[a:b]) for a, b in itertools.pairwise(cuts)) for cuts in spans)


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_load_is_the_smallest_possible(seed: int) -> None:
    draw = np.random.default_rng(seed)
    costs = draw.integers(0, 50, int(draw.integers(4, 10))).tolist()
    parts = int(draw.integers(1, 5))
    cuts = balanced_cuts(costs, parts)
    loads = [sum(costs[a:b]) for a, b in itertools.pairwise(cuts)]
    assert cuts[0] == 0
    assert cuts[-1] == len(costs)
    assert all(a < b for a, b in itertools.pairwise(cuts)), "no part is empty"
    assert max(loads) == best_by_trying(costs, parts)


def test_edges_count_not_snapshots() -> None:
    plan = plan_time([90, 10, 10, 10, 30, 30], 2, train_steps=6)
    assert plan.blocks[0].steps == (1, 5)


def test_blocks_end_where_training_ends() -> None:
    plan = plan_time([1] * 13, 4, train_steps=10, block_steps=4)
    spans = [(block.start, block.stop) for block in plan.blocks]
    assert spans == [(0, 3), (3, 6), (6, 10), (10, 13)]
    assert plan.num_train == 3
    assert plan.blocks[0].steps == (1, 1, 1, 0), "fewer snapshots than ranks in this block"
    owned = [step for rank in range(4) for step in plan.owned(rank)]
    assert sorted(owned) == list(range(13))
    assert all(step in plan.owned(plan.owner(step)) for step in range(13))


def test_fewer_snapshots_than_ranks_are_refused() -> None:
    with pytest.raises(PlanError, match="fewer snapshots than ranks"):
        plan_time([1, 1, 1], 4, train_steps=2)

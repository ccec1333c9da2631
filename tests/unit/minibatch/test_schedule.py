"""Every seed once an epoch, and as many steps and minibatches on each rank as on any other."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.comm import World
from siafu.minibatch import Schedule


def schedules(totals: list[int], batch_size: int, **choices: Any) -> list[Schedule]:
    """Return what each rank would make of so many seeds a rank."""
    starts = [sum(totals[:rank]) for rank in range(len(totals))]
    every = torch.arange(sum(totals))
    local = choices.get("order", "local") == "local"
    return [
        Schedule(
            world=World(rank=rank, size=len(totals)),
            seed=3,
            ids=every[start : start + total] if local else every,
            dealt=every[start : start + total] if local else every,
            totals=totals if local else [sum(totals)],
            batch_size=batch_size,
            **{"order": "local", "step_minibatches": len(totals)} | choices,
        )
        for rank, (start, total) in enumerate(zip(starts, totals, strict=True))
    ]


@settings(max_examples=60, deadline=None)
@given(
    totals=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    batch_size=st.integers(1, 30),
    order=st.sampled_from(["local", "global"]),
    step_minibatches=st.integers(1, 6),
)
def test_every_seed_is_used_once_and_ranks_keep_step(
    totals, batch_size, order, step_minibatches
) -> None:
    count = len(totals) if order == "local" else step_minibatches
    made = schedules(totals, batch_size, order=order, step_minibatches=count)
    epochs = [schedule.steps(1) for schedule in made]
    assert len({len(steps) for steps in epochs}) == 1
    seeds, numbers = [], []
    for together in zip(*epochs, strict=True):
        assert len({len(step.mine) for step in together}) == 1
        assert len({(tuple(step.holders), step.num_seeds) for step in together}) == 1
        real = [
            batch
            for rank, step in enumerate(together)
            for batch in step.mine[: step.holders.count(rank)]
        ]
        numbers += [batch.number for batch in real]
        sizes = [len(batch.seeds) for batch in real]
        assert max(sizes) <= batch_size
        assert sum(sizes) == together[0].num_seeds
        seeds += [seed for batch in real for seed in batch.seeds.tolist()]
    assert sorted(seeds) == list(range(sum(totals)))
    assert len(set(numbers)) == len(numbers)


def test_epochs_are_shuffled_each_in_its_own_way() -> None:
    (schedule,) = schedules([100], 10)
    first, again, second = (
        torch.cat([step.mine[0].seeds for step in schedule.steps(epoch)]) for epoch in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.arange(100))


@pytest.mark.parametrize("ranks", [2, 3])
def test_global_minibatches_do_not_depend_on_the_ranks(ranks: int) -> None:
    def minibatches(count: int) -> dict[int, list[int]]:
        found = {}
        for rank, schedule in enumerate(
            schedules([60 // count] * count, 7, order="global", step_minibatches=3)
        ):
            for step in schedule.steps(5):
                for batch in step.mine[: step.holders.count(rank)]:
                    found[batch.number] = batch.seeds.tolist()
        return found

    assert minibatches(ranks) == minibatches(1)

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


@pytest.mark.parametrize("order", ["local", "global"])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 99])
def test_shorter_epochs_go_on_where_the_one_before_ended(order: str, most: int) -> None:
    choices = {"order": order, "step_minibatches": 2}
    whole = schedules([9, 4], 2, **choices)
    short = schedules([9, 4], 2, most_steps=most, **choices)
    for before, after in zip(whole, short, strict=True):
        assert after.pass_steps == before.num_steps
        assert after.num_steps == min(most, before.num_steps)
        want = [step for turn in (1, 2, 3) for step in before.steps(turn)]
        epochs = [after.steps(epoch) for epoch in range(1, len(want) // after.num_steps + 1)]
        got = [step for steps in epochs for step in steps]
        for one, other in zip(got, want, strict=False):
            assert (one.turn, one.places, one.num_seeds) == (
                other.turn,
                other.places,
                other.num_seeds,
            )
            assert [b.seeds.tolist() for b in one.mine] == [b.seeds.tolist() for b in other.mine]
        for steps in epochs:  # they key draws together with the epoch
            numbers = [b.number for step in steps for b in step.mine if len(b.seeds)]
            assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(("order", "count"), [("local", 3), ("global", 5)])
def test_minibatches_at_one_place_of_steps_in_turn_share_draws(order: str, count: int) -> None:
    totals = [40, 40, 40]
    apart = schedules(totals, 3, order=order, step_minibatches=count)
    alike = schedules(totals, 3, order=order, step_minibatches=count, share_draws=4)
    for own, shared in zip(apart, alike, strict=True):
        place_of: dict[int, set[tuple[int, int]]] = {}
        for step, (plain, one) in enumerate(zip(own.steps(1), shared.steps(1), strict=True)):
            for before, batch in zip(plain.mine, one.mine, strict=True):
                assert before.keyed == before.number == batch.number
                if len(batch.seeds):
                    place = batch.number % count
                    place_of.setdefault(batch.keyed, set()).add((step // 4, place))
        assert all(len(places) == 1 for places in place_of.values())
        ends = [next(iter(places)) for places in place_of.values()]
        assert len(set(ends)) == len(ends)

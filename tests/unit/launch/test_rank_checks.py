"""Ranks that check each other."""

from itertools import combinations

import pytest

from siafu.comm import World
from siafu.launch import rank_checks
from siafu.launch.rank_checks import check_ranks, unlike
from tests.harness import RankPool


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_each_rank_meets_each_once(size: int) -> None:
    met = []
    for turn in range(rank_checks._rounds(size)):
        partners = [rank_checks._partner(rank, turn, size) for rank in range(size)]
        for rank, partner in enumerate(partners):
            assert partner != rank
            assert partner is None or partners[partner] == rank
        met += [(a, b) for a, b in enumerate(partners) if b is not None and a < b]
    assert sorted(met) == list(combinations(range(size), 2))


def checked(world: World) -> dict:
    assert world.gather_texts("é" * world.rank) == ["é" * rank for rank in range(world.size)]
    return check_ranks(world)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_work_together(ranks: RankPool, size: int) -> None:
    found = ranks.run(checked, size)
    first = found[0]
    assert all(one["pairs"] == first["pairs"] for one in found)
    assert [pair["ranks"] for pair in first["pairs"]] == [
        list(pair) for pair in combinations(range(size), 2)
    ]
    assert all(pair["bytes_per_second"] > 0 for pair in first["pairs"])
    assert (first["backend"], first["problems"], len(first["ranks"])) == ("gloo", [], size)
    assert max(first["loss_difference"], first["weight_difference"]) < 1e-5


def test_other_versions_are_told_with_rank_and_machine() -> None:
    facts = [{"host": f"h{rank}", "versions": {"torch": "2.13"}} for rank in range(3)]
    assert unlike(facts) == []
    facts[1] = {"host": "h1", "versions": {"torch": "2.12", "numba": "0.6"}}
    assert unlike(facts) == [
        "rank 1 on h1: numba 0.6, most have none",
        "rank 1 on h1: torch 2.12, most have 2.13",
    ]


def test_a_pair_is_timed_from_idle_device_to_idle_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NCCL was given to do goes on after its wait has returned."""
    done: list[str] = []

    class Coming:
        def wait(self, world: World, operation: str) -> None:
            done.append("waited")

    def start(*given: object) -> Coming:
        done.append("sent")
        return Coming()

    world = World(rank=0, size=2)
    monkeypatch.setattr(world, "gather_numbers", lambda mine: [mine, mine[::-1]])
    monkeypatch.setattr(rank_checks, "start_exchange", start)
    monkeypatch.setattr(rank_checks, "synchronise", lambda world: done.append("idle"))
    monkeypatch.setattr(rank_checks.time, "perf_counter", lambda: done.append("clock") or 1.0)
    assert rank_checks._pair_seconds(world, 8) == {(0, 1): 0.0}
    assert done == ["idle", "clock", "sent", "waited", "idle", "clock"] * 6

"""What lies between ranks of several hosts is measured, by a clock that is told what to say."""

import itertools

import pytest

from siafu.comm import World
from siafu.plan import Link, measured_link
from tests.harness import RankPool


def measured(world: World, local: str) -> Link | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", local)
        ticks = itertools.count()
        return measured_link(world, lambda: 0.05 * next(ticks))


@pytest.mark.parametrize("size", [2, 3])
def test_bandwidth_and_latency_of_a_sum(ranks: RankPool, size: int) -> None:
    for link in ranks.run(measured, size, "1"):
        assert link is not None
        # Every sum takes 0.05 s: 2 (P - 1) / P of the first size, 256 KiB, within that.
        assert link.bytes_per_second == pytest.approx(2 * (size - 1) / size * (1 << 18) / 0.05)
        assert link.latency_seconds == pytest.approx(0.05 / (2 * (size - 1)))
        assert not link.is_shared


def test_ranks_of_one_host_have_none(ranks: RankPool) -> None:
    assert ranks.run(measured, 2, "2") == [None, None]
    assert measured_link(World()) is None

"""The time a message takes: fitted from noisy samples, summed over rounds."""

import numpy as np
import pytest

from siafu.comm.links import Lanes, Link, fit_link, ring_lanes
from siafu.errors import PlanError

SIZES = np.repeat(np.geomspace(1e3, 1e7, 20), 5)


def test_exact_samples_give_the_link_back():
    link = fit_link(SIZES, 2e-4 + 8e-8 * SIZES)
    assert link.start_seconds == pytest.approx(2e-4, rel=1e-6)
    assert link.byte_seconds == pytest.approx(8e-8, rel=1e-6)
    assert link.seconds(1e6) == pytest.approx(0.0802, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_busy_machine_moves_the_fit_little(seed):
    draw = np.random.default_rng(seed)
    seconds = (2e-4 + 8e-8 * SIZES) * draw.lognormal(0, 0.05, len(SIZES))
    slow = draw.random(len(SIZES)) < 0.15
    seconds[slow] *= draw.uniform(2, 30, slow.sum())
    link = fit_link(SIZES, seconds)
    assert link.start_seconds == pytest.approx(2e-4, rel=0.1)
    assert link.byte_seconds == pytest.approx(8e-8, rel=0.1)


def test_neither_part_is_ever_negative():
    assert fit_link([1e3, 1e4, 1e5], [2e-3, 1.5e-3, 1e-3]).byte_seconds == 0
    through_zero = fit_link([1e3, 1e4, 1e5], [1e-5, 1.5e-4, 2e-3])
    assert through_zero.start_seconds == 0
    assert through_zero.byte_seconds > 0


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([1.0], [1.0]), ([2.0, 2.0], [1.0, 1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [0.0, np.nan])],
)
def test_samples_that_say_nothing_are_refused(sizes, seconds):
    with pytest.raises(PlanError, match="two sizes"):
        fit_link(sizes, seconds)


def test_rounds_pair_every_rank_with_another_once():
    links = [[Link(i + 10.0 * j, 1.0) for j in range(4)] for i in range(4)]
    lanes = ring_lanes(links, num_exchanges=2)
    for exchange in range(2):
        for i in range(4):
            rounds = [int(lanes.round_L[(exchange * 4 + i) * 4 + j]) for j in range(4) if j != i]
            assert sorted(rounds) == [4 * exchange, 4 * exchange + 1, 4 * exchange + 2]
    assert lanes.start_seconds_L[16 + 4 * 2 + 3] == 32
    by_round = {(int(lanes.round_L[i * 4 + j]), j) for i in range(4) for j in range(4) if i != j}
    assert len(by_round) == 12  # in a round every rank receives once


def test_a_round_lasts_as_long_as_its_slowest_lane():
    lanes = Lanes(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.5, 1.0]), np.array([0, 0, 1]))
    assert lanes.seconds(np.array([4.0, 10.0, 2.0]), np.array([True, True, True])) == 7 + 5
    assert lanes.seconds(np.array([4.0, 0.0, 2.0]), np.array([True, False, False])) == 5
    with pytest.raises(PlanError, match="0 or more"):
        Lanes(np.array([-1.0]), np.array([1.0]), np.array([0]))

"""Rows by epoch: what each epoch sees, and when it may."""

from collections import Counter

import numpy as np
import pytest
import torch

from siafu.comm import HaloPlan
from siafu.ops import CSR
from siafu.pipeline.rows import Channel, Side

ROWS = 4


@pytest.fixture
def side() -> Side:
    """Two intervals of two nodes on one rank; each reads both."""
    indptr = torch.arange(0, 2 * ROWS + 1, 2)
    csr = CSR(indptr, torch.tensor([0, 3] * ROWS, dtype=torch.int32), ROWS)
    plan = HaloPlan.build(torch.zeros(0, dtype=torch.int64), [0], [0], ROWS)
    places = {0: slice(0, 2), 1: slice(2, 4)}
    needs = [np.array([0, 1]), np.array([0, 1])]
    return Side(csr, plan, (0, 2, 4), {}, places, needs, np.array([2, 2]))


def rows(value: float) -> torch.Tensor:
    return torch.full((2, 3), value)


def test_an_epoch_waits_for_rows_as_new_as_the_bound_says(side: Side) -> None:
    channel = Channel(side, [3], torch.float32, in_flight=2)
    channel.write(1, 0, rows(1.0), 1)
    assert not channel.is_ready(0, 1, 1, 1)  # of the second interval there is nothing yet
    channel.write(1, 1, rows(1.0), 1)
    assert channel.is_ready(0, 1, 1, 0)
    channel.write(2, 0, rows(2.0), 1)
    assert not channel.is_ready(0, 2, 1, 0)
    assert channel.is_ready(0, 2, 1, 1)


def test_an_epoch_never_sees_rows_of_a_later_one(side: Side) -> None:
    channel = Channel(side, [3], torch.float32, in_flight=2)
    for group in (0, 1):
        channel.write(1, group, rows(1.0), 1)
    channel.write(2, 0, rows(2.0), 1)
    ages: Counter[int] = Counter()
    assert channel.read(0, 1, 1, ages)[0][:, 0].tolist() == [1, 1, 1, 1]
    assert channel.read(0, 2, 1, ages)[0][:, 0].tolist() == [2, 2, 1, 1]
    assert ages == {0: 6, 1: 2}


def test_late_rows_reach_every_epoch_that_has_older_ones(side: Side) -> None:
    channel = Channel(side, [3], torch.float32, in_flight=2)
    for group in (0, 1):
        channel.write(1, group, rows(1.0), 1)
    channel.write(3, 0, rows(3.0), 2)
    channel.write(2, 1, rows(2.0), 2)
    seen = channel.read(0, 3, 2, Counter())[0]
    assert seen[:, 0].tolist() == [3, 3, 2, 2]


def test_views_are_used_again_once_nobody_reads_them(side: Side) -> None:
    channel = Channel(side, [3], torch.float32, in_flight=1)
    for epoch in (1, 2, 3):
        for group in (0, 1):
            channel.write(epoch, group, rows(float(epoch)), epoch)
    assert len(channel._views) == 1
    with pytest.raises(AssertionError, match="too early"):
        channel.write(4, 0, rows(4.0), 3)

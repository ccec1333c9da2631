"""What is kept saves asking, never changes an answer, and stays within its room."""

import torch
from torch import Tensor

from siafu.minibatch import HotRows


class Far:
    """Rows that others hold: address a has the row [a, 2a]."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def fetch(self, addresses: Tensor) -> dict[str, Tensor]:
        """Return rows, noting which were asked for."""
        self.asked += addresses.tolist()
        return {"x": torch.stack([addresses, 2 * addresses], dim=1).float()}


def test_rows_are_those_that_others_hold_whatever_is_kept() -> None:
    far, generator = Far(), torch.Generator().manual_seed(0)
    hot = HotRows(20, torch.arange(5), far.fetch)  # room for some, others must go
    for _ in range(30):
        wanted = torch.randint(0, 100, (25,), generator=generator).unique()
        got = hot.get(wanted, far.fetch)["x"]
        assert torch.equal(got, far.fetch(wanted)["x"])
        assert hot.num_kept <= 20


def test_rows_used_often_stay_and_are_not_asked_for_again() -> None:
    far = Far()
    hot = HotRows(3, torch.tensor([50, 51, 52]), far.fetch)
    for turn in range(6):
        hot.get(torch.tensor([7, 8, 60 + turn]), far.fetch)
    far.asked.clear()
    hot.get(torch.tensor([7, 8, 99]), far.fetch)
    assert far.asked == [99]


def test_free_places_are_filled_first() -> None:
    far = Far()
    hot = HotRows(5, torch.tensor([1]), far.fetch)
    hot.get(torch.tensor([2, 3]), far.fetch)
    assert hot.num_kept == 3
    far.asked.clear()
    hot.get(torch.tensor([1, 2, 3]), far.fetch)
    assert far.asked == []


def test_nothing_asked_for_is_nothing() -> None:
    far = Far()
    hot = HotRows(2, torch.zeros(0, dtype=torch.int64), far.fetch)
    assert hot.get(torch.zeros(0, dtype=torch.int64), far.fetch)["x"].shape == (0, 2)


def test_rows_that_fill_up_and_replace_at_once_keep_their_addresses() -> None:
    far = Far()
    hot = HotRows(3, torch.tensor([1]), far.fetch)
    hot.get(torch.tensor([5]), far.fetch)
    hot.get(torch.tensor([6, 7, 8]), far.fetch)  # one place is free, two are given up
    far.asked.clear()
    got = hot.get(torch.tensor([6, 7, 8]), far.fetch)["x"]
    assert far.asked == []
    assert got[:, 0].tolist() == [6.0, 7.0, 8.0]

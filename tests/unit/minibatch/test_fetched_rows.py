"""Rows that are kept, or packed: what comes back is what others hold, whichever are read."""

from itertools import pairwise

import torch
from torch import Tensor

from siafu.comm import World
from siafu.minibatch import HotRows
from siafu.minibatch.fetched_rows import packed_rows, unpack_rows
from siafu.nn import SparseRows, rows_to_sum_one
from siafu.ops import CSR


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


def test_rows_that_come_next_stay_before_those_used_often() -> None:
    far = Far()
    hot = HotRows(2, torch.tensor([1, 2]), far.fetch)
    for _ in range(5):
        hot.get(torch.tensor([1, 2]), far.fetch)
    hot.get(torch.tensor([1, 7, 8, 9]), far.fetch, coming=torch.tensor([1, 8]))
    far.asked.clear()
    got = hot.get(torch.tensor([1, 8]), far.fetch)["x"]
    assert far.asked == []
    assert got[:, 0].tolist() == [1.0, 8.0]


def test_knowing_what_comes_next_never_asks_for_more() -> None:
    generator, far = torch.Generator().manual_seed(0), Far()
    turns = [torch.randint(0, 60, (20,), generator=generator).unique() for _ in range(40)]
    blind, seeing = (HotRows(15, torch.arange(15), far.fetch) for _ in range(2))
    for turn, after in pairwise(turns):
        blind.get(turn, far.fetch)
        got = seeing.get(turn, far.fetch, after)["x"]
        assert torch.equal(got[:, 0], turn.float())
        assert seeing.num_kept <= 15
    assert seeing.misses < 0.9 * blind.misses


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


WIDTH = 40


def words() -> CSR:
    """Five rows: two without values, one with a column named twice, and the last column."""
    indptr = torch.tensor([0, 3, 3, 4, 8, 8])
    index = torch.tensor([4, 0, 4, 19, 1, 2, 3, 19], dtype=torch.int32)
    weight = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0, 0.0, 2.0, 4.0])
    return CSR(indptr, index, WIDTH, weight)


def test_rows_come_back_in_any_order() -> None:
    csr, wanted = words(), torch.tensor([3, 1, 0, 3, 4])
    reader = packed_rows(csr, World())
    assert reader is not None
    packed = reader.read(wanted)
    assert packed.shape == (5, reader.shape[1]) == (5, 8)
    got = unpack_rows(packed, wanted, WIDTH)
    want, _ = csr.select_rows(wanted)
    assert torch.equal(got.csr.indptr, want.indptr)
    assert torch.equal(got.csr.index, want.index), "in the order they were in"
    assert torch.equal(got.csr.weight, want.weight), "a zero that is kept stays"
    assert got.shape == (5, WIDTH)
    assert torch.equal(got.ids_N, wanted)


def test_no_rows_are_no_rows() -> None:
    reader = packed_rows(words(), World())
    assert reader is not None
    nothing = torch.empty(0, dtype=torch.int64)
    assert unpack_rows(reader.read(nothing), nothing, WIDTH).shape == (0, WIDTH)


def test_rows_that_are_to_sum_to_one() -> None:
    reader, wanted = packed_rows(words(), World(), normalise=True), torch.tensor([3, 1, 0])
    assert reader is not None
    got = unpack_rows(reader.read(wanted), wanted, WIDTH)
    summed = rows_to_sum_one(SparseRows(words(), torch.arange(5)))
    assert isinstance(summed, SparseRows)
    want = summed.select(wanted)
    assert torch.equal(got.dense(), want.dense())


def test_fuller_rows_are_written_out() -> None:
    dense = CSR(torch.tensor([0, 6]), torch.arange(6, dtype=torch.int32), WIDTH, torch.ones(6))
    assert packed_rows(dense, World()) is None

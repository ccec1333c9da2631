"""Sparse features as rows of equal length: back as they were, whichever are read."""

import torch

from siafu.comm import World
from siafu.minibatch.packed_rows import packed_rows, unpack_rows
from siafu.nn import SparseRows, rows_to_sum_one
from siafu.ops import CSR

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

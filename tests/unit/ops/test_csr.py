"""The matrix itself: what it refuses, and its transpose."""

import pytest
import torch

from siafu.errors import PlanError
from siafu.ops import CSR


def dense(csr: CSR) -> torch.Tensor:
    rows = torch.repeat_interleave(torch.arange(csr.num_rows), csr.degree().cpu())
    values = torch.ones(csr.num_edges) if csr.weight is None else csr.weight.cpu()
    out = torch.zeros(csr.num_rows, csr.num_cols, dtype=values.dtype)
    return out.index_put_((rows, csr.index.long().cpu()), values, accumulate=True)


def test_transpose_is_the_transpose(csr):
    back = csr.transpose()
    torch.testing.assert_close(dense(back), dense(csr).T)
    assert back.index.dtype == torch.int32
    assert back is csr.transpose()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_transpose_permutes_weights_by_its_order(device, make, dtype):
    csr = make("uneven", weighted=True, dtype=dtype).to(device)
    back, order = csr.transpose(), csr.transpose_order()
    assert torch.equal(back.weight, csr.weight[order])
    rows = torch.repeat_interleave(torch.arange(csr.num_rows, device=device), csr.degree())
    assert torch.equal(back.index.long(), rows[order])
    columns = torch.arange(csr.num_cols, device=device)
    assert torch.equal(csr.index[order].long(), torch.repeat_interleave(columns, back.degree()))
    assert all(row.diff().gt(0).all() for row in order.split(back.degree().tolist()))


def test_transpose_of_many_edges_is_the_same_on_any_number_of_threads(threads):
    from_threads = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        index = torch.randint(0, 5000, (300_000,), generator=torch.Generator().manual_seed(0))
        csr = CSR(torch.arange(0, 300_001, 100), index, 5000)
        from_threads.append((csr.transpose().index, csr.transpose_order()))
    for index, order in from_threads[1:]:
        assert torch.equal(index, from_threads[0][0])
        assert torch.equal(order, from_threads[0][1])
    assert torch.equal(order.long(), torch.sort(csr.index, stable=True).indices)


def test_to_the_same_device_is_the_same_matrix(uneven):
    assert uneven.to(uneven.device) is uneven


@pytest.mark.parametrize(
    ("indptr", "index", "problem"),
    [
        ([0, 2], [0], "indptr must run"),
        ([1, 1], [0], "indptr must run"),
        ([0, 2, 1, 2], [0, 1], "indptr falls"),
        ([0, 1], [5], "outside the matrix"),
        ([0, 1], [-1], "outside the matrix"),
    ],
)
def test_checked_refuses_numbers_that_would_read_foreign_memory(indptr, index, problem):
    with pytest.raises(PlanError, match=problem):
        CSR.checked(torch.tensor(indptr), torch.tensor(index), 5)


def test_shapes_and_types_are_refused_without_reading():
    indptr, index = torch.tensor([0, 1]), torch.tensor([0])
    with pytest.raises(PlanError, match="indptr must be int64"):
        CSR(indptr.int(), index, 1)
    with pytest.raises(PlanError, match="index must be int32"):
        CSR(indptr, index.float(), 1)
    with pytest.raises(PlanError, match="weight must have"):
        CSR(indptr, index, 1, torch.ones(2))
    with pytest.raises(PlanError, match="negative"):
        CSR(indptr, index, -1)

"""The neighbour maximum against its definition, in every implementation."""

import pytest
import torch

from siafu.ops import CSR, csr_max_reference, max_gradients, max_with_argument, neighbour_max
from siafu.ops.csr import reference
from siafu.ops.csr.maximum import csr_max, csr_max_grad

EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}
"""A maximum is one of its inputs, so nothing is rounded."""


def features(csr: CSR, width: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Small negative integers: many ties, and 0 would be wrong for any row with edges."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(-5, 0, (csr.num_cols, width), generator=generator)
    return whole.to(csr.device, dtype)


@pytest.mark.parametrize("width", [1, 16, 100])
def test_max_and_argument_equal_the_definition(csr, width):
    x = features(csr, width, torch.float32)
    for got, want in zip(max_with_argument(csr, x), csr_max_reference(csr, x), strict=True):
        torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize(
    ("width", "dtype"), [(0, torch.int32), (301, torch.int64), (512, torch.int32)]
)
def test_max_equals_the_definition_at_any_width(device, make, width, dtype):
    csr = make("uneven", dtype=dtype).to(device)
    x = features(csr, width)
    for got, want in zip(max_with_argument(csr, x), csr_max_reference(csr, x), strict=True):
        torch.testing.assert_close(got, want, **EXACT)


def test_infinities_and_nan_pass_through(uneven):
    x = features(uneven, 3, torch.float32)
    x[::2, 0], x[1, 1], x[3, 2], x[5, 2] = -torch.inf, torch.nan, torch.inf, torch.nan
    for got, want in zip(max_with_argument(uneven, x), csr_max_reference(uneven, x), strict=True):
        torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("width", [1, 20])
def test_gradient_goes_to_the_first_of_equal_edges(csr, width):
    x = features(csr, width).requires_grad_()
    want, got = csr_max_reference(csr, x)[0], neighbour_max(csr, x)
    torch.testing.assert_close(got, want, **EXACT)
    grad = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, grad)[0],
        torch.autograd.grad(want, x, grad, allow_unused=True)[0]
        if want.requires_grad
        else torch.zeros_like(x),
        rtol=1e-12,
        atol=1e-12,  # a hub adds 1500 gradients in another order
    )


def test_gradcheck_without_ties(uneven):
    x = torch.randperm(uneven.num_cols * 3, generator=torch.Generator().manual_seed(5)).double()
    x = x.view(-1, 3).to(uneven.device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: neighbour_max(uneven, x), (x,))


def test_gradient_of_many_rows_is_the_same_on_any_number_of_threads(threads):
    generator = torch.Generator().manual_seed(4)
    index = torch.randint(0, 500, (40_000,), generator=generator)
    csr = CSR(torch.arange(0, 40_001, 10), index, 500)
    x = torch.randn(500, 64, generator=generator).requires_grad_()
    grad, results = torch.randn(4000, 64, generator=generator), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(torch.autograd.grad(neighbour_max(csr, x), x, grad)[0])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("width", [1, 20, 64])
@pytest.mark.parametrize("degree", [1, 3, 9])
def test_gradient_of_a_block_is_the_same_by_edges_and_by_entries(degree, width):
    generator = torch.Generator().manual_seed(4)
    rows_M = torch.randperm(900, generator=generator)[:300].sort().values
    index = torch.randint(0, 50, (300 * degree,), generator=generator, dtype=torch.int32)
    csr, first = CSR(torch.arange(0, 300 * degree + 1, degree), index, 50), 70
    among = torch.randint(0, degree, (300, width), generator=generator)
    held = torch.arange(300)[:, None] * degree + among
    place = torch.randint(0, first, (900, width), generator=generator).int()  # of other blocks
    is_here = torch.rand(300, width, generator=generator) < 0.5
    place[rows_M] = torch.where(is_here, first + held.int(), place[rows_M])
    grad = torch.randn(900, width, generator=generator)
    grad[rows_M[0]] = torch.inf  # of no harm to sources whose maximum is elsewhere
    got = max_gradients(csr, place, grad, first=first, rows_M=rows_M)
    want = torch.zeros(50, width)
    reference.max_grad_into(index, place, grad, want, first=first, rows_M=rows_M)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_ops_are_registered_correctly(uneven):
    x = features(uneven, 3).requires_grad_()
    torch.library.opcheck(csr_max, (uneven.indptr, uneven.index, x))
    out, edge = max_with_argument(uneven, x)
    torch.library.opcheck(csr_max_grad, (uneven.index, edge, out, uneven.num_cols))


def test_plain_version_joins_its_slices(uneven, monkeypatch):
    monkeypatch.setattr(reference, "SLICE_ELEMENTS", 10)
    x = features(uneven, 3)
    for got, want in zip(max_with_argument(uneven, x), csr_max_reference(uneven, x), strict=True):
        torch.testing.assert_close(got, want, **EXACT)

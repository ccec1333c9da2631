"""For any matrix, sum and maximum equal their definitions and the transpose is the adjoint."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.ops import (
    CSR,
    DrawKey,
    csr_max_reference,
    csr_sum_reference,
    max_with_argument,
    neighbour_sum,
    uniform_rows,
)

EXAMPLES = settings(max_examples=40, deadline=None)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[CSR, torch.Tensor]:
    """A matrix with any rows, empty ones included, and a fitting float64 input."""
    num_cols = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(st.integers(0, num_cols - 1), max_size=9), max_size=7))
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    index = torch.tensor([j for row in rows for j in row], dtype=torch.int32)
    width, seed = draw(st.integers(0, 20)), draw(st.integers(0, 99))
    x = torch.randn(num_cols, width, generator=torch.Generator().manual_seed(seed)).double()
    return CSR.checked(indptr, index, num_cols), x


@EXAMPLES
@given(matrices())
def test_sum_and_max_equal_their_definitions(case):
    csr, x = case
    torch.testing.assert_close(neighbour_sum(csr, x), csr_sum_reference(csr, x))
    for got, want in zip(max_with_argument(csr, x), csr_max_reference(csr, x), strict=True):
        assert torch.equal(got, want)


@EXAMPLES
@given(matrices())
def test_transpose_is_the_adjoint(case):
    """<A x, y> = <x, A^T y> for every y."""
    csr, x = case
    y = torch.randn(csr.num_rows, x.size(1), dtype=x.dtype)
    forward, backward = neighbour_sum(csr, x) * y, x * neighbour_sum(csr.transpose(), y)
    torch.testing.assert_close(forward.sum(), backward.sum())
    assert torch.equal(csr.transpose().transpose().indptr, csr.indptr)


@EXAMPLES
@given(
    st.lists(st.integers(0, 2**48 - 1), max_size=20),
    st.integers(0, 13),
    st.integers(0, 2**64 - 1),
)
def test_draws_do_not_depend_on_their_company(ids, width, seed):
    key, ids_N = DrawKey(seed=seed, epoch=0, purpose=1), torch.tensor(ids, dtype=torch.int64)
    together = uniform_rows(key, ids_N, width)
    alone = [uniform_rows(key, ids_N[n : n + 1], width + 3)[:, :width] for n in range(len(ids))]
    assert torch.equal(together, torch.cat([together[:0], *alone]))

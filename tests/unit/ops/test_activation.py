"""Bias, ReLU and dropout in one pass: values, gradients and sums against plain operations."""

import pytest
import torch

from siafu.errors import PlanError
from siafu.ops import (
    CSR,
    DrawKey,
    activate_rows,
    activated_own_and_sum,
    can_activate,
    dropout_rows,
    has_fast_kernels,
    own_and_sum,
    set_threads,
)
from siafu.ops.activation import reference
from siafu.ops.contract import Draw
from siafu.ops.kernels import PLAIN, activation_kernels

KEY = DrawKey(seed=5, epoch=1, purpose=2)
CPU = torch.device("cpu")
SHAPES = [(0, 8), (1, 1), (3, 33), (257, 40), (600, 256), (300, 640), (4, 0)]

pytestmark = pytest.mark.skipif(not has_fast_kernels("cpu"), reason="Numba is not here")


def made(rows, width, dtype=torch.float32):
    """Rows, a bias, ids and a gradient; some entries are 0 after the bias, some are no number."""
    generator = torch.Generator().manual_seed(rows + width)
    z = torch.randn(rows, width, dtype=dtype, generator=generator)
    bias = torch.randn(width, dtype=dtype, generator=generator)
    if rows and width:
        z[0, 0], z[-1, -1] = -bias[0], torch.nan
    ids = torch.randint(0, 2**48, (rows,), generator=generator)
    return z, bias, ids, torch.randn(rows, width, dtype=dtype, generator=generator)


def matrix(rows, columns, most):
    """Rows of none to `most` edges, some repeated."""
    generator = torch.Generator().manual_seed(rows)
    degree = torch.randint(0, most + 1, (rows,), generator=generator)
    indptr = torch.zeros(rows + 1, dtype=torch.int64)
    indptr[1:] = degree.cumsum(0)
    index = torch.randint(0, columns, (int(indptr[-1]),), generator=generator)
    return CSR(indptr, index.to(torch.int32), columns)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_equal_the_reference(shape, dtype):
    z, bias, ids, grad = made(*shape, dtype)
    draw, found = Draw(KEY.row_words(), ids), []
    for kernels in (activation_kernels(CPU), PLAIN.activation):
        out, back = torch.empty_like(z), grad.clone()
        mask = torch.empty(shape[0], -(-shape[1] // 32), dtype=torch.int32)
        kernels.activate_into(draw, z, bias, out, mask, threshold=1 << 30, scale=4 / 3)
        sums = torch.empty_like(bias)
        kernels.grad_into(mask, back, sums, scale=4 / 3)
        found.append((out, mask, back, sums))
    for got, want in zip(*(one[:3] for one in found), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found[0][3], found[1][3], rtol=1e-5, atol=1e-4)


def test_a_mask_comes_back_as_it_was():
    flags = torch.rand(5, 70, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(reference.unpacked(reference.packed(flags), 70), flags)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.5, 0.1, 1 - 2**-40])
def test_it_is_relu_and_then_dropout(shape, p):
    z, bias, ids, grad = made(*shape)
    one, two = z.clone().requires_grad_(), z.clone().requires_grad_()
    bias_one, bias_two = bias.clone().requires_grad_(), bias.clone().requires_grad_()
    got = activate_rows(one * 1, bias_one, ids, KEY, p, overwrite=True).rows_ND
    want = dropout_rows(two + bias_two, ids, KEY, p, relu=True)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    kept = grad.clone()
    got.backward(grad)
    want.backward(grad)
    assert torch.equal(grad, kept)
    assert torch.equal(one.grad, two.grad)
    torch.testing.assert_close(bias_one.grad, bias_two.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (257, 40), (600, 256), (300, 640)])
@pytest.mark.parametrize("used", ["both", "own", "sum"])
def test_a_sum_takes_the_gradient_along(shape, used):
    z, bias, ids, _ = made(*shape)
    z = z.nan_to_num()
    csr = matrix((shape[0] + 1) // 2, shape[0], 7)
    scales = {
        "row_scale_M": torch.linspace(0.5, 1, csr.num_rows),
        "col_scale_C": torch.linspace(1, 2, csr.num_cols),
    }
    found = []
    for fused in (True, False):
        leaf, bias_leaf = z.clone().requires_grad_(), bias.clone().requires_grad_()
        if fused:
            activated = activate_rows(leaf * 1, bias_leaf, ids, KEY, 0.3, overwrite=True)
            pair = activated_own_and_sum(csr, activated, **scales)
        else:
            rows = dropout_rows(leaf + bias_leaf, ids, KEY, 0.3, relu=True)
            pair = own_and_sum(csr, rows, **scales)
        outs = {"both": pair, "own": pair[:1], "sum": pair[1:]}[used]
        sum((out * (number + 2)).square().sum() for number, out in enumerate(outs)).backward()
        found.append((*(out.detach() for out in pair), leaf.grad, bias_leaf.grad))
    for got, want in zip(*(one[:3] for one in found), strict=True):
        assert torch.equal(got, want)
    torch.testing.assert_close(found[0][3], found[1][3], rtol=1e-5, atol=1e-3)


def test_sums_do_not_depend_on_the_number_of_threads(threads):
    z, bias, ids, grad = made(5000, 96)
    csr, found = matrix(2000, 5000, 5), []
    for count in (1, 2, 3):
        set_threads(count)
        leaf, bias_leaf = z.nan_to_num().requires_grad_(), bias.clone().requires_grad_()
        activated = activate_rows(leaf, bias_leaf, ids, KEY, 0.5)
        own, total = activated_own_and_sum(csr, activated)
        (own.sum() + total.square().sum() + (activated.rows_ND * grad).sum()).backward()
        found.append((own.detach(), total.detach(), leaf.grad, bias_leaf.grad))
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


def test_memory_that_a_function_has_kept_is_not_overwritten_in_silence():
    z, bias, ids, _ = made(5, 8)
    leaf = z.nan_to_num().requires_grad_()
    kept = torch.exp(leaf)
    rows = activate_rows(kept, bias, ids, KEY, 0.5, overwrite=True).rows_ND
    with pytest.raises(RuntimeError, match="inplace"):
        rows.sum().backward()
    given = leaf.detach().clone()
    activate_rows(leaf, bias, ids, KEY, 0.5, overwrite=True)
    part = (leaf * 1)[:3]
    before = part.clone()
    activate_rows(part, bias, ids[:3], KEY, 0.5, overwrite=True)
    assert torch.equal(leaf, given)
    assert torch.equal(part, before)


def test_other_rows_are_not_taken():
    assert can_activate(CPU, torch.float32)
    assert not can_activate(CPU, torch.bfloat16)
    assert not can_activate(torch.device("meta"), torch.float32)
    with pytest.raises(PlanError, match="a bias for each column"):
        activate_rows(torch.ones(3, 2), torch.ones(3), torch.arange(3), KEY, 0.5)

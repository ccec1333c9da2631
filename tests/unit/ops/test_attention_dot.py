"""Dot-product attention against its definition, in plain torch and Numba (CUDA runs the former)."""

import pytest
import torch

from siafu.errors import PlanError
from siafu.ops import (
    CSR,
    DrawKey,
    EdgeDraw,
    SoftmaxState,
    dot_attend_backward,
    dot_attend_into,
    dot_attention,
    dot_reference,
    finish,
    set_threads,
)
from siafu.ops.attention import op_arguments, turned
from siafu.ops.attention_dot import dot

FLOAT64 = {"rtol": 1e-11, "atol": 1e-11}
FLOAT32 = {"rtol": 1e-4, "atol": 1e-4}


def draw(generator, csr, *shape, dtype):
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values.to(csr.device, dtype).requires_grad_()


def inputs_of(csr, heads, width, *, dtype=torch.float64, bias=False):
    generator = torch.Generator().manual_seed(1)
    return {
        "query_MHD": draw(generator, csr, csr.num_rows, heads, width, dtype=dtype),
        "key_CHD": draw(generator, csr, csr.num_cols, heads, width, dtype=dtype),
        "value_CHD": draw(generator, csr, csr.num_cols, heads, width, dtype=dtype),
        "bias_EH": draw(generator, csr, csr.num_edges, heads, dtype=dtype) if bias else None,
    }


def draw_of(csr, p=0.4):
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(0, 2**48, (n,), generator=generator) for n in (csr.num_cols, csr.num_rows)]
    return EdgeDraw(DrawKey(seed=3, epoch=7, purpose=1), p, *(i.to(csr.device) for i in ids))


def with_gradients(function, csr, inputs, **options):
    """Return the output and the gradient of every input, by name."""
    out = function(csr, **inputs, **options)
    names = [name for name, value in inputs.items() if value is not None]
    generator = torch.Generator().manual_seed(5)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    wanted = [inputs[name] for name in names]
    # without rows, the definition reads only value
    grads = torch.autograd.grad(out, wanted, grad, materialize_grads=True)
    return {"out": out.detach(), **dict(zip(names, grads, strict=True))}


def assert_equal(got, want, **bounds):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, **bounds, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 5), (8, 8), (4, 32)])
def test_attention_and_gradients_equal_the_definition(uneven, heads, width):
    inputs = inputs_of(uneven, heads, width, dtype=torch.float32)
    want = with_gradients(dot_reference, uneven, inputs)
    assert_equal(with_gradients(dot_attention, uneven, inputs), want, **FLOAT32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_awkward_rows_equal_the_definition(csr, bias, dropped):
    inputs, drop = inputs_of(csr, 3, 5, bias=bias), draw_of(csr) if dropped else None
    want = with_gradients(dot_reference, csr, inputs, drop=drop)
    assert_equal(with_gradients(dot_attention, csr, inputs, drop=drop), want, **FLOAT64)


def test_large_scores_do_not_overflow(uneven):
    inputs = inputs_of(uneven, 3, 5)
    inputs = {
        k: None if v is None else (100 * v.detach()).requires_grad_() for k, v in inputs.items()
    }
    want = with_gradients(dot_reference, uneven, inputs)
    assert_equal(with_gradients(dot_attention, uneven, inputs), want, rtol=1e-9, atol=1e-7)


def test_several_blocks_equal_one(uneven):
    inputs = inputs_of(uneven, 3, 5, bias=True)
    want = with_gradients(dot_reference, uneven, inputs, drop=(drop := draw_of(uneven)))
    query, key, value, bias = (t.detach() for t in inputs.values())
    rows, blocks = uneven.rows(), []
    for lo, hi in ((0, 4), (4, 4), (4, uneven.num_cols)):
        edges = ((uneven.index >= lo) & (uneven.index < hi)).nonzero()[:, 0]
        counts = torch.bincount(rows[edges], minlength=uneven.num_rows)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        part = EdgeDraw(drop.key, drop.p, drop.ids_C[lo:hi], drop.ids_M)
        block = CSR(indptr, uneven.index[edges] - lo, hi - lo)
        blocks.append((slice(lo, hi), edges, block, {"bias_EH": bias[edges], "drop": part}))
    state = SoftmaxState.empty(*query.shape, query)
    for columns, _, block, options in blocks:
        dot_attend_into(block, query, key[columns], value[columns], state, **options)
    out, lse = finish(state)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    grad = grad.to(out)
    known = lse, grad, (grad * out).sum(dim=2)
    got = {"out": out, "query_MHD": torch.zeros_like(query)}
    for name in ("key_CHD", "value_CHD", "bias_EH"):
        got[name] = torch.full_like(inputs[name], torch.nan).detach()
    for columns, edges, block, options in blocks:
        tensors = query, key[columns], value[columns]
        got["key_CHD"][columns], got["value_CHD"][columns], got["bias_EH"][edges] = (
            dot_attend_backward(block, *tensors, *known, **options, grad_query_MHD=got["query_MHD"])
        )
    assert_equal(got, want, **FLOAT64)


def test_gradcheck(uneven):
    inputs, drop = inputs_of(uneven, 2, 2, bias=True), draw_of(uneven)

    def call(query, key, value, bias):
        return dot_attention(uneven, query, key, value, bias_EH=bias, drop=drop)

    # on CUDA the plain version adds in no fixed order
    assert torch.autograd.gradcheck(call, tuple(inputs.values()), nondet_tol=1e-12)


def test_op_is_registered_correctly(uneven):
    for bias, drop in ((False, None), (True, draw_of(uneven))):
        inputs, back = inputs_of(uneven, 3, 5, bias=bias), turned(uneven, with_order=bias)
        arguments = (uneven.indptr, uneven.index, *inputs.values(), *op_arguments(drop), *back)
        torch.library.opcheck(dot, arguments)


def test_result_does_not_depend_on_the_number_of_threads(threads):
    generator = torch.Generator().manual_seed(4)
    degree = torch.randint(0, 40, (3000,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    index = torch.randint(0, 3000, (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    csr, results = CSR(indptr, index, 3000), []
    inputs = inputs_of(csr, 3, 5, dtype=torch.float32)
    for count in (1, 2, 3):
        set_threads(count)
        results.append(with_gradients(dot_attention, csr, inputs))
    for result in results[1:]:
        assert_equal(result, results[0], rtol=0, atol=0)


def test_arguments_that_do_not_fit_are_refused(make):
    csr = make("uneven")
    inputs = inputs_of(csr, 2, 3)
    with pytest.raises(PlanError, match="value_CHD does not fit"):
        dot_attention(csr, **{**inputs, "value_CHD": torch.ones(csr.num_cols, 2)})
    with pytest.raises(PlanError, match="query_MHD does not fit"):
        dot_attention(csr, **{**inputs, "query_MHD": inputs["query_MHD"].float()})

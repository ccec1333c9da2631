"""Products of many rows with a map are torch's, whichever library makes them."""

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from siafu import ops
from siafu.nn import GNN, Draws, LocalNeighbours, ModelSpec
from siafu.ops import CSR, product

zen5 = pytest.mark.skipif(not product._is_faster_here(), reason="torch's own products, here")
"""Other processors have other kernels of oneDNN, which nobody asks."""
ROWS = (0, 1, product.STEP_ROWS - 1, product.PIECE_ROWS, product.GRADIENT_ROWS + 77)


@pytest.fixture(autouse=True, params=["torch", "pieces"])
def library(request, monkeypatch):
    if request.param == "pieces" and not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(product, "_is_faster_here", lambda: request.param == "pieces")
    return request.param


def made(rows, width, out_width, dtype=torch.float32):
    torch.manual_seed(rows + width)
    x = torch.randn(rows, width, dtype=dtype).requires_grad_()
    weight = torch.randn(out_width, width, dtype=dtype).requires_grad_()
    bias = torch.randn(out_width, dtype=dtype).requires_grad_()
    return x, weight, bias


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("width", "out_width"), [(64, 64), (100, 256), (256, 41), (3, 5)])
def test_linear_and_its_gradients(rows, width, out_width):
    x, weight, bias = made(rows, width, out_width)
    grad = torch.randn(rows, out_width)
    found = torch.autograd.grad(ops.linear(x, weight, bias), (x, weight, bias), grad)
    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    out = functional.linear(*wide)
    expected = torch.autograd.grad(out, wide, grad.double())
    torch.testing.assert_close(ops.linear(x, weight, bias), out.float(), rtol=1e-4, atol=1e-4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("rows", ROWS)
def test_added_to_rows(rows):
    x, weight, _ = made(rows, 64, 96)
    start = torch.randn(rows, 96).requires_grad_()
    out = ops.linear_onto(start * 1, x, weight)
    grad = torch.randn(rows, 96)
    found = torch.autograd.grad(out, (start, x, weight), grad)
    again = start + functional.linear(x, weight)
    expected = torch.autograd.grad(again, (start, x, weight), grad)
    torch.testing.assert_close(out, again, rtol=1e-4, atol=1e-4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-3)


def test_rows_that_are_views_and_maps_that_are_turned():
    x, weight, _ = made(3000, 80, 64)
    some = x.detach()[::2, 8:72]
    turned = weight.detach()[:, 8:72].t()
    torch.testing.assert_close(ops.map_rows(some, turned), some @ turned.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ops.map_gradient(some, some), some.t() @ some, rtol=1e-4, atol=2e-3)


@zen5
def test_a_row_does_not_depend_on_where_it_stands(library):
    if library == "torch":
        pytest.skip("MKL multiplies a single row in another way")
    x, weight, _ = made(2500, 128, 64)
    whole = ops.map_rows(x.detach(), weight.detach())
    for count in (1, 63, product.STEP_ROWS, product.PIECE_ROWS, 3 * product.PIECE_ROWS + 5):
        for first in (0, 2500 - count):
            some = slice(first, first + count)
            assert torch.equal(whole[some], ops.map_rows(x.detach()[some], weight.detach()))


@zen5
@pytest.mark.parametrize(("width", "out_width"), [(128, 96), (96, 128), (1024, 64), (3000, 8)])
def test_bits_do_not_depend_on_threads(width, out_width):
    x, weight, _ = made(3000, width, out_width)
    grad = torch.randn(3000, out_width)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            rows = ops.map_rows(x.detach(), weight.detach())
            found.append((rows, ops.map_gradient(grad, x.detach())))
    finally:
        torch.set_num_threads(before)
    for rows, gradient in found[1:]:
        assert torch.equal(rows, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_other_types_are_left_to_torch():
    x, weight, bias = made(2048, 64, 64, torch.float64)
    assert torch.equal(ops.linear(x, weight, bias), functional.linear(x, weight, bias))
    x, weight, bias = made(2048, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.linear(x, weight, bias).dtype == torch.bfloat16
        assert ops.linear_onto(torch.zeros(2048, 64).bfloat16(), x, weight).dtype == torch.bfloat16


def test_only_what_needs_a_gradient_gets_one():
    x, weight, bias = made(1500, 64, 64)
    ops.linear(x.detach(), weight, None).sum().backward()
    assert weight.grad is not None
    assert x.grad is None
    out = ops.linear(x.detach(), weight.detach(), bias.detach())
    assert not out.requires_grad


def test_gradients_of_gradients():
    x, weight, bias = made(700, 64, 64)
    found = []
    for mapping in (ops.linear, functional.linear):
        grad = torch.autograd.grad(mapping(x, weight, bias).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad[0].square().sum(), (x, weight)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-1)


def test_a_map_to_one_number_per_row():
    x, weight, _ = made(700, 128, 64)
    assert ops.linear(x, weight[0]).shape == (700,)


def test_processors_are_told_apart():
    known = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
    assert product.is_zen5(known)
    assert not product.is_zen5(known.replace("26", "25"))
    assert not product.is_zen5(known.replace("AuthenticAMD", "GenuineIntel"))
    assert not product.is_zen5("")


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat", "gatv2", "transformer"])
def test_every_product_of_a_model_is_of_the_fastest_kind(model, monkeypatch):
    """Torch's own products of rows with a map are gone from a step, forward and backward."""
    monkeypatch.setattr(product, "_is_faster_here", lambda: True)
    spec = ModelSpec(name=model, in_width=96, out_width=80, hidden=128, layers=3)
    graph = CSR(torch.arange(1001), torch.arange(1000) // 2, 1000)
    draws = Draws(training=True)
    neighbours = LocalNeighbours(graph, torch.arange(1000), draws)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        logits = GNN(spec)(torch.randn(1000, 96), neighbours, draws)
        logits.sum().backward()
    calls = {event.key: event.count for event in seen.key_averages()}
    assert calls["mkldnn::_linear_pointwise"] >= 3 * spec.layers - 1
    if spec.card.aggregation != "attention":  # whose scores are narrow products, torch's
        assert not {"aten::addmm", "aten::linear"} & set(calls)

"""GAT's attention against its definition, in every implementation."""

import os
from importlib import import_module
from itertools import pairwise

import pytest
import torch

from siafu.errors import ConfigError, PlanError
from siafu.ops import (
    CSR,
    DrawKey,
    EdgeDraw,
    SoftmaxState,
    attend_backward,
    attend_into,
    csr_torch,
    dropout_pairs,
    finish,
    gat_attention,
    gat_reference,
    kernels,
    set_threads,
)
from siafu.ops.attention import op_arguments, turned
from siafu.ops.attention_gat import gat

FLOAT64 = {"rtol": 1e-11, "atol": 1e-11}
FLOAT32 = {"rtol": 1e-4, "atol": 2e-4}
"""A hub's 1500 terms, and a gradient is the small difference of two such sums."""

SLOPE = 0.2


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    """conftest's `device` chooses an implementation; in the interpreter, this file's part of it."""
    if "triton" in request.node.name and os.environ.get("TRITON_INTERPRET") == "1":
        request.getfixturevalue("device")
        triton = import_module("siafu.ops.attention_gat_triton")
        monkeypatch.setitem(kernels.fast, "cpu", kernels.fast["cpu"]._replace(gat=triton))


def make_csr(degrees, num_cols, *, seed=0, dtype=torch.int32):
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(degrees).cumsum(0)])
    generator = torch.Generator().manual_seed(seed)
    # the last column stays unread, so its gradient must be 0
    high = max(1, num_cols - 1)
    index = torch.randint(0, high, (int(indptr[-1]),), generator=generator, dtype=dtype)
    return CSR(indptr, index, num_cols)


def inputs_of(csr, heads, width, *, dtype=torch.float64, bias=False, scale=1.0, seed=1):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.to(csr.device, dtype)

    return {
        "z_CHD": draw(csr.num_cols, heads, width).requires_grad_(),
        "left_CH": (scale * draw(csr.num_cols, heads)).requires_grad_(),
        "right_MH": (scale * draw(csr.num_rows, heads)).requires_grad_(),
        "bias_EH": draw(csr.num_edges, heads).requires_grad_() if bias else None,
    }


def draw_of(csr, p=0.4, seed=3):
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 2**48, (n,), generator=generator) for n in (csr.num_cols, csr.num_rows)]
    return EdgeDraw(DrawKey(seed=seed, epoch=7, purpose=1), p, *(i.to(csr.device) for i in ids))


def with_gradients(function, csr, inputs, **options):
    """Return the output and the gradient of every input, by name."""
    out = function(csr, **inputs, slope=SLOPE, **options)
    names = [name for name, value in inputs.items() if value is not None]
    generator = torch.Generator().manual_seed(5)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    wanted = [inputs[name] for name in names]
    # without rows, the definition reads only z
    grads = torch.autograd.grad(out, wanted, grad, materialize_grads=True)
    return {"out": out.detach(), **dict(zip(names, grads, strict=True))}


def assert_equal(got, want, **bounds):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, **bounds, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 5), (8, 8), (1, 64), (8, 64), (4, 32)])
def test_attention_and_gradients_equal_the_definition(uneven, heads, width):
    inputs = inputs_of(uneven, heads, width, dtype=torch.float32)
    want = with_gradients(gat_reference, uneven, inputs)
    assert_equal(with_gradients(gat_attention, uneven, inputs), want, **FLOAT32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(("heads", "dtype"), [(1, torch.int32), (3, torch.int64), (8, torch.int32)])
def test_bias_and_dropout_equal_the_definition(device, bias, dropped, heads, dtype):
    csr = make_csr([0, 3, 1, 0, 40, 5, 32, 33, 2, 0], 9, dtype=dtype).to(device)
    inputs = inputs_of(csr, heads, 5, bias=bias)
    options = {"drop": draw_of(csr) if dropped else None}
    want = with_gradients(gat_reference, csr, inputs, **options)
    assert_equal(with_gradients(gat_attention, csr, inputs, **options), want, **FLOAT64)


def test_awkward_rows_equal_the_definition(csr):
    inputs = inputs_of(csr, 3, 5, bias=True)
    want = with_gradients(gat_reference, csr, inputs, drop=draw_of(csr))
    assert_equal(with_gradients(gat_attention, csr, inputs, drop=draw_of(csr)), want, **FLOAT64)


def test_awkward_hub_of_100000_edges_equals_the_definition(device):
    csr = make_csr([3, 100_000, 0, 1], 5000).to(device)
    inputs = inputs_of(csr, 3, 5, dtype=torch.float32)
    wide = {
        k: None if v is None else v.detach().double().requires_grad_() for k, v in inputs.items()
    }
    want = {k: v.float() for k, v in with_gradients(gat_reference, csr, wide).items()}
    assert_equal(with_gradients(gat_attention, csr, inputs), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_ten_thousand_do_not_overflow(uneven, sign):
    inputs = inputs_of(uneven, 3, 5, dtype=torch.float32, scale=0.3)
    inputs["right_MH"] = (inputs["right_MH"].detach() + sign * 1e4).requires_grad_()
    got = with_gradients(gat_attention, uneven, inputs)
    # scores of 1e4 are rounded by 1e-3, and so is the log-sum-exp that backward works from
    assert_equal(got, with_gradients(gat_reference, uneven, inputs), rtol=1e-2, atol=1e-2)


def test_far_apart_scores_do_not_overflow(uneven):
    inputs = inputs_of(uneven, 3, 5, scale=1e4)
    want = with_gradients(gat_reference, uneven, inputs)
    assert_equal(with_gradients(gat_attention, uneven, inputs), want, rtol=1e-9, atol=1e-9)


def test_infinite_bias_masks_edges(uneven):
    inputs = inputs_of(uneven, 3, 5, bias=True)
    bias = inputs["bias_EH"].detach()
    bias[1::2] = -torch.inf
    lo, hi = uneven.indptr[4:6].tolist()
    bias[lo:hi] = -torch.inf
    inputs["bias_EH"] = bias.requires_grad_()
    got = with_gradients(gat_attention, uneven, inputs)
    assert all(value.isfinite().all() for value in got.values())
    assert (got["out"][4] == 0).all()
    assert (got["bias_EH"][bias == -torch.inf] == 0).all()


@pytest.mark.parametrize("name", ["z_CHD", "left_CH"])
def test_nan_reaches_the_output(uneven, name):
    inputs = inputs_of(uneven, 3, 5, dtype=torch.float32)
    with torch.no_grad():
        inputs[name][uneven.index[0].long()] = torch.nan
    out = gat_attention(uneven, **inputs, slope=SLOPE)
    read = [uneven.index[lo:hi].tolist() for lo, hi in pairwise(uneven.indptr.tolist())]
    poisoned = torch.tensor([int(uneven.index[0]) in row for row in read], device=out.device)
    torch.testing.assert_close(out.isnan().any(dim=2).any(dim=1), poisoned)


def blocks_of(csr, cuts):
    """Return the columns of each block and the edges that read them, with their numbers."""
    rows = csr.rows()
    for lo, hi in pairwise(cuts):
        edges = ((csr.index >= lo) & (csr.index < hi)).nonzero()[:, 0]
        counts = torch.bincount(rows[edges], minlength=csr.num_rows)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        yield slice(lo, hi), CSR(indptr, csr.index[edges] - lo, hi - lo), edges


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_blocks_equal_one(device, dtype):
    csr = make_csr([0, 3, 1, 0, 40, 5, 32, 33, 2, 0], 11).to(device)
    inputs = inputs_of(csr, 3, 5, dtype=dtype, bias=True)
    want = with_gradients(gat_reference, csr, inputs, drop=(drop := draw_of(csr)))
    z, left, right, bias = (t.detach() for t in inputs.values())
    state = SoftmaxState.empty(csr.num_rows, 3, 5, z)

    def arguments(columns, edges):
        draw = EdgeDraw(drop.key, drop.p, drop.ids_C[columns], drop.ids_M)
        return (z[columns], left[columns], right), {"bias_EH": bias[edges], "drop": draw}

    blocks = list(blocks_of(csr, [0, 4, 4, 9, 11]))
    for columns, block, edges in blocks:
        tensors, options = arguments(columns, edges)
        attend_into(block, *tensors, state, slope=SLOPE, **options)
    out, lse = finish(state)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    grad = grad.to(out)
    delta, grad_right = (grad * out).sum(dim=2), torch.zeros_like(right)
    got = {
        "out": out,
        "z_CHD": torch.full_like(z, torch.nan),
        "left_CH": torch.full_like(left, torch.nan),
    }
    got |= {"right_MH": grad_right, "bias_EH": torch.full_like(bias, torch.nan)}
    for columns, block, edges in blocks:
        tensors, options = arguments(columns, edges)
        got["z_CHD"][columns], got["left_CH"][columns], got["bias_EH"][edges] = attend_backward(
            block, *tensors, lse, grad, delta, slope=SLOPE, **options, grad_right_MH=grad_right
        )
    assert_equal(got, want, **(FLOAT64 if dtype == torch.float64 else FLOAT32))


def test_dropout_is_that_of_pairs(device):
    """Ones as values make an output the sum of its kept weights."""
    csr = make_csr([4, 0, 30, 1], 7).to(device)
    inputs, drop = inputs_of(csr, 6, 1), draw_of(csr, p=0.3)
    weight = torch.cat(
        [
            (inputs["left_CH"][csr.index[lo:hi].long()] + inputs["right_MH"][i])
            for i, (lo, hi) in enumerate(pairwise(csr.indptr.tolist()))
        ]
    )
    weight = torch.nn.functional.leaky_relu(weight, SLOPE).exp()
    rows = csr.rows()
    whole = torch.zeros(4, 6, dtype=weight.dtype, device=device).index_add(0, rows, weight)
    ids = drop.ids_C[csr.index.long()], drop.ids_M[rows]
    kept = dropout_pairs(weight / whole[rows], *ids, drop.key, drop.p)
    want = torch.zeros_like(whole).index_add(0, rows, kept)
    inputs["z_CHD"] = torch.ones_like(inputs["z_CHD"])
    got = gat_attention(csr, **inputs, slope=SLOPE, drop=drop)
    torch.testing.assert_close(got[:, :, 0], want, **FLOAT64)


def test_dropout_is_unbiased_over_seeds(make):
    csr = make("uneven")
    inputs = {k: None if v is None else v.detach() for k, v in inputs_of(csr, 4, 2).items()}
    whole = gat_attention(csr, **inputs, slope=SLOPE)
    draws = torch.stack(
        [gat_attention(csr, **inputs, slope=SLOPE, drop=draw_of(csr, seed=s)) for s in range(2000)]
    )
    error = draws.std(dim=0) / 2000**0.5
    assert ((draws.mean(dim=0) - whole).abs() <= 5 * error + 1e-12).all()
    assert (error[csr.degree() > 0] > 0).all()


def test_rate_of_zero_drops_nothing(uneven):
    inputs = inputs_of(uneven, 2, 3)
    got = gat_attention(uneven, **inputs, slope=SLOPE, drop=draw_of(uneven, p=0.0))
    assert torch.equal(got, gat_attention(uneven, **inputs, slope=SLOPE))


def test_gradcheck(device):
    csr = make_csr([0, 3, 1, 4, 0], 4).to(device)
    inputs, drop = inputs_of(csr, 3, 5, bias=True), draw_of(csr)

    def call(z, left, right, bias):
        return gat_attention(csr, z, left, right, slope=SLOPE, bias_EH=bias, drop=drop)

    assert torch.autograd.gradcheck(call, tuple(inputs.values()))


def test_op_is_registered_correctly(uneven):
    for bias, drop in ((False, None), (True, draw_of(uneven))):
        inputs = inputs_of(uneven, 3, 5, bias=bias)
        back = turned(uneven, with_order=bias)
        torch.library.opcheck(
            gat,
            (uneven.indptr, uneven.index, *inputs.values(), SLOPE, *op_arguments(drop), *back),
        )


def test_result_does_not_depend_on_the_number_of_threads(threads):
    generator = torch.Generator().manual_seed(4)
    csr = make_csr(torch.randint(0, 40, (3000,), generator=generator).tolist(), 3000)
    inputs, results = inputs_of(csr, 3, 5, dtype=torch.float32), []
    for count in (1, 2, 3, 2):
        set_threads(count)
        results.append(with_gradients(gat_attention, csr, inputs))
    for result in results[1:]:
        assert_equal(result, results[0], rtol=0, atol=0)


def test_plain_version_joins_its_slices(uneven, monkeypatch):
    monkeypatch.setattr(csr_torch, "SLICE_ELEMENTS", 50)
    inputs, drop = inputs_of(uneven, 3, 5, bias=True), draw_of(uneven)
    want = with_gradients(gat_reference, uneven, inputs, drop=drop)
    assert_equal(with_gradients(gat_attention, uneven, inputs, drop=drop), want, **FLOAT64)


@pytest.mark.parametrize("fast", [False, True])
def test_no_tensor_has_a_number_for_each_edge_and_head(fast, monkeypatch, threads):
    """1 M edges x 8 heads: forward and backward add less resident memory than one such tensor."""
    set_threads(1)  # slices this small are all waiting when two threads share a busy core
    if not fast:
        monkeypatch.setitem(kernels.fast, "cpu", kernels.PLAIN)
        monkeypatch.setattr(csr_torch, "SLICE_ELEMENTS", 1 << 18)
    csr = make_csr([50] * 20_000, 20_000)
    inputs = inputs_of(csr, 8, 4, dtype=torch.float32)
    csr.transpose()
    drop = draw_of(csr) if fast else None  # drawing in plain torch takes seconds

    def step():
        gat_attention(csr, **inputs, slope=SLOPE, drop=drop).sum().backward()

    step()
    assert _added_bytes(step) < csr.num_edges * 8 * 4


def _added_bytes(function):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # sets the high-water mark to the present

    def status(field):
        with open("/proc/self/status") as file:
            return int(next(line for line in file if line.startswith(field)).split()[1]) * 1024

    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def test_numba_is_in_charge_on_cpu():
    assert kernels.gat_kernels(torch.device("cpu"), torch.float32) is import_module(
        "siafu.ops.attention_gat_numba"
    )
    assert kernels.gat_kernels(torch.device("cpu"), torch.bfloat16) is kernels.PLAIN.gat


def test_arguments_that_do_not_fit_are_refused(make):
    csr = make("uneven")
    inputs, drop = inputs_of(csr, 2, 3), draw_of(csr)
    state = SoftmaxState.empty(csr.num_rows, 2, 4, inputs["z_CHD"])
    with pytest.raises(PlanError, match="z_CHD does not fit"):
        gat_attention(csr, **{**inputs, "z_CHD": torch.ones(csr.num_cols, 2)}, slope=SLOPE)
    with pytest.raises(PlanError, match="left_CH does not fit"):
        gat_attention(csr, **{**inputs, "left_CH": inputs["left_CH"].float()}, slope=SLOPE)
    wrong = EdgeDraw(drop.key, 0.1, drop.ids_C, drop.ids_C)
    with pytest.raises(PlanError, match="ids_M does not fit"):
        gat_attention(csr, **inputs, slope=SLOPE, drop=wrong)
    with pytest.raises(PlanError, match=r"state.total_MHD does not fit"):
        attend_into(csr, *list(inputs.values())[:3], state, slope=SLOPE)
    with pytest.raises(ConfigError, match="dropout rate"):
        EdgeDraw(drop.key, 1.0, drop.ids_C, drop.ids_M)


def test_state_with_gaps_is_refused(make):
    csr = make("uneven")
    inputs = inputs_of(csr, 2, 3)
    whole = SoftmaxState.empty(csr.num_rows, 2, 6, inputs["z_CHD"])
    gaps = SoftmaxState(whole.top_MH, whole.weight_MH, whole.total_MHD[:, :, ::2])
    with pytest.raises(PlanError, match="must have no gaps"):
        attend_into(csr, *list(inputs.values())[:3], gaps, slope=SLOPE)


def test_tensors_with_gaps_are_accepted(uneven):
    inputs = inputs_of(uneven, 6, 4)
    inputs = {
        k: None if v is None else v.detach()[:, ::2].requires_grad_() for k, v in inputs.items()
    }
    want = with_gradients(gat_reference, uneven, inputs)
    assert_equal(with_gradients(gat_attention, uneven, inputs), want, **FLOAT64)

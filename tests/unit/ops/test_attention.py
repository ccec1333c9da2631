"""Every kind of attention against its definition, in every implementation."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from siafu.errors import ConfigError, PlanError
from siafu.ops import (
    CSR,
    EdgeDraw,
    HeldKey,
    SoftmaxState,
    attend,
    attend_reference,
    delta_of,
    finish,
    fold_backward,
    fold_into,
    kernels,
    set_threads,
)
from siafu.ops.attention.attend import attention, transposed
from siafu.ops.attention.kinds import factor_of
from siafu.ops.attention.softmax import op_arguments
from siafu.ops.csr import reference as csr_reference
from tests.unit.ops.attention_cases import (
    FLOAT32,
    FLOAT64,
    KINDS,
    assert_equal,
    call,
    detached,
    draw_of,
    grad_like,
    inputs_of,
    make_csr,
    role,
    with_gradients,
)

DEGREES = [0, 3, 1, 0, 40, 5, 32, 33, 2, 0]


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 5), (4, 16), (1, 33), (9, 40)])
def test_attention_and_gradients_equal_the_definition(uneven, kind, heads, width):
    inputs = inputs_of(kind, uneven, heads, width, dtype=torch.float32)
    want = with_gradients(attend_reference, kind, uneven, inputs)
    assert_equal(with_gradients(attend, kind, uneven, inputs), want, **FLOAT32)


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_edge_terms_and_dropout_equal_the_definition(device, kind, edge, dropped):
    csr = make_csr(DEGREES, 9).to(device)
    # nine heads draw from three blocks of words
    inputs = inputs_of(kind, csr, 9 if dropped else 1, 5, edge=edge)
    options = {"drop": draw_of(csr) if dropped else None}
    want = with_gradients(attend_reference, kind, csr, inputs, **options)
    assert_equal(with_gradients(attend, kind, csr, inputs, **options), want, **FLOAT64)


def test_columns_may_be_int64(device):
    csr, kind = make_csr(DEGREES, 9, dtype=torch.int64).to(device), KINDS["gat"]
    inputs = inputs_of(kind, csr, 3, 5, edge=True)
    want = with_gradients(attend_reference, kind, csr, inputs)
    assert_equal(with_gradients(attend, kind, csr, inputs), want, **FLOAT64)


def test_awkward_rows_equal_the_definition(csr, kind):
    inputs = inputs_of(kind, csr, 3, 5, edge=True)
    want = with_gradients(attend_reference, kind, csr, inputs, drop=draw_of(csr))
    assert_equal(with_gradients(attend, kind, csr, inputs, drop=draw_of(csr)), want, **FLOAT64)


def test_awkward_hub_of_100000_edges_equals_the_definition(device, kind):
    csr = make_csr([3, 100_000, 0, 1], 5000).to(device)
    inputs = inputs_of(kind, csr, 3, 5, dtype=torch.float32)
    wide = {name: value.detach().double().requires_grad_() for name, value in inputs.items()}
    want = {k: v.float() for k, v in with_gradients(attend_reference, kind, csr, wide).items()}
    got = with_gradients(attend, kind, csr, inputs)
    # the gradient of `att` is a sum over all edges whose terms cancel
    assert_equal(got, want, rtol=1e-3, atol=1e-3 if kind.name == "gatv2" else 1e-4)


def test_awkward_hub_column_equals_the_definition(device, kind):
    """Every row reads column 0: what a column gathers in backward is as long as a hub's row."""
    number = torch.arange(1800, dtype=torch.int32)
    csr = CSR(torch.arange(0, 1801, 3), number % 3 * (number % 4 == 0), 4).to(device)
    inputs = inputs_of(kind, csr, 1, 5, edge=True)
    want = with_gradients(attend_reference, kind, csr, inputs)
    assert_equal(with_gradients(attend, kind, csr, inputs), want, **FLOAT64)


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_ten_thousand_do_not_overflow(uneven, kind, sign):
    inputs = inputs_of(kind, uneven, 3, 5, dtype=torch.float32, scale=0.3)
    with torch.no_grad():
        inputs["rows 0"] += sign * 1e4
        if kind.name == "dot":
            inputs["sources 0"][:, :, 0] = 1.0
            inputs["sources 0"][:, :, 1:] = 0.0
    got = with_gradients(attend, kind, uneven, inputs)
    assert all(value.isfinite().all() for value in got.values())
    want = with_gradients(attend_reference, kind, uneven, inputs)
    # scores of 1e4 are rounded by 1e-3, and so is the log-sum-exp that backward works from; GATv2's
    # att and dot product's key multiply that by 1e4 once more
    rounded = {"gat": (), "gatv2": ("shared 0",), "dot": ("sources 0",)}[kind.name]
    for name in rounded:
        assert (got.pop(name) - want.pop(name)).abs().max() < 1e2
    assert_equal(got, want, rtol=2e-2, atol=2e-2)


def test_far_apart_scores_do_not_overflow(uneven, kind):
    inputs = inputs_of(kind, uneven, 3, 5, scale=1e4)
    want = with_gradients(attend_reference, kind, uneven, inputs)
    assert_equal(with_gradients(attend, kind, uneven, inputs), want, rtol=1e-7, atol=1e-7)


def test_rate_of_zero_drops_nothing(uneven, kind):
    inputs = inputs_of(kind, uneven, 2, 3)
    got = call(attend, kind, uneven, inputs, drop=draw_of(uneven, p=0.0))
    assert torch.equal(got, call(attend, kind, uneven, inputs))


@pytest.mark.parametrize("dropped", [False, True])
def test_gradcheck(device, kind, dropped):
    csr = make_csr([0, 3, 1, 4, 0], 4).to(device)
    inputs, drop = inputs_of(kind, csr, 2, 3, edge=True), draw_of(csr) if dropped else None

    def function(*values):
        return call(attend, kind, csr, dict(zip(inputs, values, strict=True)), drop=drop)

    # on CUDA the plain version adds in no fixed order
    assert torch.autograd.gradcheck(function, tuple(inputs.values()), nondet_tol=1e-12)


def test_op_is_registered_correctly(uneven, kind):
    for edge, drop in ((False, None), (True, draw_of(uneven))):
        inputs = inputs_of(kind, uneven, 3, 5, edge=edge)
        groups = (list(role(inputs, name)) for name in ("sources", "rows", "shared"))
        numbers = kind.name, factor_of(kind), *op_arguments(drop)
        tensors = uneven.indptr, uneven.index, *groups, inputs.get("edge")
        torch.library.opcheck(attention, (*tensors, *numbers, *transposed(uneven, with_order=edge)))


@pytest.mark.parametrize("frozen", ["edge", "sources 0"])
def test_inputs_without_a_gradient_are_left_alone(uneven, kind, frozen):
    inputs = inputs_of(kind, uneven, 3, 5, edge=True)
    inputs[frozen] = inputs[frozen].detach()
    got, want = call(attend, kind, uneven, inputs), call(attend_reference, kind, uneven, inputs)
    wanted = [value for name, value in inputs.items() if name != frozen]
    grad = grad_like(got)
    for mine, other in zip(
        torch.autograd.grad(got, wanted, grad),
        torch.autograd.grad(want, wanted, grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, **FLOAT64)


def test_result_does_not_depend_on_the_number_of_threads(threads, kind):
    generator = torch.Generator().manual_seed(4)
    csr = make_csr(torch.randint(0, 40, (3000,), generator=generator).tolist(), 3000)
    inputs, results = inputs_of(kind, csr, 3, 5, edge=True), []
    for count in (1, 2, 3, 2):
        set_threads(count)
        results.append(with_gradients(attend, kind, csr, inputs))
    for result in results[1:]:
        assert_equal(result, results[0], rtol=0, atol=0)


def test_plain_version_joins_its_slices(uneven, kind, monkeypatch):
    monkeypatch.setattr(csr_reference, "SLICE_ELEMENTS", 50)
    inputs, drop = inputs_of(kind, uneven, 3, 5, edge=True), draw_of(uneven)
    want = with_gradients(attend_reference, kind, uneven, inputs, drop=drop)
    assert_equal(with_gradients(attend, kind, uneven, inputs, drop=drop), want, **FLOAT64)


@pytest.mark.parametrize("fast", [False, True])
def test_no_tensor_has_a_number_for_each_edge_and_head(fast, kind, monkeypatch, threads):
    """1 M edges x 8 heads: forward and backward add less resident memory than one such tensor."""
    set_threads(1)  # slices this small are all waiting when two threads share a busy core
    if not fast:
        monkeypatch.setitem(kernels.fast, "cpu", kernels.PLAIN)
        monkeypatch.setattr(csr_reference, "SLICE_ELEMENTS", 1 << 18)
    csr = make_csr([50] * 20_000, 20_000)
    inputs = inputs_of(kind, csr, 8, 4, dtype=torch.float32)
    csr.transpose()
    drop = draw_of(csr) if fast else None  # drawing in plain torch takes seconds

    def step():
        call(attend, kind, csr, inputs, drop=drop).sum().backward()

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
    cpu = torch.device("cpu")
    numba = import_module("siafu.ops.attention.numba")
    assert kernels.attention_kernels(cpu) is numba
    assert kernels.widened(numba, torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float32


def test_narrow_floats_are_summed_wide(uneven, kind):
    # Of bfloat16 rows only the result is rounded: one half of 2^-8 of it, and its gradients'.
    exact = inputs_of(kind, uneven, 2, 4, edge=True)
    narrow = {
        k: (v.detach().float() if k == "shared 0" else v.detach().bfloat16()).requires_grad_()
        for k, v in exact.items()
    }
    wide = {k: v.detach().float().requires_grad_() for k, v in narrow.items()}
    want = with_gradients(attend, kind, uneven, wide)
    got = with_gradients(attend, kind, uneven, narrow)
    for name, value in got.items():
        assert value.dtype == (torch.float32 if name == "shared 0" else torch.bfloat16)
        torch.testing.assert_close(value.float(), want[name], rtol=0.02, atol=0.02)


def test_tensors_with_gaps_are_accepted(uneven, kind):
    inputs = inputs_of(kind, uneven, 6, 4, edge=True)
    inputs = {
        k: (v.detach()[::2] if k == "shared 0" else v.detach()[:, ::2]).requires_grad_()
        for k, v in inputs.items()
    }
    want = with_gradients(attend_reference, kind, uneven, inputs)
    assert_equal(with_gradients(attend, kind, uneven, inputs), want, **FLOAT64)


def test_arguments_that_do_not_fit_are_refused(make, kind):
    csr = make("uneven")
    inputs, drop = inputs_of(kind, csr, 2, 3), draw_of(csr)
    with pytest.raises(PlanError, match=f"{kind.sources[0]} does not fit"):
        call(attend, kind, csr, {**inputs, "sources 0": torch.ones(csr.num_cols, 2)})
    with pytest.raises(PlanError, match=f"{kind.rows[0]} does not fit"):
        call(attend, kind, csr, {**inputs, "rows 0": inputs["rows 0"].float()})
    with pytest.raises(PlanError, match=f"{kind.edge} does not fit"):
        call(attend, kind, csr, {**inputs, "edge": torch.ones(3, 2)})
    with pytest.raises(PlanError, match="takes other rows"):
        call(attend, kind, csr, {**inputs, "rows 1": inputs["rows 0"]})
    wrong = EdgeDraw(drop.key, 0.1, drop.ids_C, drop.ids_C)
    with pytest.raises(PlanError, match="ids_M does not fit"):
        call(attend, kind, csr, inputs, drop=wrong)
    with pytest.raises(ConfigError, match="dropout rate"):
        EdgeDraw(drop.key, 1.0, drop.ids_C, drop.ids_M)


def test_states_and_gradients_that_do_not_fit_are_refused(make, kind):
    csr = make("uneven")
    inputs = detached(inputs_of(kind, csr, 2, 3))
    groups = [role(inputs, name) for name in ("sources", "rows", "shared")]
    with pytest.raises(PlanError, match=r"state.total_MHD does not fit"):
        fold_into(kind, csr, *groups, SoftmaxState.empty(csr.num_rows, 2, 4, inputs["rows 0"]))
    whole = SoftmaxState.empty(csr.num_rows, 2, 6, inputs["rows 0"])
    gaps = SoftmaxState(whole.top_MH, whole.weight_MH, whole.total_MHD[:, :, ::2])
    with pytest.raises(PlanError, match="must have no gaps"):
        fold_into(kind, csr, *groups, gaps)
    known = whole.top_MH, whole.total_MHD[:, :, :3], whole.weight_MH
    rows, shared = groups[1][0], tuple(torch.zeros_like(t) for t in groups[2])
    with pytest.raises(PlanError, match="into_rows has another number"):
        fold_backward(kind, csr, *groups, *known, into_rows=(), into_shared=shared)
    strided = torch.zeros(*rows.shape, 2, dtype=rows.dtype)[..., 0]
    with pytest.raises(PlanError, match="into_rows is added to in place"):
        fold_backward(kind, csr, *groups, *known, into_rows=(strided,), into_shared=shared)


def test_a_held_key_drops_what_the_key_does(uneven, kind):
    inputs = inputs_of(kind, uneven, 5, 3)
    sources, rows, shared = (role(inputs, name) for name in ("sources", "rows", "shared"))
    plain = draw_of(uneven)
    words = torch.tensor(plain.key.held_words(), device=uneven.device)
    found = []
    for drop in (plain, replace(plain, key=HeldKey(words)), None):
        state = SoftmaxState.empty(uneven.num_rows, 5, 3, sources[0])
        fold_into(kind, uneven, sources, rows, shared, state, drop=drop)
        out, lse = finish(state)
        into = [tuple(torch.zeros_like(t) for t in group) for group in (rows, shared)]
        grad = torch.ones_like(out)
        known = lse, grad, delta_of(grad, out)
        to = {"into_rows": into[0], "into_shared": into[1], "drop": drop}
        grads, _ = fold_backward(kind, uneven, sources, rows, shared, *known, **to)
        found.append((out, *grads, *into[0], *into[1]))
    assert all(map(torch.equal, found[0], found[1]))
    assert not torch.equal(found[0][0], found[2][0])

"""The neighbour sum against its definition, in every implementation."""

import pytest
import torch

from siafu.errors import PlanError
from siafu.ops import (
    CSR,
    csr_sum_reference,
    neighbour_sum,
    own_and_sum,
    set_threads,
    sum_into,
    sum_with_own,
)
from siafu.ops.csr import reference
from siafu.ops.csr.sum import csr_sum

FLOAT32 = {"rtol": 1e-5, "atol": 2e-3}
"""A hub's 1500 terms one after the other: each rounds a partial sum of about 20 by 6e-8 of it."""

FLOAT64 = {"rtol": 1e-12, "atol": 1e-12}


def scales(csr: CSR, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        "row_scale_M": torch.rand(csr.num_rows, generator=generator, dtype=dtype).to(csr.device),
        "col_scale_C": torch.rand(csr.num_cols, generator=generator, dtype=dtype).to(csr.device),
    }


def features(csr: CSR, width: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(csr.num_cols, width, generator=generator, dtype=dtype).to(csr.device)


@pytest.mark.parametrize("width", [1, 16, 37, 130])
def test_sum_equals_its_definition(csr, width):
    x = features(csr, width, torch.float32)
    want = csr_sum_reference(csr, x)
    for _ in range(2):  # long rows are known when a matrix is used again
        torch.testing.assert_close(neighbour_sum(csr, x), want, **FLOAT32)


@pytest.mark.parametrize("width", [0, 64, 301, 512, 602, 1031])
def test_sum_equals_its_definition_at_any_width(uneven, width):
    x = features(uneven, width)
    torch.testing.assert_close(neighbour_sum(uneven, x), csr_sum_reference(uneven, x), **FLOAT64)


ROW, COL = "row_scale_M", "col_scale_C"
FACTORS = [
    (torch.int32, scaled, weighted)
    for scaled in ((), (ROW,), (COL,), (ROW, COL))
    for weighted in (False, True)
]
FACTORS += [(torch.int64, (), False), (torch.int64, (ROW, COL), True)]
"""Each is compiled by itself."""


@pytest.mark.parametrize(("dtype", "scaled", "weighted"), FACTORS)
def test_factors_and_gradient_equal_the_definition(device, make, weighted, scaled, dtype):
    csr = make("uneven", weighted=weighted, dtype=dtype).to(device)
    factors = {name: value for name, value in scales(csr).items() if name in scaled}
    x = features(csr, 5).requires_grad_()
    want = csr_sum_reference(csr, x, **factors)
    got = neighbour_sum(csr, x, **factors)
    torch.testing.assert_close(got, want, **FLOAT64)
    grad = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, grad)[0], torch.autograd.grad(want, x, grad)[0], **FLOAT64
    )


def test_gradient_equals_the_definition_on_awkward_rows(csr):
    x = features(csr, 7).requires_grad_()
    want, got = csr_sum_reference(csr, x), neighbour_sum(csr, x)
    grad = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, grad)[0], torch.autograd.grad(want, x, grad)[0], **FLOAT64
    )


def test_blocks_of_edges_add_up_in_place(csr):
    x, factors = features(csr, 9), scales(csr)
    out = torch.full((csr.num_rows, 9), torch.nan, dtype=x.dtype, device=csr.device)
    sum_into(csr, x, out, **factors)
    once = csr_sum_reference(csr, x, **factors)
    torch.testing.assert_close(out, once, **FLOAT64)
    for times in (2, 3):
        sum_into(csr, x, out, accumulate=True, **factors)
        torch.testing.assert_close(out, times * once, **FLOAT64)


@pytest.mark.parametrize("accumulate", [False, True])
def test_tensors_with_gaps_are_accepted(uneven, accumulate):
    x = features(uneven, 12)[:, ::2]
    out = torch.ones(6, uneven.num_rows, dtype=x.dtype, device=uneven.device).T
    sum_into(uneven, x, out, accumulate=accumulate)
    want = csr_sum_reference(uneven, x) + (1 if accumulate else 0)
    torch.testing.assert_close(out, want, **FLOAT64)


def test_infinite_scale_of_an_empty_row_does_no_harm(uneven):
    x = features(uneven, 4)
    mean = neighbour_sum(uneven, x, row_scale_M=1 / uneven.degree().double())
    assert mean.isfinite().all()


def test_narrow_floats_are_summed_wide(uneven):
    x = features(uneven, 8, torch.bfloat16)
    wide = {name: scale.float() for name, scale in scales(uneven).items()}
    want = csr_sum_reference(uneven, x.float(), **wide)
    got = neighbour_sum(uneven, x, **wide)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want.bfloat16(), rtol=2**-7, atol=1e-6)
    out = want.clone()
    sum_into(uneven, x, out, accumulate=True, **wide)
    torch.testing.assert_close(out, 2 * want, rtol=1e-5, atol=1e-5)


def test_gradcheck_twice(uneven):
    x = features(uneven, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: neighbour_sum(uneven, x, **scales(uneven)), (x,))
    assert torch.autograd.gradgradcheck(lambda x: neighbour_sum(uneven, x), (x,))


def test_op_is_registered_correctly(device, make):
    csr = make("uneven", weighted=True).to(device)
    back, x, factors = csr.transpose(), features(csr, 3), scales(csr).values()
    transposed = back.indptr, back.index, back.weight
    arguments = (csr.indptr, csr.index, csr.weight, *factors)
    torch.library.opcheck(csr_sum, (*arguments, x.requires_grad_(), *transposed))
    torch.library.opcheck(
        csr_sum, (csr.indptr, csr.index, None, None, None, x.detach(), None, None, None)
    )


def test_op_is_one_call_in_a_compiled_function(uneven):
    x = features(uneven, 3)
    seen: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    compiled = torch.compile(lambda x: neighbour_sum(uneven, x) * 2, backend=keep)
    torch.testing.assert_close(compiled(x), 2 * csr_sum_reference(uneven, x), **FLOAT64)
    assert [name for name in seen if "siafu" in name] == ["siafu.csr_sum.default"]


def test_result_does_not_depend_on_the_number_of_threads(threads):
    generator = torch.Generator().manual_seed(4)
    degree = torch.randint(0, 40, (3000,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    csr = CSR(indptr, torch.randint(0, 3000, (int(indptr[-1]),), generator=generator), 3000)
    x = features(csr, 64, torch.float32)
    results = []
    for count in (1, 2, 3, 2):
        set_threads(count)
        results.append(neighbour_sum(csr, x))
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], csr_sum_reference(csr, x), **FLOAT32)


def test_plain_version_joins_its_slices(uneven, monkeypatch):
    monkeypatch.setattr(reference, "SLICE_ELEMENTS", 10)
    x = features(uneven, 3)
    torch.testing.assert_close(neighbour_sum(uneven, x), csr_sum_reference(uneven, x), **FLOAT64)


@pytest.mark.parametrize("name", ["row_scale_M", "col_scale_C"])
def test_scale_that_needs_a_gradient_is_refused(make, name):
    csr = make("uneven")
    factor = scales(csr)[name].requires_grad_()
    with pytest.raises(PlanError, match="no gradient for its factors"):
        neighbour_sum(csr, features(csr, 2), **{name: factor})


def test_weight_that_needs_a_gradient_is_refused(make):
    csr = make("uneven", weighted=True)
    csr.weight.requires_grad_()
    with pytest.raises(PlanError, match="detach weight"):
        neighbour_sum(csr, features(csr, 2))


def test_arguments_that_do_not_fit_are_refused(make):
    csr = make("uneven")
    with pytest.raises(PlanError, match="does not fit the matrix"):
        neighbour_sum(csr, torch.ones(csr.num_cols + 1, 2))
    with pytest.raises(PlanError, match="row_scale_M does not fit"):
        neighbour_sum(csr, features(csr, 2), row_scale_M=torch.ones(csr.num_rows))
    with pytest.raises(PlanError, match="The output does not fit"):
        sum_into(csr, features(csr, 2), torch.empty(csr.num_rows, 3, dtype=torch.float64))


@pytest.mark.parametrize("asked", ["both", "own", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_own_rows_and_their_sum_give_one_gradient(device, asked, weighted):
    generator = torch.Generator().manual_seed(0)
    indptr = torch.tensor([0, 3, 3, 7])  # of 3 rows, the first of 5
    weight = torch.rand(7, generator=generator) if weighted else None
    csr = CSR(indptr, torch.tensor([4, 1, 1, 0, 2, 3, 4], dtype=torch.int32), 5, weight).to(device)
    x = torch.randn(5, 4, generator=generator).to(device)
    row, column = torch.rand(3, generator=generator), torch.rand(5, generator=generator)
    scales = {"row_scale_M": row.to(device), "col_scale_C": column.to(device)}
    results = []
    for together in (True, False):
        rows = x.clone().requires_grad_()
        if together:
            own, total = own_and_sum(csr, rows, **scales)
        else:
            own, total = rows[:3], neighbour_sum(csr, rows, **scales)
        loss = 0 * rows.sum()
        loss = loss + (own.square().sum() if asked != "sum" else 0)
        loss = loss + (total.square().sum() if asked != "own" else 0)
        loss.backward()
        results.append((own, total, rows.grad))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("width", [3, 70])
@pytest.mark.parametrize("name", ["single", "uneven", "hub"])
def test_a_sum_with_own_rows_is_both_each_way(device, make, name, width):
    csr = make(name, weighted=True).to(device)
    own = torch.rand(csr.num_rows, dtype=torch.float64, device=device)
    factors, found = scales(csr), []
    for fused in (True, False):
        x = features(csr, width).requires_grad_()
        for _ in range(2):  # long rows are known when a matrix is used again
            if fused:
                out = sum_with_own(csr, x, own, **factors)
            else:
                out = csr_sum_reference(csr, x, **factors) + own[:, None] * x[: csr.num_rows]
        (grad,) = torch.autograd.grad(
            out, x, torch.linspace(-1, 1, out.numel()).to(out).view_as(out)
        )
        found.append((out.detach(), grad))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, **FLOAT64)


def test_own_rows_must_be_the_first_columns(uneven):
    with pytest.raises(PlanError, match="own weights"):
        sum_with_own(uneven, features(uneven, 3), torch.ones(3, device=uneven.device))

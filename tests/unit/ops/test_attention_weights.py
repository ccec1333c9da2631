"""What attention's weights do: masks, NaN, and the draws of dropout."""

from itertools import pairwise

import pytest
import torch

from siafu.ops import attend, dropout_pairs
from tests.unit.ops.attention_cases import (
    FLOAT64,
    KINDS,
    call,
    detached,
    draw_of,
    inputs_of,
    make_csr,
    with_gradients,
)

GAT = KINDS["gat"]


def test_infinite_bias_masks_edges(uneven):
    inputs = inputs_of(GAT, uneven, 3, 5, edge=True)
    bias = inputs["edge"].detach()
    bias[1::2] = -torch.inf
    lo, hi = uneven.indptr[4:6].tolist()
    bias[lo:hi] = -torch.inf
    inputs["edge"] = bias.requires_grad_()
    got = with_gradients(attend, GAT, uneven, inputs)
    assert all(value.isfinite().all() for value in got.values())
    assert (got["out"][4] == 0).all()
    assert (got["edge"][bias == -torch.inf] == 0).all()


@pytest.mark.parametrize(
    ("name", "operand"),
    [("gat", "sources 0"), ("gat", "sources 1"), ("gatv2", "sources 0"), ("dot", "sources 0")],
)
def test_nan_reaches_the_output(uneven, name, operand):
    inputs = inputs_of(KINDS[name], uneven, 3, 5, dtype=torch.float32)
    with torch.no_grad():
        inputs[operand][uneven.index[0].long()] = torch.nan
    out = call(attend, KINDS[name], uneven, inputs)
    read = [uneven.index[lo:hi].tolist() for lo, hi in pairwise(uneven.indptr.tolist())]
    poisoned = torch.tensor([int(uneven.index[0]) in row for row in read], device=out.device)
    torch.testing.assert_close(out.isnan().any(dim=2).any(dim=1), poisoned)


def test_dropout_is_that_of_pairs(device):
    """Ones as values make an output the sum of its kept weights."""
    csr = make_csr([4, 0, 30, 1], 7).to(device)
    inputs, drop, rows = inputs_of(GAT, csr, 6, 1), draw_of(csr, p=0.3), csr.rows()
    weight = inputs["sources 1"][csr.index.long()] + inputs["rows 0"][rows]
    weight = torch.nn.functional.leaky_relu(weight, GAT.slope).exp()
    whole = torch.zeros(4, 6, dtype=weight.dtype, device=device).index_add(0, rows, weight)
    ids = drop.ids_C[csr.index.long()], drop.ids_M[rows]
    kept = dropout_pairs(weight / whole[rows], *ids, drop.key, drop.p)
    want = torch.zeros_like(whole).index_add(0, rows, kept)
    inputs["sources 0"] = torch.ones_like(inputs["sources 0"])
    got = call(attend, GAT, csr, inputs, drop=drop)
    torch.testing.assert_close(got[:, :, 0], want, **FLOAT64)


def test_dropout_is_unbiased_over_seeds(make):
    csr = make("uneven")
    inputs = detached(inputs_of(GAT, csr, 4, 2))
    whole = call(attend, GAT, csr, inputs)
    draws = torch.stack(
        [call(attend, GAT, csr, inputs, drop=draw_of(csr, seed=s)) for s in range(2000)]
    )
    error = draws.std(dim=0) / 2000**0.5
    assert ((draws.mean(dim=0) - whole).abs() <= 5 * error + 1e-12).all()
    assert (error[csr.degree() > 0] > 0).all()

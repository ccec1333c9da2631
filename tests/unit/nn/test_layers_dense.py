"""Layers against formulas over dense matrices, and batch norm against torch's own."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from siafu.errors import ConfigError
from siafu.nn import (
    CARDS,
    GNN,
    Draws,
    Dropout,
    GraphBatchNorm,
    LocalNeighbours,
    ModelSpec,
    SparseRows,
    project,
    rows_to_sum_one,
)
from siafu.nn.attention import GATLayer, Heads
from siafu.nn.layers import GCNLayer, GINLayer, SAGELayer
from siafu.ops import CSR
from tests.parity.graphs import awkward_graph

GRAPH = awkward_graph(weighted=True)
N, D = GRAPH.num_nodes, 6
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def csr(*, weighted: bool = True) -> CSR:
    weight = torch.tensor(GRAPH.edge_weight).double() if weighted else None
    return CSR(torch.tensor(GRAPH.indptr), torch.tensor(GRAPH.src), N, weight)


def dense(*, weighted: bool = True) -> Tensor:
    """A[v, u]: the weights of the edges u -> v added up."""
    dst = np.repeat(np.arange(N), np.diff(GRAPH.indptr))
    matrix = torch.zeros(N, N, dtype=torch.float64)
    values = torch.tensor(GRAPH.edge_weight).double() if weighted else torch.ones(len(dst)).double()
    return matrix.index_put_((torch.tensor(dst), torch.tensor(GRAPH.src).long()), values, True)


def rows() -> Tensor:
    return torch.tensor(GRAPH.x).double()


def neighbours(*, weighted: bool = True, training: bool = True) -> LocalNeighbours:
    draws = Draws(training=training)
    types = torch.arange(GRAPH.num_edges) % 3
    return LocalNeighbours(csr(weighted=weighted), torch.arange(N), draws, edge_type=types)


@pytest.mark.parametrize("out_width", [3, 8])
def test_gcn_is_the_normalised_adjacency(out_width: int) -> None:
    layer = GCNLayer(D, out_width).double()
    looped = dense()
    without = dense(weighted=False).diagonal() == 0
    looped += torch.diag(without.double())
    root = looped.sum(1).rsqrt()
    want = root[:, None] * looped * root @ rows() @ layer.linear.weight.T + layer.bias
    torch.testing.assert_close(layer(rows(), neighbours()), want, **EXACT)


@pytest.mark.parametrize("out_width", [3, 8])
def test_sage_is_self_and_mean(out_width: int) -> None:
    layer = SAGELayer(D, out_width).double()
    count = dense(weighted=False).sum(1, keepdim=True).clamp(min=1)
    want = layer.own(rows()) + layer.neigh(dense() @ rows() / count)
    torch.testing.assert_close(layer(rows(), neighbours()), want, **EXACT)


def test_sage_max_is_the_largest_of_the_mapped_rows() -> None:
    layer = SAGELayer(D, 4, aggregation="max").double()
    mapped = torch.relu(layer.pool(rows()))
    there = dense(weighted=False) > 0
    top = torch.where(there[:, :, None], mapped[None], -torch.inf).amax(1)
    top = torch.where(there.any(1, keepdim=True), top, 0.0)
    want = layer.own(rows()) + layer.neigh(top)
    torch.testing.assert_close(layer(rows(), neighbours()), want, **EXACT)


@pytest.mark.parametrize("out_width", [3, 8])
def test_gin_is_an_mlp_of_the_sum(out_width: int) -> None:
    layer = GINLayer(D, out_width).double()
    layer.eps.data.fill_(0.3)
    hidden = layer.first(1.3 * rows() + dense() @ rows())
    want = layer.second(torch.relu(hidden))
    torch.testing.assert_close(layer(rows(), neighbours()), want, **EXACT)


@pytest.mark.parametrize("concat", [True, False])
def test_gat_is_a_softmax_over_edges_and_one_loop(concat: bool) -> None:
    layer = GATLayer(D, 3, Heads(count=2, concat=concat, dropout=Dropout(0.0, 0))).double()
    count = dense(weighted=False)  # repeated edges count as often as they stand there
    count.fill_diagonal_(1.0)
    z = layer.linear(rows()).unflatten(1, (2, 3))
    left, right = (z * layer.left).sum(-1), (z * layer.right).sum(-1)
    score = nn.functional.leaky_relu(left[None] + right[:, None], 0.2)
    raw = score.exp() * count[:, :, None]
    alpha = raw / raw.sum(1, keepdim=True)
    out = torch.einsum("vuh,uhd->vhd", alpha, z)
    want = (out.flatten(1) if concat else out.mean(1)) + layer.bias
    torch.testing.assert_close(layer(rows(), neighbours()), want, **EXACT)


@pytest.mark.parametrize("name", CARDS)
def test_sparse_features_give_what_dense_ones_give(name: str) -> None:
    torch.manual_seed(0)
    x = rows() * (torch.rand(N, D) < 0.4)
    place = x.nonzero()
    indptr = torch.cat([torch.zeros(1).long(), (x != 0).sum(1).cumsum(0)])
    values = x[x != 0]
    sparse = SparseRows(CSR(indptr, place[:, 1].int(), D, values), torch.arange(N))
    torch.testing.assert_close(sparse.dense(), x, rtol=0, atol=0)
    spec = ModelSpec(name=name, in_width=D, out_width=3, hidden=4, heads=2, num_types=3)
    model = GNN(spec).double().eval()
    draws = Draws(training=False)
    got, want = (model(features, neighbours(training=False), draws) for features in (sparse, x))
    torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_sum_to_one_or_stay(kind: str) -> None:
    index, values = torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([1.0, 3, 2, 1, -1, -2])
    csr = CSR(torch.tensor([0, 2, 2, 3, 5, 6]), index.int(), 2, values.double())
    sparse = SparseRows(csr, torch.arange(5))
    rows = rows_to_sum_one(sparse if kind == "sparse" else sparse.dense())
    dense = rows if isinstance(rows, torch.Tensor) else rows.dense()
    assert dense.tolist() == [[0.25, 0.75], [0, 0], [0, 1], [1, -1], [-2, 0]]


def test_dropped_sparse_values_keep_their_mean_and_follow_the_epoch() -> None:
    indptr = torch.arange(0, 20_001, 10)
    values = torch.ones(20_000)
    index = (torch.arange(20_000) % 10).int()
    sparse = SparseRows(CSR(indptr, index, 10, values), torch.arange(2000))
    draws = Draws(seed=1, epoch=1)
    first = sparse.dropped(draws, Dropout(0.4, 0)).csr.weight
    again = sparse.dropped(draws, Dropout(0.4, 0)).csr.weight
    draws.epoch = 2
    later = sparse.dropped(draws, Dropout(0.4, 0)).csr.weight
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.02)
    draws.training = False
    assert sparse.dropped(draws, Dropout(0.4, 0)) is sparse


def test_projection_of_sparse_rows_is_linear() -> None:
    x = torch.tensor([[0.0, 2, 0], [1, 0, 3]]).double()
    indices = torch.tensor([1, 0, 2]).int()
    sparse = CSR(torch.tensor([0, 1, 3]), indices, 3, torch.tensor([2.0, 1, 3]).double())
    weight, bias = torch.randn(4, 3).double(), torch.randn(4).double()
    want = nn.functional.linear(x, weight, bias)
    got = project(SparseRows(sparse, torch.arange(2)), weight, bias)
    torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_is_that_of_torch(momentum: float | None) -> None:
    plain = nn.BatchNorm1d(D, momentum=momentum).double()
    nn.init.normal_(plain.weight)
    ours = GraphBatchNorm(copy.deepcopy(plain))
    for scale in (1.0, 3.0):
        x = (rows() * scale).requires_grad_()
        x_ours = x.detach().clone().requires_grad_()
        out, out_ours = plain(x), ours(x_ours, neighbours())
        torch.testing.assert_close(out_ours, out, **EXACT)
        out.square().mul(torch.arange(D)).sum().backward()
        out_ours.square().mul(torch.arange(D)).sum().backward()
        torch.testing.assert_close(x_ours.grad, x.grad, rtol=1e-8, atol=1e-10)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(ours.inner.named_buffers())[name], buffer, **EXACT)
    torch.testing.assert_close(ours.eval()(rows(), neighbours()), plain.eval()(rows()), **EXACT)


@pytest.mark.parametrize("jk", ["none", "cat", "max"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", CARDS)
def test_every_model_of_any_depth_gives_logits_and_embeddings(name, layers, jk) -> None:
    spec = ModelSpec(
        name=name,
        in_width=D,
        out_width=3,
        hidden=8,
        heads=2,
        layers=layers,
        jk=jk,
        num_types=3,
    )
    model, draws = GNN(spec).double(), Draws()
    out = model(rows(), neighbours(), draws)
    assert out.shape == (N, 3)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.embed(rows(), neighbours(), draws).shape[0] == N


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of the heads"):
        GNN(ModelSpec(name="gat", in_width=D, out_width=3, hidden=10, heads=4))


@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("width", [4, 40])
def test_a_bias_in_the_same_pass_changes_nothing(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec(name=name, in_width=D, out_width=3, hidden=width, layers=3, dropout=0.4)
    model, found = GNN(spec).double(), []
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for joins in (True, False):
        at, taken = neighbours(), []
        kept = at.activate

        def activate(*given: object, kept=kept, taken=taken) -> Tensor:  # type: ignore[no-untyped-def]
            taken.append(True)
            return kept(*given)

        monkeypatch.setattr(at, "activate", activate)
        if not joins:
            monkeypatch.setattr(at, "activates", lambda x: False)
        model.zero_grad()
        out = model(rows(), at, at.draws)
        out.square().sum().backward()
        assert len(taken) == (2 if joins else 0)
        found.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)

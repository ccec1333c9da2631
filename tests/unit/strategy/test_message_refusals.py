"""Functions of edges that can't be used: each is told, on one rank as on many."""

import pytest
import torch
from torch import Tensor, nn

from siafu.comm import World
from siafu.errors import PlanError
from siafu.ingest import load
from siafu.nn import Draws, LocalNeighbours
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours

REDUCTIONS = ["sum", "mean", "max", "min", "mul", "softmax"]


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> BlockNeighbours:
    parts = tmp_path_factory.mktemp("messages") / "parts"
    partition_graph(load("planted:60"), parts, num_parts=1, method="hash")
    return BlockNeighbours(open_shard(parts, World()), Draws(seed=0))


def refused(neighbours: BlockNeighbours, message, x: Tensor | None = None, **settings) -> PlanError:
    x = torch.ones(60, 3) if x is None else x
    with pytest.raises(PlanError) as caught:
        neighbours.reduce(message, x, x, **settings)
    assert caught.value.problem
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        (lambda x_j, x_i: x_j[:1], "(1, 3) torch.float32 for 2 edges"),
        (lambda x_j, x_i: x_j.sum(), "() torch.float32 for 2 edges"),
        (lambda x_j, x_i: x_j.sum(dim=1).long(), "(2,) torch.int64 for 2 edges"),
        (lambda x_j, x_i: x_j > x_i, "torch.bool"),
        (lambda x_j, x_i: 3.0, "3.0 for 2 edges"),
        (lambda x_j, x_i: None, "None for 2 edges"),
        (lambda x_j, x_i: [x_j], "for 2 edges"),
    ],
    ids=["fewer-rows", "no-rows", "integers", "booleans", "number", "nothing", "list"],
)
def test_result_of_another_shape(neighbours, message, seen: str) -> None:
    error = refused(neighbours, message)
    assert "one row of floats for each edge" in error.problem
    assert seen in error.seen
    assert "first dimension" in error.fix


def test_shape_that_changes_with_the_number_of_edges(neighbours) -> None:
    error = refused(neighbours, lambda x_j, x_i: x_j.new_zeros(len(x_j), len(x_j)))
    assert "changes its shape" in error.problem


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nan_names_the_node(neighbours, reduce: str) -> None:
    csr = neighbours.view.csr
    source = int(csr.index[0])
    x = torch.ones(60, 3)
    x[source, 1] = -1.0
    expected = neighbours.view.out_ids[csr.rows()[csr.index == source]]

    def message(x_j: Tensor, x_i: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        value = x_j.sqrt()
        return (x_j[:, :1], value[:, None]) if reduce == "softmax" else value

    error = refused(neighbours, message, x, reduce=reduce)
    assert "NaN" in error.problem
    assert f"node {int(expected.min())} " in error.seen
    assert "0 / 0" in error.fix


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(neighbours, training: bool) -> None:
    norm = nn.BatchNorm1d(3).train(training)
    error = refused(neighbours, lambda x_j, x_i: norm(x_j - x_i))
    assert "mixes edges" in error.problem
    assert "batch norm" in error.seen
    assert "LayerNorm" in error.fix


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda x: x * torch.rand(x.shape), "rand"),
        (lambda x: x + torch.randn_like(x), "randn_like"),
        (lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)), "bernoulli"),
        (lambda x: x.clone().uniform_(), "uniform_"),
    ],
)
def test_draws_of_its_own(neighbours, draw, name: str) -> None:
    error = refused(neighbours, lambda x_j, x_i: draw(x_j))
    assert "random numbers of its own" in error.problem
    assert f"torch's {name} " in error.seen
    assert "use dropout" in error.fix


def test_softmax_without_scores(neighbours) -> None:
    refused(neighbours, lambda x_j, x_i: x_j, reduce="softmax")


def test_products_with_zeros_have_the_gradients_of_torch(neighbours: BlockNeighbours) -> None:
    view = neighbours.view
    draw = torch.Generator().manual_seed(0)
    # None, one and several zeros among the in-edges of a row.
    x = torch.randint(-2, 3, (view.num_read, 4), generator=draw).double().requires_grad_()
    alone = LocalNeighbours(view.csr, view.in_ids, neighbours.draws)
    results = [n.reduce(lambda row: row, x, reduce="mul") for n in (neighbours, alone)]
    weights = torch.randn(results[0].shape, generator=draw, dtype=torch.float64)
    got, want = (torch.autograd.grad((out * weights).sum(), x)[0] for out in results)
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert bool((x == 0).any())
    assert bool((got != 0).any())

"""Exchanged rows and their gradients against the matrices they stand for; what is counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import siafu.strategy.walk
from siafu.comm import HaloPlan, World, exchange_halo, reduce_gradients, sum_over_ranks
from siafu.nn import ModelSpec
from siafu.ops import DrawKey
from siafu.partitioning import open_parts, write_parts
from siafu.shard import open_shard
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.steps import distributed_steps, single_steps

WIDTH = 3


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root, graph, folders = tmp_path_factory.mktemp("halo"), awkward_graph(), {}
    for kind, size in [("hash", 1), ("hash", 2), ("hash", 3), ("hash", 4), ("gap", 3), ("gap", 4)]:
        folders[kind, size] = root / f"{kind}{size}"
        part_of = assignment(graph, kind, size)
        write_parts(graph, part_of, folders[kind, size], num_parts=size, method=kind, seed=0)
    return folders


CASES = [("hash", 1), ("hash", 2), ("hash", 3), ("hash", 4), ("gap", 3), ("gap", 4)]


def numbers(seed: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)


def fetch_and_return(world: World, folder: Path, num_nodes: int) -> dict[str, Any]:
    """Return this rank's halo rows and the gradient of sum(weights * halo)."""
    shard = open_shard(folder, world)
    x = numbers(0, num_nodes)[shard.row_ids].requires_grad_()
    halo = exchange_halo(x, shard.plan, world)
    halo.backward(numbers(1 + world.rank, shard.num_halo))
    return {"halo": halo.detach(), "grad": x.grad, "rows": shard.row_ids}


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_exchange_is_the_selection_matrix_and_its_transpose(
    ranks: RankPool, parts, kind: str, size: int
) -> None:
    opened = open_parts(parts[kind, size])
    num_nodes = len(opened.part_of)
    x = numbers(0, num_nodes)
    want_grad = torch.zeros_like(x)
    select = {}
    for rank in range(size):
        wanted = np.array(opened.part(rank).load("halo"))
        select[rank] = torch.eye(num_nodes, dtype=torch.float64)[wanted]
        want_grad += select[rank].T @ numbers(1 + rank, len(wanted))

    got = ranks.run(fetch_and_return, size, parts[kind, size], num_nodes)
    for rank, part in enumerate(got):
        torch.testing.assert_close(part["halo"], select[rank] @ x, rtol=0, atol=0)
        torch.testing.assert_close(part["grad"], want_grad[part["rows"]], rtol=1e-12, atol=1e-12)


def test_row_sent_to_two_ranks_gets_both_gradients() -> None:
    rows = torch.tensor([2, 0, 2])
    plan = HaloPlan.build(rows, [0, 2, 1], [0, 0, 0], num_owned=4)
    grad = torch.ones(4, 2, dtype=torch.float64)
    siafu.comm.add_returned(torch.tensor([[1.0, 2], [10, 20], [100, 200]]).double(), plan, grad)
    assert grad.tolist() == [[11, 21], [1, 1], [102, 203], [1, 1]]


def assigning(grad_SD: Tensor, plan: HaloPlan, grad_ND: Tensor) -> None:
    """The mistake: a later gradient replaces an earlier one of the same row's returned share."""
    returned = torch.zeros_like(grad_ND)
    returned[plan.send_rows] = grad_SD
    grad_ND += returned


def broken_steps(world: World, folder: Path, spec: ModelSpec) -> dict[str, Any]:
    right = siafu.strategy.walk.add_returned
    siafu.strategy.walk.add_returned = assigning
    try:
        return distributed_steps(world, folder, spec)
    finally:
        siafu.strategy.walk.add_returned = right


@pytest.mark.parametrize(("size", "is_caught"), [(2, False), (3, True), (4, True)])
def test_parity_catches_assigning_instead_of_adding_from_three_ranks_on(
    ranks: RankPool, parts, size: int, is_caught: bool
) -> None:
    spec = ModelSpec(name="gcn", in_width=6, out_width=3, hidden=8, dropout=0.3)
    want = single_steps(parts["hash", 1], spec)["grads"]
    got = ranks.run(broken_steps, size, parts["hash", size], spec)[0]["grads"]
    gap = max(float((got[name] - want[name]).abs().max()) for name in want if name != "input")
    assert (gap > 1e-6) is is_caught


def summed(world: World) -> tuple[Tensor, Tensor, dict[str, int]]:
    x = torch.arange(3.0, requires_grad=True)
    scaled = x * (world.rank + 1)
    scaled.retain_grad()
    total = sum_over_ranks(scaled, world, "norm")
    (total * (world.rank + 10)).sum().backward()
    return total.detach(), scaled.grad, dict(world.meter.bytes_sent)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sum_over_ranks_and_its_gradient(ranks: RankPool, size: int) -> None:
    weight = sum(range(1, size + 1))
    # Every rank's loss depends on the total, so its gradient is the sum of all their factors.
    factor = float(sum(rank + 10 for rank in range(size)))
    for total, grad, sent in ranks.run(summed, size):
        assert total.tolist() == [0.0, weight, 2.0 * weight]
        assert grad.tolist() == [factor] * 3
        each_way = 2 * (size - 1) * 12 // size
        assert sent == ({"norm": 2 * each_way} if size > 1 else {})


def reduced(world: World) -> list[list[float]]:
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, 2))]
    parameters[0].grad = torch.full((2,), float(world.rank + 1))
    if world.rank == 0:  # the others have no gradient there
        parameters[1].grad = torch.arange(4.0).view(2, 2)
    reduce_gradients(parameters, world)
    return [parameter.grad.flatten().tolist() for parameter in parameters]


def test_missing_gradient_counts_as_zero(ranks: RankPool) -> None:
    assert ranks.run(reduced, 3) == [[[6.0, 6.0], [0.0, 1.0, 2.0, 3.0]]] * 3


def rounded(world: World, seed: int, entries: int, bits: int) -> tuple[list[Tensor | None], int]:
    shares = torch.nn.Parameter(torch.zeros(entries)), torch.nn.Parameter(torch.zeros(7, 3))
    unused = torch.nn.Parameter(torch.zeros(5))
    shares[0].grad = torch.linspace(-1.0, 2.0, entries) * (world.rank + 1)
    if world.rank == 1:  # a gradient that only some ranks have
        shares[1].grad = torch.arange(21.0).view(7, 3)
    before = sum(world.meter.bytes_sent.values())
    key = DrawKey(seed=seed, epoch=1, purpose=3)
    reduce_gradients([*shares, unused], world, key, bits)
    sent = sum(world.meter.bytes_sent.values()) - before
    return [parameter.grad for parameter in (*shares, unused)], sent


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_rounded_gradients_are_alike_on_all_ranks_and_near_the_sum(
    ranks: RankPool, size: int, bits: int
) -> None:
    entries = 40_001
    # Two messages; a row that holds the end of one gradient and the next has the range of both.
    near = 2 * 20 / (2**bits - 1)
    answers = ranks.run(rounded, size, 5, entries, bits)
    want = torch.linspace(-1.0, 2.0, entries) * sum(range(1, size + 1))
    rows = -(-(256 + entries + 21 + 5) // (256 * size))
    for (first, second, unused), sent in answers:
        assert torch.equal(first, answers[0][0][0]), "every rank takes the same step"
        assert float((first - want).abs().max()) < near
        torch.testing.assert_close(second, torch.arange(21.0).view(7, 3), atol=near, rtol=0)
        assert unused is None
        assert sent == 2 * (size - 1) * rows * (8 + 32 * bits), "and two scales per row"


def had_by_one(world: World) -> list[bool]:
    parameters = [torch.nn.Parameter(torch.zeros(1000)) for _ in range(24)]
    for number, parameter in enumerate(parameters):
        if number == 0 or world.rank == 1:  # the first one is all ranks'
            parameter.grad = torch.ones(1000)
    reduce_gradients(parameters, world, DrawKey(seed=1, epoch=1, purpose=3), bits=2)
    return [parameter.grad is not None for parameter in parameters]


def test_a_gradient_of_one_among_many_ranks_is_not_rounded_away(ranks: RankPool) -> None:
    """At 2 bits 4 ranks are many: a step between counts of them is more than one."""
    assert ranks.run(had_by_one, 4) == [[True] * 24] * 4


def test_rounded_gradients_are_right_on_average(ranks: RankPool) -> None:
    entries, draws = 16_384, 40
    want = torch.linspace(-1.0, 2.0, entries) * 3
    answers = [ranks.run(rounded, 2, seed, entries, 8)[0][0][0] for seed in range(draws)]
    errors = torch.stack([answer - want for answer in answers]).double()
    assert errors.abs().max() > 0
    spread = float(errors.std()) / (draws * entries) ** 0.5
    assert abs(float(errors.mean())) < 5 * spread

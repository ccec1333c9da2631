"""Maxima that several edges hold: the first edge has the gradient, however edges are cut up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.nn import Draws, LocalNeighbours, Neighbours
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.steps import assert_same, distributed_steps, single_steps
from tests.parity.test_models import EXACT, spec_of

SIZES = [1, 3, 4]
WORLDS = [(1, 1), (1, 3), (4, 3), (4, 4)]
"""Stages and ranks."""


@pytest.fixture(scope="module")
def tied_parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Parts of a graph with five different rows of small integers, and edges' data like them."""
    graph = awkward_graph(weighted=True)
    generator = np.random.default_rng(5)
    rows = generator.integers(-2, 3, (5, graph.x.shape[1])).astype(np.float32)
    graph = replace(
        graph,
        x=rows[generator.integers(0, 5, graph.num_nodes)],
        edge_attr=generator.integers(-1, 2, graph.edge_attr.shape).astype(np.float32),
    )
    root, parts = tmp_path_factory.mktemp("ties"), {}
    for size in SIZES:
        parts[size] = root / f"{size}.parts"
        part_of = assignment(graph, "hash", size)
        write_parts(graph, part_of, parts[size], num_parts=size, method="hash", seed=0)
    return parts


@pytest.mark.parametrize(("stages", "size"), WORLDS)
def test_steps_with_ties_equal_one_process(ranks: RankPool, tied_parts, stages, size) -> None:
    # Only where rows are mapped before they are compared: an MLP over edges rounds equal edges
    # differently in calls of different length, and then they are no longer equal.
    spec = spec_of("sage-max", "wide")
    want = single_steps(tied_parts[1], spec)
    strategy = Strategy(stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, tied_parts[size], spec, strategy)
    assert_same(got, want, **EXACT)


def _message(x_j: Tensor, edge: Tensor) -> Tensor:
    return torch.cat([x_j[:, :2] + edge, x_j[:, 2:]], dim=1)


def _tied_gradients(shard: Shard, neighbours: Neighbours, operation: str) -> dict[str, Tensor]:
    """Return a maximum of integers and its gradients, weighted so that each row's is its own."""
    assert isinstance(shard.x, Tensor)
    assert shard.edge_attr is not None
    x = shard.x.double().requires_grad_()
    edge = shard.edge_attr.double().requires_grad_()
    if operation == "neighbours.max":
        out = neighbours.max(x)
    else:
        out = neighbours.reduce(_message, x, (), edge, reduce=operation)
    weight = torch.arange(1, out.numel() // len(out) + 1) + 10.0 * shard.row_ids[:, None]
    (out * weight).sum().backward()
    edge_grad = torch.zeros_like(edge) if edge.grad is None else edge.grad
    by_row = torch.split(edge_grad, shard.csr.degree().tolist())
    assert x.grad is not None
    return {"out": out.detach(), "x": x.grad, "edge": by_row, "rows": shard.row_ids}


def tied_gradients(world: World, parts: Path, operation: str, strategy: Strategy) -> dict[str, Any]:
    """Return one rank's part."""
    shard, draws = open_shard(parts, world), Draws(seed=0)
    return _tied_gradients(shard, BlockNeighbours(shard, draws, strategy), operation)


@pytest.mark.parametrize(("stages", "size"), WORLDS)
@pytest.mark.parametrize("operation", ["neighbours.max", "max", "min"])
def test_first_of_equal_edges_has_the_gradient(
    ranks: RankPool, tied_parts, operation, stages, size
) -> None:
    shard = open_shard(tied_parts[1], World())
    local = LocalNeighbours(shard.csr, shard.row_ids, Draws(seed=0))
    want = _tied_gradients(shard, local, operation)
    strategy = Strategy(stages=stages, recompute=stages > 1)
    got = ranks.run(tied_gradients, size, tied_parts[size], operation, strategy)
    for part in got:
        for name in ("out", "x"):
            # Whole numbers, so sums are exact in any order.
            assert torch.equal(part[name], want[name][part["rows"]]), name
        for row, edge_grad in zip(part["rows"].tolist(), part["edge"], strict=True):
            assert torch.equal(edge_grad, want["edge"][row]), f"in-edges of node {row}"
    if operation != "neighbours.max":
        assert _has_ties(shard), "the graph has no ties, so nothing was tested"


def _has_ties(shard: Shard) -> bool:
    """True where, in some row, edges from different sources hold the same maximum."""
    assert isinstance(shard.x, Tensor)
    for row in range(shard.num_owned):
        lo, hi = int(shard.csr.indptr[row]), int(shard.csr.indptr[row + 1])
        source = shard.csr.index[lo:hi].long().unique()
        first = shard.x[source, -1]
        if len(source) > 1 and int((first == first.max()).sum()) > 1:
            return True
    return False

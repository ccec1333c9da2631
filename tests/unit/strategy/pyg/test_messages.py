"""Edge lists are cut once, whatever tensor they come in; plain messages are told from others."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from siafu.comm import World
from siafu.errors import PlanError
from siafu.nn import Draws
from siafu.partitioning import write_parts
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy
from siafu.strategy.pyg.edges import EdgeSets
from siafu.strategy.pyg.messages import plain_message
from tests.parity.graphs import assignment, awkward_graph


@pytest.fixture
def neighbours(tmp_path: Path) -> BlockNeighbours:
    graph = awkward_graph(weighted=True)
    target = tmp_path / "one.parts"
    write_parts(graph, assignment(graph, "hash", 1), target, num_parts=1, method="hash", seed=0)
    return BlockNeighbours(open_shard(target, World()), Draws(), Strategy(stages=2))


def with_loops(edge_index: Tensor, count: int) -> Tensor:
    return torch.cat([edge_index, torch.arange(count).expand(2, -1)], dim=1)


def test_the_graphs_own_edges_are_not_cut_again(neighbours: BlockNeighbours) -> None:
    sets, edges = EdgeSets(neighbours), neighbours.shard.edge_index
    found = sets.of(edges)
    assert found is sets.of(edges.clone())
    assert found.order_E is None
    assert found.reach.own.csr.weight is None
    assert found.reach.own.csr.index is neighbours.reach.own.csr.index


def test_equal_edges_in_another_tensor_are_cut_once(neighbours: BlockNeighbours) -> None:
    sets, num_owned = EdgeSets(neighbours), neighbours.shard.num_owned
    edges = with_loops(neighbours.shard.edge_index, num_owned)
    found = sets.of(edges)
    assert found is sets.of(edges.clone())
    assert found is not sets.of(edges.flip(1))  # another order is another set
    whole = found.reach.own.whole
    assert torch.equal(found.sorted(edges[0]), whole.index.long())
    assert torch.equal(found.sorted(edges[1]), whole.rows())
    edges[0, 0] = (edges[0, 0] + 1) % num_owned
    assert found is not sets.of(edges)


def test_old_edge_lists_are_forgotten(neighbours: BlockNeighbours) -> None:
    sets, num_owned = EdgeSets(neighbours), neighbours.shard.num_owned
    edges = with_loops(neighbours.shard.edge_index, num_owned)
    first = sets.of(edges.clone())
    for shift in range(1, 12):
        sets.of((edges + shift) % num_owned)
    assert first is not sets.of(edges.clone())
    assert sets.of(neighbours.shard.edge_index).order_E is None


def test_edges_to_nodes_of_others_are_refused(neighbours: BlockNeighbours) -> None:
    edges = torch.tensor([[0], [neighbours.shard.num_owned]])
    with pytest.raises(PlanError, match="other ranks"):
        EdgeSets(neighbours).of(edges)


WEIGHT = torch.tensor([2.0, 3.0, 5.0])
PLAIN = {
    "itself": (lambda x: x, None),
    "weighed": (lambda x: WEIGHT.view(-1, 1) * x, WEIGHT),
    "weighed twice": (lambda x: x * WEIGHT.unsqueeze(-1) * 2.0, 2 * WEIGHT),
}


@pytest.mark.parametrize("name", PLAIN)
def test_rows_times_numbers_are_plain(name: str) -> None:
    message, want = PLAIN[name]
    found = plain_message(message, torch.ones(3, 1))
    assert found is not None
    assert (found.weight_S is None) if want is None else torch.equal(found.weight_S, want)


LEARNT, DOUBLE = WEIGHT.clone().requires_grad_(), WEIGHT.double()
NOT_PLAIN = {
    "bent": torch.relu,
    "shifted": lambda x: x + 1,
    "squared": lambda x: x * x,
    "by column": lambda x: x * torch.ones(1, 4),
    "dropped": lambda x: functional.dropout(x, 0.5),
    "dropped weight": lambda x: functional.dropout(WEIGHT, 0.5).view(-1, 1) * x,
    "learnt weight": lambda x: LEARNT.view(-1, 1) * x,
    "other type": lambda x: DOUBLE.view(-1, 1) * x,
    "read": lambda x: x * float(x.sum()),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_messages_that_do_more_are_not_plain(name: str) -> None:
    assert plain_message(NOT_PLAIN[name], torch.ones(3, 1)) is None

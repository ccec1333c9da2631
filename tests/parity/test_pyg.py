"""Unmodified PyG models over ranks give what PyG alone gives: output and every gradient."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from siafu.comm import World
from siafu.graph import graph_from_edges
from siafu.partitioning import write_parts
from siafu.shard import open_shard
from siafu.strategy import Strategy, parallelize
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.pyg_models import AGGREGATIONS, CONVS, FEW
from tests.parity.pyg_steps import check, close, make, plain_step, refused, spread_step


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root, graph = tmp_path_factory.mktemp("pyg"), awkward_graph()
    folders = {}
    for size in (1, 2, 3, 4):
        folders[size] = root / f"{size}.parts"
        part_of = assignment(graph, "gap" if size == 4 else "hash", size)
        write_parts(graph, part_of, folders[size], num_parts=size, method="hash", seed=0)
    return folders


CASES = [(conv, size) for conv in CONVS for size in (3, 4)]
CASES += [(conv, size) for conv in FEW for size in (1, 2)]
CASES.remove(("FeaStConv", 4))  # PyG's own reshape fails on a part without edges


@pytest.mark.parametrize(("conv", "size"), CASES)
def test_pyg_model_equals_pyg_alone(ranks: RankPool, parts, conv: str, size: int) -> None:
    check(ranks.run(spread_step, size, parts[size], conv), plain_step(parts[1], conv))


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregation_of_pyg_equals_pyg_alone(ranks: RankPool, parts, name: str) -> None:
    check(ranks.run(spread_step, 3, parts[3], name), plain_step(parts[1], name))


def test_dropout_of_features_and_attention_does_not_depend_on_ranks(ranks: RankPool, parts) -> None:
    want = ranks.run(spread_step, 1, parts[1], "attention")[0]
    for size in (2, 3):
        check(ranks.run(spread_step, size, parts[size], "attention"), want)


@pytest.mark.parametrize("kind", ["chebyshev", "out-degrees", "turned", "reversed"])
def test_layer_that_sums_at_the_sources_is_refused(ranks: RankPool, parts, kind: str) -> None:
    told = ranks.run(refused, 2, parts[2], kind)
    assert all("PlanError" in text and "TAGConv" in text for text in told), told


def test_model_with_random_draws_of_its_own_is_refused(ranks: RankPool, parts) -> None:
    told = ranks.run(refused, 2, parts[2], "adds-noise")
    assert all("PlanError" in text and "random" in text for text in told), told


def test_numbers_of_nodes_are_not_compared(ranks: RankPool, parts) -> None:
    told = ranks.run(refused, 2, parts[2], "drops-both-ways")
    assert all("PlanError" in text and "force_undirected" in text for text in told), told


@pytest.mark.parametrize("strategy", [Strategy(), Strategy(stages=1 << 30, recompute=True)])
def test_edges_are_dropped_by_their_ends(ranks: RankPool, parts, strategy: Strategy) -> None:
    want = ranks.run(spread_step, 1, parts[1], "drops-edges")[0]
    for size in (2, 3):
        check(ranks.run(spread_step, size, parts[size], "drops-edges", strategy), want)
    assert want["loss"] != plain_step(parts[1], "drops-edges")["loss"], "draws of torch's own"


def test_norm_over_all_rows_is_refused(ranks: RankPool, parts) -> None:
    told = ranks.run(refused, 2, parts[2], "graph-norm")
    assert all("PlanError" in text and "GraphNorm" in text for text in told), told


def edge_data_steps(world: World, folder: Path) -> dict[str, Any]:
    """Three steps with weight decay, two backwards each, by the user's own loop."""
    shard = open_shard(folder, world)
    model = make("edge-data")
    run = parallelize(model, shard)
    extra = {"edge_weight": shard.csr.weight.double(), "edge_attr": shard.edge_attr.double()}
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        for share in (0.25, 0.75):
            out = run(shard.x.double(), **extra)
            picked = functional.cross_entropy(
                out[shard.train], shard.y[shard.train], reduction="none"
            )
            (share * shard.mean(picked)).backward()
        optimiser.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_edge_data_frozen_and_unused_weights_and_two_backwards(ranks: RankPool, tmp_path) -> None:
    graph = awkward_graph(weighted=True)
    folders = {}
    for size in (1, 3):
        folders[size] = tmp_path / f"{size}.parts"
        part_of = assignment(graph, "hash", size)
        write_parts(graph, part_of, folders[size], num_parts=size, method="hash", seed=0)
    want = ranks.run(edge_data_steps, 1, folders[1])[0]
    for got in ranks.run(edge_data_steps, 3, folders[3]):
        for name, weight in got.items():
            close(weight, want[name], name)


def test_as_many_edges_as_nodes_on_one_rank_does_not_confuse_dropout(ranks, tmp_path) -> None:
    # Part 0 has 4 nodes and 4 in-edges, part 1 has 4 nodes and 8.
    src = np.array([4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3])
    dst = np.array([0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 4])
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 6)).astype(np.float32)
    columns = {"x": x, "y": np.arange(8) % 3, "num_classes": 3, "train": np.ones(8, bool)}
    graph = graph_from_edges(src, dst, 8, **columns)
    for size in (1, 2):
        part_of = (np.arange(8) // (8 // size)).astype(np.int32)
        target = tmp_path / f"{size}.parts"
        write_parts(graph, part_of, target, num_parts=size, method="contiguous", seed=0)
    want = ranks.run(spread_step, 1, tmp_path / "1.parts", "two-dropouts")[0]
    check(ranks.run(spread_step, 2, tmp_path / "2.parts", "two-dropouts"), want)


def unequal_start(world: World, folder: Path) -> str:
    torch.manual_seed(world.rank)
    try:
        parallelize(nn.Linear(6, 3), open_shard(folder, world))
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return str(error)
    return "nothing"


def test_weights_that_start_differently_are_refused(ranks: RankPool, parts) -> None:
    assert all("initial weights" in text for text in ranks.run(unequal_start, 2, parts[2]))

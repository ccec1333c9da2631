"""A rank's edges have the types of the graph."""

from pathlib import Path

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.graph import graph_from_edges
from siafu.ingest import load_builtin
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from tests.harness import RankPool


def _typed_edges(world: World, folder: Path) -> tuple[np.ndarray, int, tuple[str | int, ...]]:
    shard = open_shard(folder, world)
    assert shard.edge_type.dtype == torch.int32
    src, dst = shard.edge_index
    edges = torch.stack([shard.column_ids[src], shard.row_ids[dst], shard.edge_type.long()])
    return edges.numpy(), shard.num_edge_types, shard.edge_type_names


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_every_edge_keeps_its_type_over_the_ranks(
    ranks: RankPool, num_ranks: int, tmp_path: Path
) -> None:
    graph = load_builtin("relations:101")
    partition_graph(graph, tmp_path / "parts", num_parts=num_ranks)
    found = ranks.run(_typed_edges, num_ranks, tmp_path / "parts")
    edges = np.concatenate([edges for edges, _, _ in found], axis=1)
    want = np.stack([*graph.edge_index(), graph.edge_type.astype(np.int64)])
    assert sorted(edges.T.tolist()) == sorted(want.T.tolist())
    assert {(count, names) for _, count, names in found} == {(3, ("same", "next", "previous"))}


def test_a_rank_counts_the_types_of_the_whole_graph(tmp_path: Path) -> None:
    graph = graph_from_edges(
        np.array([0, 1]), np.array([1, 0]), 2, edge_type=np.array([0, 299]), num_edge_types=400
    )
    partition_graph(graph, tmp_path / "parts", num_parts=1)
    shard = open_shard(tmp_path / "parts", World())
    assert shard.num_edge_types == 400
    assert shard.edge_type.tolist() == [299, 0]
    assert shard.edge_type_names == ()


def test_a_shard_without_types_has_none(tmp_path: Path) -> None:
    partition_graph(load_builtin("planted:50"), tmp_path / "parts", num_parts=1)
    shard = open_shard(tmp_path / "parts", World())
    assert (shard.edge_type, shard.num_edge_types, shard.edge_type_names) == (None, 0, ())

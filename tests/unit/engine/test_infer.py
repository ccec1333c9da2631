"""Predictions on disk: one file a rank, one table together."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import build_network, write_predictions
from siafu.ingest import load
from siafu.nn import Draws
from siafu.partitioning.write import write_parts
from siafu.shard import open_shard
from tests.harness import RankPool


def predict(world: World, parts: Path, target: Path) -> int:
    """Write untrained predictions and return the rows this rank owns."""
    config = make_config(data="planted", ranks=world.size, hidden=8).resolved()
    shard, draws = open_shard(parts, world), Draws(seed=0)
    network = build_network(config, shard, draws)
    write_predictions(network, shard, draws, target, embeddings=True)
    return shard.num_owned


@pytest.mark.parametrize("empty", [0, 1])
def test_part_without_nodes_leaves_a_readable_table(
    ranks: RankPool, tmp_path: Path, empty: int
) -> None:
    graph = load("planted:60")
    part_of = np.full(60, 1 - empty, np.int32)
    write_parts(graph, part_of, tmp_path / "parts", num_parts=2, method="hash", seed=0)
    owned = ranks.run(predict, 2, tmp_path / "parts", tmp_path / "out")
    assert owned[empty] == 0
    table = pq.read_table(tmp_path / "out")
    assert sorted(table["id"].to_pylist()) == list(range(60))
    files = [pq.read_schema(tmp_path / "out" / f"part{rank}.parquet") for rank in range(2)]
    assert files[0] == files[1]
    assert pa.types.is_string(table.schema.field("split").type)

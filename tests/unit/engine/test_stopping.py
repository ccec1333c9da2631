"""All ranks end after the same epoch, saved, when one of them was told to."""

from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.errors import Stopped
from siafu.ingest import load
from siafu.partitioning import partition_graph
from siafu.record import RunFolder
from siafu.shard import open_shard
from tests.harness import RankPool

ENGINES: dict[str, dict[str, Any]] = {
    "halo": {},
    "dorylus": {"strategy": "dorylus", "pool": "none", "intervals": 2, "staleness": 1},
    "batchgnn": {"strategy": "batchgnn", "batch_size": 32},
}


def stop_at_3(world: World, parts: Path, folder: Path, settings: dict[str, Any]) -> int:
    """Return the epoch after which this rank stopped; rank 1 is told to in the third."""
    config = make_config(data="planted", ranks=world.size, hidden=8, **settings).resolved()
    training = begin(config, open_shard(parts, world))

    def is_told() -> bool:
        return world.rank == 1 and training.progress.epochs >= 3

    try:
        training.train(RunFolder(folder), lambda row: None, is_told)
    except Stopped as stopped:
        return stopped.epochs
    finally:
        training.close()  # all ranks are well, and the pool is needed by other tests
    return 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("every", [0, 50])
def test_ranks_stop_together(ranks: RankPool, tmp_path: Path, engine: str, every: int) -> None:
    parts, run = tmp_path / "parts", tmp_path / "run"
    run.mkdir()
    partition_graph(load("planted:200"), parts, num_parts=2, method="hash")
    settings = ENGINES[engine] | {"checkpoint_every": every, "eval_every": 2}
    # Intervals of a pipeline may be in the fourth epoch already, and stand still after it.
    epoch = 4 if engine == "dorylus" else 3
    assert ranks.run(stop_at_3, 2, parts, run, settings) == [epoch, epoch]
    saved = [path.name for path in run.glob("checkpoints/*")]
    assert saved == ([f"epoch-{epoch:06d}"] if every else [])

"""What `--memory` of ranks leaves to reading and cutting the data of their run."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.config import make_config
from siafu.errors import PartitionError
from siafu.launch import prepare
from siafu.memory import Budget, held_bytes
from siafu.partitioning import open_parts
from siafu.record import PhaseProgress


def test_ranks_that_start_here_lend_what_they_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(data="planted", ranks=3, memory="1GB", device="cpu")
    held = held_bytes()
    budget = prepare._budget(config)
    assert budget.most == budget.beside + 3 * 10**9
    assert abs(budget.beside - held) < 10**8
    on_ray = prepare._budget(config.model_copy(update={"launcher": "ray"}))
    assert on_ray.most == on_ray.beside + 10**9
    monkeypatch.setenv("WORLD_SIZE", "3")  # this process is one of them, the others wait
    assert prepare._budget(config) == Budget(most=10**9)


@pytest.mark.parametrize("update", [{"device": "cuda"}, {"memory": None}])
def test_a_budget_of_another_memory_binds_no_cut(update: dict[str, str | None]) -> None:
    config = make_config(data="planted", ranks=3, memory="1GB", device="cpu")
    assert prepare._budget(config.model_copy(update=update)) == Budget()


def test_tables_of_a_run_are_cut_within_what_a_refusal_names(tmp_path: Path) -> None:
    ends = np.random.default_rng(0).integers(0, 50, (2, 300))
    (tmp_path / "data").mkdir()
    nodes = pa.table({"id": np.arange(50), "label": np.arange(50) % 3})
    pq.write_table(nodes, tmp_path / "data" / "nodes.parquet")
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), tmp_path / "data" / "edges.parquet")

    def cut(memory: str) -> Path:
        config = make_config(data="data", ranks=2, memory=memory, device="cpu")
        progress = PhaseProgress(quiet=True)
        target = tmp_path / "parts"
        data = tmp_path / "data"
        return prepare.prepare_parts(data, config, target, say=lambda line: None, progress=progress)

    with pytest.raises(PartitionError, match="reading the tables and cutting them") as caught:
        cut("50MB")
    named = re.search("give --memory ([0-9]+MB) or more", caught.value.fix)
    assert named is not None
    assert open_parts(cut(named[1])).num_parts == 2

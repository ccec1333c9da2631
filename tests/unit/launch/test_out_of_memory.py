"""Memory that runs out is explained: the rank, the kind that grew, and changes that would help."""

import signal
from pathlib import Path

import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.errors import BudgetError, ConfigError, RankError
from siafu.ingest import load
from siafu.launch import local, out_of_memory
from siafu.launch.out_of_memory import explaining, explaining_kills, is_shortage, what_grew
from siafu.partitioning import partition_graph

GB = 10**9


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("memory") / "parts"
    partition_graph(load("planted:30k"), folder, num_parts=2, method="contiguous")
    return str(folder)


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("shapes differ"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_shortages_are_recognised(error: Exception, want: bool) -> None:
    assert is_shortage(error) is want


def test_rank_without_memory_tells_what_grew_and_two_changes(
    parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out_of_memory, "memory_in_use", lambda world: 30 * GB)
    monkeypatch.setitem(out_of_memory._held_by_rank, 1, GB // 10)
    config = make_config(data=parts, model="gat", ranks=2, hidden=4096, layers=4)
    problem = "Rank 1 has run out of memory"
    world = World(rank=1, size=2)
    with pytest.raises(BudgetError, match=problem) as caught, explaining(config, parts, world):
        torch.empty(1 << 60)
    assert "held 30 GB" in caught.value.seen
    assert "training grew past" in caught.value.seen
    assert "rows" in caught.value.seen
    assert caught.value.fix.count("per rank instead of") == 2
    assert "times the seconds" in caught.value.fix


def test_kind_held_before_training_is_named(parts: str) -> None:
    config = make_config(data=parts, model="gcn", ranks=2)
    told = what_grew(config, parts, 0, now=9 * GB, held=8 * GB)
    assert "what it held before training grew past" in told
    assert "to 8 GB" in told


def test_other_errors_pass(parts: str) -> None:
    config = make_config(data=parts, model="gcn", ranks=2)
    for error in (ConfigError("a", seen="b", fix="c"), RuntimeError("shapes differ")):
        with pytest.raises(type(error)) as caught, explaining(config, parts, World()):
            raise error
        assert caught.value is error


def test_models_of_which_nothing_is_known_are_told_without_figures(parts: str) -> None:
    config = make_config(data=parts, model="net.py:Net", ranks=2)
    with pytest.raises(BudgetError) as caught, explaining(config, parts, World()):
        raise MemoryError("Unable to allocate")
    assert "predicted" not in caught.value.seen
    assert "--strategy sar" in caught.value.fix


def test_kernel_is_named_where_it_killed_a_rank(parts: str) -> None:
    plain = local.first_error([], {1: -signal.SIGKILL, 0: 0})
    found = local._by_kernel(plain, {1: -signal.SIGKILL, 0: 0})
    assert "Rank 1 was killed by the kernel: memory ran out" in str(found)
    assert local._by_kernel(plain, {0: 2}) is plain
    config = make_config(data=parts, model="gat", ranks=2, hidden=4096, layers=4)
    with pytest.raises(RankError) as caught, explaining_kills(config, parts):
        raise found
    assert "were predicted" in caught.value.seen
    assert "per rank instead of" in caught.value.fix


def test_kills_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 3\noom_kill 2\noom_group_kill 9\n")
    monkeypatch.setattr(local, "_KILLS", (str(events), str(tmp_path / "missing")))
    assert local.kernel_kills() == 2

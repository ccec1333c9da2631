"""Ranks that this machine has no memory for are refused before anything is read or started."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.config import make_config
from siafu.errors import BudgetError
from siafu.ingest import load
from siafu.launch import host_room
from siafu.launch.checks import check_run
from siafu.launch.host_room import LEAST_BYTES, check_host, check_host_with_parts
from siafu.partitioning import partition_graph


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have some bytes be free, and these environments be those of no launcher."""
    monkeypatch.setattr(host_room, "free_bytes", lambda: 2 * 10**9)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return 2 * 10**9


def unexpected(*_: Any, **__: Any) -> None:
    pytest.fail("data was read for a run that can't be")


def config(**settings: Any) -> Any:
    return make_config(**{"data": "planted", "model": "sage", **settings})


def test_ranks_are_refused_that_can_not_even_be_started(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module("siafu.launch.fit"), "prepare_parts", unexpected)
    with pytest.raises(BudgetError, match=r"ranks=500: 187 MB each at least, 93.6 GB in all"):
        siafu.fit("planted:200", ranks=500)
    assert not list(tmp_path.iterdir())
    check_host(config(ranks=free // LEAST_BYTES))
    check_host(config(ranks=500, launcher="ray"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "500")  # torchrun has started them
    check_host(config(ranks=500))


def test_ranks_are_refused_whose_training_does_not_fit(free: int, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(load("planted:20k"), parts, num_parts=2, method="hash")
    wide = {"ranks": 2, "hidden": 16384, "strategy": "halo"}
    check_host_with_parts(config(**{**wide, "hidden": 64}), parts)
    with pytest.raises(BudgetError, match=r"predicted(.*\n)*.*--memory 1000MB, or more machines"):
        check_host_with_parts(config(**wide), parts)
    check_host_with_parts(config(**wide, memory="4GB"), parts)
    check_host_with_parts(config(ranks=2, model="net.py:Net"), parts)
    del free


@pytest.mark.parametrize("settings", [{}, {"strategy": "batchgnn"}, {"ranks": 2}], ids=str)
def test_budget_below_what_torch_takes_is_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match="Python and torch alone take about 360 MB"):
        check_run("gone.csv", config(memory="300MB", **settings))
    check_run("planted", config(memory="400MB", **settings))

"""A device without memory: what it holds is told by kind, with what needs less."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.device_memory import held_by, naming_what_is_held
from siafu.errors import BudgetError
from siafu.ingest import load
from siafu.launch import opening
from siafu.partitioning import partition_graph
from siafu.shard import open_shard


@pytest.mark.parametrize(
    ("unit", "fix"), [("macrobatch", "--rows-on pinned"), ("graph", "batchgnn"), ("interval", "")]
)
def test_what_is_held_is_named_by_kind(unit: str, fix: str) -> None:
    held = {"features": 2 * 10**9, "edges": 0}
    naming = naming_what_is_held(torch.device("cpu"), unit, lambda: dict(held))
    with pytest.raises(BudgetError, match="no memory left") as told, naming:
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "features 2.00 GB" in told.value.seen
    assert "edges" not in told.value.seen
    assert fix in told.value.fix


def test_other_errors_pass_and_a_cpu_holds_nothing_there() -> None:
    naming = naming_what_is_held(torch.device("cpu"), "graph", dict)
    with pytest.raises(ValueError, match="other"), naming:
        raise ValueError("other")
    weights = [torch.nn.Parameter(torch.ones(3))]
    assert set(held_by(SimpleNamespace(), torch.optim.Adam(weights)).values()) == {0}


def test_the_memory_of_recordings_is_a_kind_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 9 GB alive 2 are a recording's, which holds 3."""
    segments = [
        {"device": 0, "total_size": 10 * 10**9, "allocated_size": 7 * 10**9},
        {"device": 0, "total_size": 3 * 10**9, "allocated_size": 2 * 10**9},
        {"device": 1, "total_size": 5 * 10**9, "allocated_size": 5 * 10**9},
    ]
    for pool, segment in zip([(0, 0), (0, 1), (0, 1)], segments, strict=True):
        segment["segment_pool_id"] = pool
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 9 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 13 * 10**9)
    held = {"edges": 4 * 10**9}
    naming = naming_what_is_held(torch.device("cuda", 0), "macrobatch", lambda: dict(held))
    with pytest.raises(BudgetError) as told, naming:
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert told.value.seen == (
        "edges 4.00 GB, recordings of steps 3.00 GB, rows of layers and the rest 3.00 GB; "
        "3.00 GB kept by torch for later"
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "graph": {"strategy": "halo"},
    "macrobatch": {"strategy": "batchgnn", "batch_size": 50},
}


def no_memory(*given: Any, **named: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("when", ["run_epoch", "evaluate"])
def test_epochs_and_scores_name_what_is_held(tmp_path: Path, kind: str, when: str) -> None:
    partition_graph(load("planted:200"), tmp_path / "parts", num_parts=1, method="hash")
    config = make_config(data="planted", hidden=8, epochs=2, **SETTINGS[kind]).resolved()
    training = begin(config, open_shard(tmp_path / "parts", World()))
    training.step()
    setattr(training.workload, when, no_memory)
    with pytest.raises(BudgetError, match="no memory left"):
        training.step() if when == "run_epoch" else training.score()
    training.abandon()
    training.close()


@pytest.mark.parametrize("when", ["open_shard", "infer"])
def test_loading_and_inference_do_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    given = {"epochs": 1, "hidden": 8, "strategy": "halo", "out": str(tmp_path / "run")}
    if when == "open_shard":
        monkeypatch.setattr(opening, "open_shard", no_memory)
        with pytest.raises(BudgetError, match="no memory left"):
            siafu.fit("planted:100", **given)
        return
    siafu.fit("planted:100", **given)
    monkeypatch.setattr("siafu.launch.rank.write_predictions", no_memory)
    with pytest.raises(BudgetError, match="no memory left"):
        siafu.infer(str(tmp_path / "run"), out=str(tmp_path / "again"))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Give torch 1.5 GB of the GPU."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.5e9 / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@gpu
@pytest.mark.gpu
def test_a_gpu_without_memory_names_features_edges_and_weights(
    tmp_path: Path, little_memory: None
) -> None:
    # 50 k rows of 1024 numbers are 0.2 GB, several of which a layer keeps.
    given = {"model": "sage", "hidden": 1024, "layers": 6, "strategy": "halo", "epochs": 2}
    with pytest.raises(BudgetError, match="no memory left") as told:
        siafu.fit("planted:50k", **given, device="cuda", out=str(tmp_path / "run"))
    for kind in ("features", "edges", "weights and optimiser", "rows of layers and the rest"):
        assert kind in told.value.seen


@gpu
@pytest.mark.gpu
def test_minibatches_without_memory_name_macrobatches_and_hot_rows(
    tmp_path: Path, little_memory: None
) -> None:
    given = {"model": "sage", "hidden": 2048, "layers": 3, "strategy": "batchgnn", "epochs": 1}
    given |= {"batch_size": 20_000, "fanout": "15,15,15", "rows_on": "pinned", "macrobatch": 1}
    with pytest.raises(BudgetError, match="no memory left") as told:
        siafu.fit("planted:50k", **given, device="cuda", out=str(tmp_path / "run"))
    for kind in ("copies of hot rows", "macrobatches", "edges", "weights and optimiser"):
        assert kind in told.value.seen

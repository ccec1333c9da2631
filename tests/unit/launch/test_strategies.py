"""Strategies and choices through `siafu.fit`: the same losses, or a refusal that says why."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import siafu
from siafu.errors import ConfigError
from siafu.nn import Draws, LocalNeighbours, ModelSpec, cache_input, check_input_cache
from siafu.ops import CSR
from siafu.record import read_trace

launch = importlib.import_module("siafu.launch.fit")

EPOCHS = 6
SETTINGS = {"ranks": 2, "epochs": EPOCHS, "hidden": 8, "partition": "hash", "threads": 1}


@pytest.fixture(autouse=True)
def here(runs_on_pool: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def halo_losses() -> dict[str, list[float]]:
    return {}


def losses_of_halo(known: dict[str, list[float]], **settings: Any) -> list[float]:
    key = repr(sorted(settings.items()))
    if key not in known:
        known[key] = siafu.fit("planted:500", **SETTINGS, **settings).result["losses"]
    return known[key]


def close(losses: list[float]) -> Any:
    return pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_sar_has_the_losses_of_halo_and_goes_on_after_a_stop(halo_losses, model: str) -> None:
    want = losses_of_halo(halo_losses, model=model)
    settings = {**SETTINGS, "model": model, "strategy": "sar", "epochs": 4, "checkpoint_every": 2}
    run = siafu.fit("planted:500", **settings)
    assert run.result["losses"] == close(want[:4])
    assert run.result["strategy"] == "sar"
    expected = {"stages": 2, "recompute": True, "input_cache": False, "prune": False}
    expected |= {"wire": 32, "overlap": True}
    assert run.result["choices"] == expected
    if model == "gat":
        assert run.result["bytes_sent"]["halo_refetch"] > 0

    resumed = launch.resume_run(run.path, {"epochs": EPOCHS}, quiet=True)
    assert resumed.result["losses"][:4] == run.result["losses"]
    assert resumed.result["losses"] == close(want)
    assert resumed.result["choices"] == expected


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_pruned_run_has_the_losses_of_a_whole_one_and_infers(halo_losses, model: str) -> None:
    want = losses_of_halo(halo_losses, model=model)
    run = siafu.fit("planted:500", **SETTINGS, model=model, prune=True)
    assert run.result["losses"] == close(want)
    assert run.result["choices"]["prune"] is True
    assert sorted(run.predictions["id"].to_pylist()) == list(range(500))

    target = siafu.launch.write_inference(run.path, Path("again"), say=lambda line: None)
    again = pq.read_table(target).sort_by("id")
    told = run.predictions.sort_by("id")
    assert again["prediction"].to_pylist() == told["prediction"].to_pylist()
    np.testing.assert_allclose(again["confidence"], told["confidence"], rtol=1e-5)


@pytest.mark.parametrize("others", [{}, {"prune": True, "strategy": "sar"}])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_cached_input_has_the_losses_of_an_uncached_one(halo_losses, model, others) -> None:
    want = losses_of_halo(halo_losses, model=model, input_dropout=0.0)
    settings = {**SETTINGS, "model": model, "input_dropout": 0.0, "input_cache": True, **others}
    run = siafu.fit("planted:500", **settings)
    assert run.result["losses"] == close(want)
    assert run.result["choices"]["input_cache"] is True
    assert run.result["choices"]["prune"] is others.get("prune", False)


def refused(call: Callable[[], Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value


def refused_fit(here: Path, **settings: Any) -> ConfigError:
    """Return the refusal of a run on one rank, which leaves nothing behind but prepared data."""
    error = refused(lambda: siafu.fit("planted:200", epochs=1, **settings))
    left = [run for run in here.glob("runs/*") if not (run / "data.parts").exists()]
    assert not left, "a refused run left its folder"
    return error


def test_input_cache_is_refused_where_weights_come_first(here: Path) -> None:
    error = refused_fit(here, model="gat", input_cache=True, dropout=0.0)
    assert "can't be aggregated once" in error.problem
    assert "model='gat'" in error.seen
    assert "gcn, sage, gin" in error.fix
    assert "input_cache" in error.fix


@pytest.mark.parametrize("settings", [{}, {"input_dropout": 0.25}, {"dropout": 0.3}])
def test_input_cache_is_refused_with_dropout_on_the_input(here: Path, settings) -> None:
    error = refused_fit(here, input_cache=True, **settings)
    p = settings.get("input_dropout", settings.get("dropout", 0.5))
    assert "can't be aggregated once" in error.problem
    assert f"dropout of {p:g} on the input" in error.seen
    assert "input_dropout=0" in error.fix


def test_means_of_many_types_are_not_kept() -> None:
    few, many = (
        ModelSpec(name="rgcn", in_width=16, out_width=2, num_types=types, input_dropout=0.0)
        for types in (8, 9)
    )
    check_input_cache(few)
    error = refused(lambda: check_input_cache(many))
    assert "9 types of edges: 576 bytes of means per node, beside 64" in error.seen
    assert "up to 8 types" in error.fix
    error = refused(lambda: check_input_cache(few, sampled=True))
    assert "on minibatches" in error.seen


def test_input_cache_is_refused_for_an_input_that_is_trained() -> None:
    csr = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2)
    neighbours = LocalNeighbours(csr, torch.arange(2), Draws(seed=0))
    spec = ModelSpec(name="gcn", in_width=3, out_width=2, input_dropout=0.0)
    x = torch.ones(2, 3, requires_grad=True)
    error = refused(lambda: cache_input(x, neighbours, spec))
    assert "can't be aggregated once" in error.problem
    assert "input that is trained" in error.seen
    assert "detach" in error.fix
    assert cache_input(x.detach(), neighbours, spec).aggregate.shape == (2, 3)


@pytest.mark.parametrize("settings", [{"norm": "batch"}, {"model": "gin"}])
def test_prune_is_refused_with_batch_norm(here: Path, settings) -> None:
    error = refused_fit(here, prune=True, **settings)
    assert "Batch norm needs the rows of all nodes" in error.problem
    assert "prune=True" in error.seen
    assert "norm='layer'" in error.fix


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.linear(x)
"""


@pytest.mark.parametrize("choice", ["input_cache", "prune"])
def test_own_models_are_not_taken_apart(here: Path, choice: str) -> None:
    (here / "mine.py").write_text(OWN)
    error = refused_fit(here, model="mine.py:Net", **{choice: True})
    assert "model of your own is not taken apart" in error.problem
    assert f"{choice}=True" in error.seen
    assert "built-in model" in error.fix


@pytest.mark.parametrize("model", ["rgcn", "typed-gat"])
def test_graph_without_types_is_refused(here: Path, model: str) -> None:
    error = refused_fit(here, model=model)
    assert "needs types of edges" in error.problem
    assert f"model={model!r}" in error.seen
    assert "siafu ingest" in error.fix


def test_graph_without_edge_features_is_refused(here: Path) -> None:
    error = refused_fit(here, model="gat", edge_features=True)
    assert "no edge features" in error.problem
    assert "planted" in error.seen
    assert "edge_features" in error.fix


def test_auto_without_a_budget_is_refused(here: Path) -> None:
    error = refused_fit(here, stages="auto")
    assert "number of stages" in error.problem
    assert "memory=" in error.fix


def test_unreadable_stages_are_refused_before_anything_is_made(here: Path) -> None:
    error = refused_fit(here, stages="some")
    assert error.seen == "stages=some"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        ("planted:300", {"model": "gat", "strategy": "sar"}),
        ("planted:300", {"strategy": "batchgnn", "batch_size": 50}),
        ("drifting:40", {"model": "cd-gcn"}),
    ],
)
def test_any_run_can_be_traced(data: str, settings: dict[str, Any]) -> None:
    run = siafu.fit(data, ranks=2, epochs=2, hidden=8, trace=True, **settings)
    spans = read_trace(run.path / "trace.json")
    assert {span.rank for span in spans} == {0, 1}
    assert {"phase", "wait", "link"} <= {span.category for span in spans}
    epochs = [span for span in spans if span.name.endswith("epoch 2") and span.rank == 0]
    inside = [span for span in spans if span.lane == "training" and span.category == "wait"]
    assert any(epochs[0].start <= span.start and span.end <= epochs[0].end for span in inside)


@pytest.mark.parametrize("count", [1, 3])
def test_result_tells_where_time_and_rows_went(count: int) -> None:
    run = siafu.fit("planted:500", **{**SETTINGS, "ranks": count})
    times, traffic = run.result["rank_seconds"], run.result["traffic"]
    assert all(len(of_ranks) == count for of_ranks in times.values())
    assert min(times["computing"]) > 0
    assert (min(times["waiting"]) > 0) is (count > 1)
    rows = sum(n for name, n in run.result["bytes_sent"].items() if name.startswith("halo"))
    assert sum(map(sum, traffic)) == rows
    assert all(traffic[rank][rank] == 0 for rank in range(count))
    frame = run.metrics
    assert (frame["waiting"] >= 0).all()
    assert (frame["waiting"] <= frame["seconds"]).all()

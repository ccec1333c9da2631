"""Settings that can't work are refused before data is read and ranks are started."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.config import make_config, read_config
from siafu.errors import ConfigError, DataError
from siafu.launch.checks import check_run, with_strategy, with_task
from siafu.launch.python_words import in_python
from siafu.nn import CARDS
from tests.unit.launch.walk import OWN

launch = importlib.import_module("siafu.launch.fit")

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "batchgnn", "task": "link", "class_weights": "balanced"}, "--class-weights has"),
    ({"strategy": "batchgnn", "task": "link", "loss": "focal"}, "--loss has no meaning where edg"),
    ({"min_ranks": 2}, "may start again"),
    ({"min_ranks": 4, "max_restarts": 1}, "too few ranks"),
    ({"metric": "accuracy,best"}, "There is no such score"),
    ({"class_weights": "balance"}, "weights of the classes.*\n.*balance.*did you mean 'balanced'"),
    ({"class_weights": "1,-2"}, "weights of the classes can't be used"),
    ({"model": "net.py:Net"}, "file has no such class"),
    ({"loss": "net.py:loss"}, "file has no such function"),
    ({"threshold": "1.5"}, "The threshold is no probability"),
    ({"edge_features": True}, "--edge-features has no meaning.*\n.*\n.*gat, gatv2, transformer"),
    ({"model": "typed-gat", "edge_features": True}, "--edge-features has no meaning"),
    ({"heads": 4}, "--heads has no meaning for a model without attention"),
    ({"hidden": 8, "layers": 1}, "--hidden has no meaning for a model of one layer"),
    ({"model": "gat", "heads": 4, "layers": 1}, "--heads has no meaning for a model of one layer"),
    ({"norm": "layer", "layers": 1}, "--norm has no meaning for a model of one layer"),
    ({"model": "net.py:Net", "jk": "cat"}, "--jk has no meaning for a model of your own"),
    ({"model": "net.py:Net", "memory": "1GB", "stages": "2"}, "can't be told beforehand"),
    ({"strategy": "batchgnn", "overlap": False}, "--overlap has no meaning where minibatches"),
    ({"strategy": "dorylus", "input_cache": True, "input_dropout": 0}, "--input-cache has no"),
    ({"strategy": "dorylus", "macrobatch": "2"}, "--macrobatch has no meaning"),
    ({"inference": "none", "metric": "roc-auc"}, "--metric has no meaning where nothing is sc"),
    ({"inference": "none", "eval_every": 5}, "--eval-every has no meaning where nothing is sc"),
    ({"ray_address": "local"}, "--ray-address has no meaning where nothing runs on Ray"),
    ({"negatives": "uniform:3"}, "--negatives has no meaning where no edges are predicted"),
    ({"model": "gat", "hidden": 7, "heads": 4}, "multiple of the heads"),
    ({"strategy": "halo", "fanout": "10,5"}, "no minibatches"),
    ({"batch_size": 500, "wire": "4"}, "no minibatches"),
    ({"strategy": "batchgnn", "hot_rows": "5XB"}, "size of --hot-rows can't be read"),
    ({"prune": True, "norm": "batch"}, "Batch norm needs the rows of all"),
    ({"model": "gat", "input_cache": True}, "input"),
    ({"model": "net.py:Net", "prune": True}, "not taken apart"),
    ({"model": "net.py:Net", "memory": "1GB"}, "can't be told beforehand"),
    ({"model": "gone.py:Net"}, "can't be loaded"),
    ({"strategy": "dorylus", "model": "net.py:Net"}, "not cut into tasks"),
    ({"strategy": "dorylus", "model": "sage-max"}, "can't be cut into tasks"),
    ({"strategy": "dorylus", "norm": "batch"}, "can't be cut into tasks"),
    ({"strategy": "dorylus", "jk": "cat"}, "can't be cut into tasks"),
    ({"strategy": "dorylus", "model": "rgcn"}, "can't be cut into tasks.*\n.*typed edges"),
    ({"strategy": "dorylus", "model": "typed-gat"}, "can't be cut into tasks.*\n.*typed edges"),
    ({"strategy": "dorylus", "model": "gat", "edge_features": True}, "--edge-features"),
    ({"strategy": "dorylus", "memory": "1GB"}, "can't be told beforehand"),
    ({"strategy": "dorylus", "pool": "process", "pool_workers": "few"}, "number of workers"),
    ({"strategy": "dorylus", "pool": "simulated", "cloud": "blue"}, "simulated cloud"),
    ({"strategy": "dorylus", "pool": "aws-lambda"}, "has no name"),
]


@pytest.mark.parametrize(("settings", "match"), REFUSED, ids=lambda value: str(value)[:60])
def test_refusals_come_before_anything_is_started(
    settings: dict[str, Any], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: Any, **__: Any) -> None:
        pytest.fail("data was prepared for a run that can't be")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "prepare_parts", unexpected)
    (tmp_path / "net.py").touch()
    with pytest.raises(ConfigError, match=in_python(match)):
        siafu.fit("planted:200", ranks=2, epochs=1, **settings)
    with pytest.raises(ConfigError, match=in_python(match)):
        siafu.fit("relations:200", ranks=2, epochs=1, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


@pytest.mark.parametrize("model", CARDS)
def test_what_depends_on_the_graph_is_left_to_the_ranks(model: str) -> None:
    before = torch.random.get_rng_state()
    check_run("planted", make_config(data="planted", model=model, ranks=2))
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's draws are not moved"


def test_weights_that_count_twice_are_told_first_and_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = "have their weights in the draw, and the model takes them too"
    for takes, match in (("*, edge_weight=None", told), ("edge_attr", "drawn with replacement")):
        text = f"class Net:\n    def forward(self, x, edge_index, {takes}): ...\n"
        (tmp_path / "net.py").write_text(text)
        config = make_config(data="gone", model="net.py:Net", sample_weighted=True)
        with pytest.raises(ConfigError, match=match):
            check_run("planted", config.model_copy(update={"strategy": "batchgnn"}))


ON_THE_RANKS = [
    {"strategy": "dorylus", "prices": "gone.toml"},
    {"strategy": "dorylus", "pool": "simulated", "cloud": "gone.yaml"},
    {"model": "gone.py:Net"},
]


@pytest.mark.parametrize("settings", ON_THE_RANKS, ids=str)
def test_files_that_ranks_read_are_looked_for_where_the_ranks_are(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="gone"):
        check_run("planted", make_config(data="planted", ranks=2, **settings))
    check_run("planted", make_config(data="planted", ranks=2, launcher="ray", **settings))


def test_a_cloud_that_is_no_file_is_refused_before_ray_starts_ranks() -> None:
    settings = {"strategy": "dorylus", "pool": "simulated", "cloud": "blue"}
    with pytest.raises(ConfigError, match="simulated cloud"):
        check_run("planted", make_config(data="planted", launcher="ray", **settings))


REFUSED_OVER_TIME: list[tuple[dict[str, Any], str]] = [
    ({"node_parts": 2, "wire": "4"}, "--wire has no meaning between groups of nodes"),
    ({"model": "gcrn", "bandwidth": 3}, "--bandwidth has no meaning"),
    ({"model": "evolvegcn-o", "time_exchange": "all-to-all"}, "--time-exchange has no meaning"),
    ({"task": "node", "head": "mlp"}, "--head has no meaning"),
    ({"task": "link", "lags": 2}, "--lags has no meaning"),
    ({"task": "link", "class_weights": "none"}, "--class-weights has no meaning"),
    ({"task": "node", "negatives": "uniform:3"}, "--negatives has no meaning"),
    ({"input_cache": True}, "--input-cache has no meaning on a dynamic graph"),
    ({"prices": "p.toml"}, "--prices has no meaning on a dynamic graph"),
    ({"partition": "hash"}, "--partition has no meaning on a dynamic graph whose nodes"),
    ({"layers": 3, "norm": "batch"}, "--norm has no meaning on a dynamic graph"),
    ({"label": "kind", "src": "a"}, "no meaning .*\n.*\n.*--columns (label=kind|src=a)"),
]


@pytest.mark.parametrize(("settings", "match"), REFUSED_OVER_TIME, ids=lambda v: str(v)[:60])
def test_settings_without_a_meaning_over_time_are_refused(
    settings: dict[str, Any], match: str
) -> None:
    settings = {"model": "tm-gcn", "ranks": 2, **settings}
    with pytest.raises(ConfigError, match=match):
        check_run("drifting", make_config(data="drifting", **settings))


def test_a_task_that_the_data_tells_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="lags has no meaning where no signal"):
        siafu.fit("drifting:40", model="gcrn", lags=2, epochs=1)


@pytest.mark.parametrize(
    "settings", [{"columns": "src=a"}, {"time_unit": "ms"}, {"partial_window": "drop"}], ids=str
)
def test_options_that_events_have_no_use_for_are_refused(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        siafu.fit("drifting:40", model="gcrn", epochs=1, **settings)


def test_what_the_own_class_does_not_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(OWN)
    with pytest.raises(ConfigError, match="hidden has no meaning for a class"):
        siafu.fit("planted:60", model="net.py:Fixed", hidden=16, epochs=1)
    assert siafu.fit("planted:60", model="net.py:Fixed", epochs=1).result["epochs"] == 1


def test_residual_is_refused_where_no_widths_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="residual=True has no meaning"):
        siafu.fit("planted:60", residual=True, hidden=24, epochs=1)
    siafu.fit("planted:60", residual=True, hidden=24, layers=3, epochs=1)


def test_an_old_run_with_settings_that_are_refused_now_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = siafu.fit("planted:60", epochs=1, checkpoint_every=1, out="run")
    text = (run.path / "config.yaml").read_text()
    assert "class_weights" not in text
    old = "class_weights: balanced\nedge_features: false\nheads: 4\n"
    kept = [line for line in text.splitlines() if not line.startswith(("edge_features", "heads"))]
    (run.path / "config.yaml").write_text("\n".join([*kept, old]))
    assert launch.resume_run(run.path, {"epochs": 2}, quiet=True).result["epochs"] == 2


def test_the_config_of_a_run_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for model, data in (("gin", "planted:60"), ("evolvegcn-o", "drifting:40")):
        run = siafu.fit(data, model=model, epochs=1, out=model)
        settings = {**read_config(run.path / "config.yaml"), "out": f"{model}-again"}
        settings.pop("data")
        assert siafu.fit(data, **settings).result["losses"] == run.result["losses"]


def test_links_are_learnt_on_minibatches_unless_told_otherwise() -> None:
    said: list[str] = []
    asked = make_config(data="planted", task="link", model="sage")
    chosen = with_strategy("planted", asked, said.append)
    assert chosen.strategy == "batchgnn"
    assert said == ["Links are learnt on minibatches of edges: --strategy batchgnn."]
    check_run("planted", chosen)
    named = make_config(data="planted", task="link", model="sage", strategy="halo")
    assert with_strategy("planted", named, said.append) is named
    over_time = make_config(data="drifting", task="link", model="evolvegcn-o")
    assert with_strategy("drifting", over_time, said.append) is over_time
    assert len(said) == 1


def test_a_column_of_edges_to_predict_is_the_task() -> None:
    said: list[str] = []
    chosen = with_task("trips", make_config(data="trips", edge_label="late"), said.append)
    assert (chosen.task, said) == ("edge", ["What is learnt is late of the edges: --task edge."])
    for other in ({"label": "kind", "task": "node"}, {"task": "link"}):
        named = make_config(data="trips", edge_label="late", **other)
        assert with_task("trips", named, said.append) is named
    assert len(said) == 1
    both = make_config(data="trips", edge_label="late", label="kind")
    with pytest.raises(ConfigError, match="nodes or of edges") as caught:
        with_task("trips", both, said.append)
    assert "--task edge" in caught.value.fix


def test_fewest_ranks_of_parts_of_ones_own(tmp_path: Path) -> None:
    siafu.partition("planted:60", tmp_path / "own.parts", parts=2)
    settings = {"ranks": 2, "min_ranks": 1, "max_restarts": 1}
    with pytest.raises(ConfigError, match="not cut anew"):
        siafu.fit(tmp_path / "own.parts", **settings)

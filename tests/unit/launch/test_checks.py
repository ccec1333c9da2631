"""Settings that can't work are refused before data is read and ranks are started."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.config import make_config
from siafu.errors import ConfigError
from siafu.launch.checks import check_run
from siafu.nn import LAYERS

launch = importlib.import_module("siafu.launch.fit")

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "gat", "hidden": 7, "heads": 4}, "multiple of the heads"),
    ({"fanout": "10,5"}, "no minibatches"),
    ({"batch_size": 500}, "no minibatches"),
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
    with pytest.raises(ConfigError, match=match):
        siafu.fit("planted:200", ranks=2, epochs=1, **settings)
    with pytest.raises(ConfigError, match=match):
        siafu.fit("relations:200", ranks=2, epochs=1, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


@pytest.mark.parametrize("model", LAYERS)
def test_what_depends_on_the_graph_is_left_to_the_ranks(model: str) -> None:
    before = torch.random.get_rng_state()
    check_run("planted", make_config(data="planted", model=model, ranks=2))
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's draws are not moved"


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

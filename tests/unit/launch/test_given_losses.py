"""Losses of the user's own, and what is told of them and of models before epoch 1."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

import siafu
from siafu.errors import ConfigError, ModelError, SiafuError
from siafu.launch.own_code import UntrustedModelError
from tests.unit.launch.walk import small_graph

SETTINGS: dict[str, Any] = {"epochs": 2, "hidden": 8}


def each(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out, y, reduction="none")


def mean(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out, y)


def table(out: Tensor, y: Tensor) -> Tensor:
    return out


def constant(out: Tensor, y: Tensor) -> Tensor:
    return torch.zeros(len(out))


def undefined(out: Tensor, y: Tensor) -> Tensor:
    return out.sum(1).log()


def slips(out: Tensor, y: Tensor) -> Tensor:
    return out @ y.float()


def losses_of(tmp_path: Path, name: str, **settings: Any) -> list[float]:
    settings = {**SETTINGS, **settings, "out": str(tmp_path / name)}
    return siafu.fit(small_graph(), **settings).result["losses"]


@pytest.mark.usefixtures("runs_on_pool")
@pytest.mark.parametrize(
    "engine",
    [{}, {"strategy": "batchgnn", "model": "sage", "batch_size": 10}],
    ids=["graph", "minibatches"],
)
def test_an_own_cross_entropy_is_the_built_in_one(engine: dict[str, Any], tmp_path: Path) -> None:
    built_in = losses_of(tmp_path, "a", **engine)
    assert losses_of(tmp_path, "b", loss=each, **engine) == pytest.approx(built_in, rel=1e-6)
    assert losses_of(tmp_path, "c", loss=mean, **engine) == pytest.approx(built_in, rel=1e-5)
    if not engine:
        pair = losses_of(tmp_path, "d", loss=each, ranks=2)
        assert pair == pytest.approx(built_in, rel=1e-5)
    assert "def each" in (tmp_path / "b" / "loss_code.py").read_text()


def test_a_loss_of_a_file_and_its_trust(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def half(out, y):\n    return (out.sum(1) - y) ** 2 / 2\n")
    monkeypatch.setenv("SIAFU_CONFIG", str(tmp_path / "config"))
    losses_of(tmp_path, "run", loss=f"{file}:half", checkpoint_every=1)
    assert siafu.resume(tmp_path / "run", epochs=3).result["epochs"] == 3
    monkeypatch.setenv("SIAFU_CONFIG", str(tmp_path / "other"))
    with pytest.raises(UntrustedModelError, match="loss="):
        siafu.resume(tmp_path / "run", epochs=4)
    again = siafu.resume(tmp_path / "run", epochs=4, loss=f"{file}:half")
    assert again.result["epochs"] == 4


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"loss": table}, "one number per row"),
        ({"loss": constant}, "does not depend"),
        ({"loss": undefined}, "not a number"),
        ({"loss": slips}, "in slips: return out @ y.float"),
        ({"loss": 3}, "no loss"),
        ({"loss": "focl"}, "focal"),
        ({"loss": "missing.py:f"}, "no such file"),
        ({"loss": each, "class_weights": "balanced"}, "weighs classes itself"),
        ({"loss": each, "strategy": "dorylus", "pool": "none"}, "pipeline"),
    ],
    ids=["table", "constant", "log", "slip", "number", "name", "file", "weights", "pipeline"],
)
def test_losses_that_cannot_work_are_told(settings, told: str, tmp_path: Path) -> None:
    with pytest.raises(SiafuError) as error:
        losses_of(tmp_path, "run", **settings)
    assert told in str(error.value)
    assert not list(tmp_path.glob("run/metrics.jsonl"))


class Wide(nn.Module):
    """Its second layer does not fit the first."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first, self.last = GCNConv(in_channels, 8), nn.Linear(9, out_channels)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index))


class Outputs(nn.Module):
    """Gives three columns whatever it is asked for."""

    def __init__(self, in_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, 3)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Nan(Outputs):
    """Gives no numbers."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels)
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) / 0


class Caching(Nan):
    """Keeps what it has seen first."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.conv = GCNConv(in_channels, out_channels, cached=True)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


@pytest.mark.parametrize(
    ("model", "told", "kind"),
    [
        (Wide, "return self.last(self.first(x, edge_index))", ModelError),
        (Outputs, "3 columns of Outputs, 2 classes", ConfigError),
        (Nan, "NaN or infinite", ConfigError),
    ],
)
def test_models_are_tried_before_they_are_trained(model, told, kind, tmp_path: Path) -> None:
    settings = {"epochs": 2, "out": str(tmp_path / "run")}
    with pytest.raises(kind) as error:
        siafu.fit(small_graph(), model=model, **settings)
    assert told in str(error.value)
    assert "site-packages" not in str(error.value)
    assert not list(tmp_path.glob("run/metrics.jsonl"))


def test_the_trial_leaves_nothing_in_the_model(tmp_path: Path) -> None:
    settings = {"epochs": 2}
    run = siafu.fit(small_graph(), model=Caching, out=str(tmp_path / "run"), **settings)
    assert run.result["epochs"] == 2

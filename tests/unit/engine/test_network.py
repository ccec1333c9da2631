"""Models of the user: where they are found, and which are refused."""

import sys
from pathlib import Path

import pytest

from siafu.config import make_config
from siafu.engine.networks.own_model import own_model
from siafu.errors import ConfigError

MODELS = """
from torch import nn

class Known(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

class Lazy(nn.Module):
    def __init__(self, out_channels):
        super().__init__()
        self.first = nn.LazyLinear(out_channels)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package in the working directory, which is not on sys.path."""
    folder = tmp_path / f"package_of_{tmp_path.name}"
    folder.mkdir()
    (folder / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    return folder.name


def test_package_in_the_working_directory_is_found(package: str) -> None:
    config = make_config(data="planted", model=f"{package}.models:Known").resolved()
    assert own_model(config, 5, 3).linear.weight.shape == (3, 5)


def test_lazy_layers_are_refused(package: str) -> None:
    config = make_config(data="planted", model=f"{package}/models.py:Lazy").resolved()
    with pytest.raises(ConfigError, match="in_channels") as caught:
        own_model(config, 5, 3)
    assert "first.weight" in caught.value.seen


def test_lazy_pyg_layers_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    file = tmp_path / "lazy_pyg.py"
    file.write_text(
        "from torch_geometric.nn import GCNConv\n\n"
        "class Lazy(GCNConv):\n"
        "    def __init__(self, out_channels):\n"
        "        super().__init__(-1, out_channels)\n"
    )
    config = make_config(data="planted", model=f"{file}:Lazy").resolved()
    with pytest.raises(ConfigError, match="in_channels"):
        own_model(config, 5, 3)

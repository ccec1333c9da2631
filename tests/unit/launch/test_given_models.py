"""Models given as classes and instances: of a script, of a notebook, of a library."""

import linecache
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import dropout
from torch_geometric.nn import GCNConv, GraphSAGE

import siafu
from siafu.errors import SiafuError
from siafu.launch.source import code_of
from tests.unit.launch import own_net
from tests.unit.launch.walk import MODELS, small_graph

FACTOR = 2.0
TABLE = np.ones(3)


def doubled(rows: torch.Tensor) -> torch.Tensor:
    return rows * FACTOR


class Base(torch.nn.Module):
    """What a model of the user's is derived from."""

    def after(self, rows: torch.Tensor) -> torch.Tensor:
        return doubled(rows)


class Net(Base):
    """Uses a base, a function, a constant and imports of its module."""

    def __init__(self, in_channels, out_channels, hidden_channels=8):
        super().__init__()
        self.first = GCNConv(in_channels, hidden_channels)
        self.last = GCNConv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        rows = torch.relu(self.first(x, edge_index))
        return self.after(self.last(dropout(rows, 0.5, self.training), edge_index))


class Kept(Net):
    """Keeps its arguments, so that an instance can be made again."""

    def __init__(self, in_channels, out_channels, width):
        super().__init__(in_channels, out_channels, width)
        self.in_channels, self.out_channels, self.width = in_channels, out_channels, width


class Drops(Net):
    """Has its dropout as a module."""

    def __init__(self, in_channels, out_channels, dropout=0.5):
        super().__init__(in_channels, out_channels)
        self.dropout = torch.nn.Dropout(dropout)


class Forgets(Net):
    """Does not keep its width."""

    def __init__(self, in_channels, out_channels, width=4):
        super().__init__(in_channels, out_channels, width)
        self.in_channels, self.out_channels = in_channels, out_channels


class Reads(Net):
    """Reads an array from outside."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * float(TABLE[0])


class Named(torch.nn.Module):
    """Takes widths by other names."""

    def __init__(self, n_in, n_out):
        super().__init__()


SETTINGS: dict[str, Any] = {"epochs": 2}


@pytest.mark.usefixtures("runs_on_pool")
def test_a_class_runs_on_ranks_as_its_file_does(tmp_path: Path) -> None:
    graph = small_graph()
    by_name = siafu.fit(graph, model=f"{MODELS}:Net", out=str(tmp_path / "a"), **SETTINGS)
    by_class = siafu.fit(graph, model=own_net.Net, out=str(tmp_path / "same"), **SETTINGS)
    assert by_class.result["losses"] == by_name.result["losses"]
    alone = siafu.fit(graph, model=Net, out=str(tmp_path / "b"), **SETTINGS)
    pair = siafu.fit(graph, model=Net, ranks=2, out=str(tmp_path / "c"), **SETTINGS)
    assert pair.result["losses"] == pytest.approx(alone.result["losses"], rel=1e-5)
    code = (tmp_path / "b" / "model_code.py").read_text()
    assert "class Base" in code
    assert "FACTOR = 2.0" in code
    assert "class Kept" not in code
    assert type(alone.model()).__name__ == "Net"
    assert siafu.infer(tmp_path / "b").num_rows == 60


def test_an_instance_begins_with_its_own_weights(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Kept(16, 2, 6)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = {"lr": 1e-12, "weight_decay": 0.0, **SETTINGS}
    run = siafu.fit(small_graph(), model=model, out=str(tmp_path / "run"), **settings)
    after = load_file(tmp_path / "run" / "weights.safetensors")
    assert after["first.lin.weight"].shape == (6, 16)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)
        torch.testing.assert_close(model.state_dict()[name], tensor, atol=0, rtol=0)
    assert "kept" in repr(run).lower()


@pytest.mark.parametrize("value", [0.25, 0.5])
def test_an_instance_keeps_its_dropout(value: float, tmp_path: Path) -> None:
    run = siafu.fit(small_graph(), model=Drops(16, 2, value), out=str(tmp_path / "run"), epochs=1)
    assert run.model().dropout.p == value


@pytest.mark.parametrize(("settings", "width"), [({}, 8), ({"hidden": 64}, 64), ({"hidden": 6}, 6)])
def test_the_defaults_of_a_class_stay_unless_asked(settings, width: int, tmp_path: Path) -> None:
    run = siafu.fit(small_graph(), model=Net, epochs=1, out=str(tmp_path / "run"), **settings)
    assert run.model().last.in_channels == width
    if not settings:
        made = siafu.fit(small_graph(), model=Net(16, 2), epochs=1, out=str(tmp_path / "made"))
        assert made.model().last.in_channels == width
        assert made.predict(quiet=True).num_rows == 60


def test_classes_and_instances_of_libraries_are_imported(tmp_path: Path) -> None:
    graph = small_graph()
    settings = {"hidden": 6, "layers": 2, **SETTINGS}
    run = siafu.fit(graph, model=GraphSAGE, out=str(tmp_path / "a"), **settings)
    assert run.result["model"].endswith(":GraphSAGE")
    given = GraphSAGE(16, 6, 2, 2)
    run = siafu.fit(graph, model=given, out=str(tmp_path / "b"), **SETTINGS)
    assert "GraphSAGE" in repr(run)


def test_a_class_of_a_notebook_is_found_in_its_cell(tmp_path: Path, monkeypatch) -> None:
    cell = (
        "import torch\nfrom torch import nn\nimport torch_geometric\nimport torch_geometric.nn\n"
        "x = torch.ones(3)\nWIDTH = 4\n"
        "class Cell(nn.Module):\n"
        "    def __init__(self, in_channels, out_channels):\n"
        "        super().__init__()\n"
        "        self.first = torch_geometric.nn.SAGEConv(in_channels, WIDTH)\n"
        "        self.last = nn.Linear(WIDTH, out_channels)\n"
        "    def forward(self, x, edge_index):\n"
        "        return self.last(self.first(x, edge_index).relu())\n"
    )
    name = "<ipython-input-1-0>"
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(
        linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name)
    )
    exec(compile(cell, name, "exec"), main.__dict__)
    run = siafu.fit(small_graph(), model=main.Cell, out=str(tmp_path / "run"), **SETTINGS)
    assert run.result["epochs"] == 2
    code = (tmp_path / "run" / "model_code.py").read_text()
    assert "torch.ones" not in code


def test_a_class_inside_a_function_brings_what_it_closes_over() -> None:
    width = 7

    class Inner(torch.nn.Module):
        def __init__(self, in_channels, out_channels):
            super().__init__()
            self.map = torch.nn.Linear(in_channels, width)

    code = code_of(Inner)
    assert "width = 7" in code
    compile(code, "code", "exec")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Reads, "TABLE, a ndarray"),
        (Forgets(16, 2, 5), "first.bias is [5] in it, [4]"),
        (Net(16, 2, 5), "first.bias is [5] in it, [8]"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "can't be made again"),
        (3, "no model"),
        (lambda in_channels, out_channels: Net(in_channels, out_channels), "source"),
        (Named, "in_channels, out_channels"),
    ],
    ids=["array", "width", "default", "sequential", "number", "lambda", "names"],
)
def test_what_cannot_work_is_told(model: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(SiafuError) as error:
        siafu.fit(small_graph(), model=model, out=str(tmp_path / "run"), **SETTINGS)
    assert told in str(error.value)

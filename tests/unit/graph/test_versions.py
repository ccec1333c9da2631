"""Each kind of folder has a version of its own, and what earlier versions wrote still opens.

`version_1.zip` holds a store, its parts, a dynamic graph and a checkpoint, as the last siafu that
wrote version 1 left them on disk.
"""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from siafu.checkpoint import load_checkpoint, newest_checkpoint
from siafu.errors import StoreError
from siafu.graph import load_dynamic_store, load_store, open_folder
from siafu.graph.manifest import VERSIONS
from siafu.partitioning import open_parts

FOLDERS = {
    "store": "store",
    "parts": "parts",
    "part": "parts/part0",
    "dynamic": "dynamic",
    "checkpoint": "epoch-000003",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Folders of version 1."""
    with zipfile.ZipFile(Path(__file__).with_name("version_1.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_a_store_of_version_1_opens(old: Path) -> None:
    graph = load_store(old / "store")
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("ring", 4, 5)
    assert graph.ids.to_arrow().to_pylist() == ["w", "x", "y", "z"]
    assert graph.indptr.tolist() == [0, 1, 2, 4, 5]
    assert graph.src.tolist() == [3, 0, 1, 0, 2]
    assert np.array_equal(graph.x, np.arange(8).reshape(4, 2))
    assert graph.y is not None
    assert (graph.y.tolist(), graph.class_names) == ([0, 1, 0, -1], ("a", "b"))


def test_parts_of_version_1_open(old: Path) -> None:
    parts = open_parts(old / "parts")
    assert parts.part_of.tolist() == [0, 0, 1, 1]
    rows = [parts.part(part).load("rows").tolist() for part in range(2)]
    assert rows == [[0, 1], [2, 3]]


def test_a_dynamic_graph_of_version_1_opens(old: Path) -> None:
    graph = load_dynamic_store(old / "dynamic")
    assert [step.keys().tolist() for step in graph.iterate()] == [[1, 6, 9], [1, 7, 9]]


def test_a_checkpoint_of_version_1_is_loaded(old: Path) -> None:
    model = nn.Linear(2, 1)
    loaded = load_checkpoint(newest_checkpoint(old), model)
    assert loaded.facts["epochs"] == 3
    assert torch.allclose(loaded.model["weight"], torch.full((1, 2), 0.9))
    assert torch.allclose(loaded.optimiser["state"][0]["exp_avg"], torch.full((1, 2), 0.1))


@pytest.mark.parametrize("raised", FOLDERS)
def test_a_new_version_of_one_kind_leaves_the_others_alone(
    old: Path, raised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERSIONS, raised, VERSIONS[raised] + 1)
    for kind, name in FOLDERS.items():
        assert open_folder(old / name, kind).facts


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_later_version_is_refused_by_its_number(
    old: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERSIONS, kind, 0)
    with pytest.raises(StoreError, match="format version 1, this siafu reads 1 to 0"):
        open_folder(old / FOLDERS[kind], kind)

"""A user's folder: tables with text ids, an npz, events and a model of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siafu

ROOT = Path(__file__).parents[2]


def _write_tables(place: Path, graph: siafu.Graph) -> None:
    ids = np.array([f"v{number}" for number in range(graph.num_nodes)])
    src, dst = graph.edge_index()
    split = np.select([graph.train, graph.val], ["train", "val"], "test")
    columns = {f"x{k}": graph.x[:, k] for k in range(graph.num_features)}
    place.mkdir()
    nodes = pa.table({"id": ids, "label": graph.y, "split": split, **columns})
    pq.write_table(nodes, place / "nodes.parquet")
    pq.write_table(pa.table({"src": ids[src], "dst": ids[dst]}), place / "edges.parquet")


@pytest.fixture(scope="session")
def user_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has before the first command; copied by `user_folder`."""
    place = tmp_path_factory.mktemp("user")
    graph = siafu.load("planted:400")
    _write_tables(place / "my_data", graph)
    np.savez(
        place / "cora.npz",
        edge_index=graph.edge_index().astype(np.int32),
        x=graph.x,
        y=graph.y,
        num_classes=graph.num_classes,
        symmetric=1,
        train_mask=graph.train,
        val_mask=graph.val,
        test_mask=graph.test,
    )
    shutil.copy(ROOT / "examples" / "net.py", place / "my_model.py")
    make_data = [sys.executable, str(ROOT / "examples" / "fraud" / "make_data.py"), str(place)]
    subprocess.run([*make_data, "--customers", "500", "--transactions", "4000"], check=True)
    src, dst = graph.edge_index()
    days = np.sort(np.random.default_rng(0).integers(0, 200, len(src))) * 86_400
    lines = [f"{s},{d},{day}" for s, d, day in zip(src, dst, days, strict=True)]
    (place / "events.csv").write_text("\n".join(["src,dst,time", *lines]) + "\n")
    return place


@pytest.fixture(scope="session")
def user_parts(user_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's tables in two parts, for pages that begin with parts."""
    place = tmp_path_factory.mktemp("parts") / "my.parts"
    siafu.partitioning.partition_graph(siafu.load(user_data / "my_data"), place, num_parts=2)
    return place


@pytest.fixture
def user_folder(user_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy of the user's folder, as the working directory."""
    folder = tmp_path / "user"
    shutil.copytree(user_data, folder)
    monkeypatch.chdir(folder)
    return folder

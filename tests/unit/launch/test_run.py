"""A finished run as a thing in Python: frames, tables, its module, a picture, short words."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import siafu
from siafu.errors import SiafuError
from tests.unit.launch.walk import MODELS, small_graph


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> siafu.Run:
    out = tmp_path_factory.mktemp("run") / "first"
    return siafu.fit("planted:120", epochs=4, eval_every=2, hidden=8, out=str(out))


def test_metrics_are_a_frame_with_a_row_per_epoch(run: siafu.Run, monkeypatch) -> None:
    pytest.importorskip("pandas")
    frame = run.metrics
    assert list(frame["epoch"]) == [1, 2, 3, 4]
    assert list(frame["loss"]) == run.result["losses"]
    assert list(frame["val_accuracy"].notna()) == [False, True, False, True]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    table = run.metrics
    assert isinstance(table, pa.Table)
    assert table.column_names == list(frame.columns)


def test_what_a_run_shows_is_short(run: siafu.Run) -> None:
    shown = repr(run)
    assert "first" in shown
    assert "test accuracy" in shown
    assert "loss" not in shown
    assert len(shown) < 300
    assert run._repr_html_().count("<tr>") >= 5


def test_embeddings_and_predictions_are_by_id(run: siafu.Run) -> None:
    table = run.embeddings
    assert table.column_names == ["id", "embedding"]
    assert len(table.column("embedding")[0]) == 8
    assert run.predict("planted:150").num_rows == 150
    assert run.predict().num_rows == 120


def logits_of(run: siafu.Run, graph: siafu.Graph) -> np.ndarray:
    model = run.model()
    names = {"edge_weight": graph.edge_weight, "edge_attr": graph.edge_attr}
    taken = model.forward.__code__.co_varnames
    edges = {
        name: torch.tensor(np.asarray(column))
        for name, column in names.items()
        if column is not None and name in taken
    }
    with torch.no_grad():
        x = torch.tensor(np.asarray(graph.x))
        return model(x, torch.tensor(graph.edge_index()), **edges).numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gcn", "normalize_features": True},
        {"model": "gat", "edge_features": True, "heads": 2},
        {"model": "sage", "norm": "batch", "jk": "cat"},
        {"model": f"{MODELS}:Net"},
    ],
    ids=["gcn", "gat", "sage", "own"],
)
def test_the_plain_module_predicts_what_the_run_did(tmp_path: Path, settings) -> None:
    graph = small_graph()
    run = siafu.fit(graph, epochs=2, hidden=8, out=str(tmp_path / "run"), **settings)
    table = run.predictions
    rows = np.argsort(table.column("id").to_numpy())
    np.testing.assert_array_equal(
        logits_of(run, graph).argmax(1), table.column("prediction").to_numpy()[rows]
    )
    assert not run.model().training


def test_a_model_over_time_is_no_plain_module(tmp_path: Path) -> None:
    run = siafu.fit("drifting:60", model="tm-gcn", epochs=1, out=str(tmp_path / "run"))
    with pytest.raises(SiafuError, match="dynamic"):
        run.model()
    assert "tm-gcn" in repr(run)
    assert len(run.metrics) == 1


def test_loss_and_scores_are_drawn(run: siafu.Run, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    loss, score = run.plot().axes
    assert len(loss.lines) == 1
    assert [line.get_label() for line in score.lines] == ["train", "val", "test"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SiafuError, match="draw"):
        run.plot()


def test_what_a_shard_shows_is_short(tmp_path: Path) -> None:
    siafu.partition("planted:120", tmp_path / "one", parts=1)
    shown = repr(siafu.open_shard(tmp_path / "one", siafu.World()))
    assert shown.startswith("Shard('planted', rank 0 of 1, nodes=120")
    assert len(shown) < 100

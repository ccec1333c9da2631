"""Data that is not what a model was trained on is refused by name, own models and over time too."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin_dynamic, check_before_cut, forecast, infer_dynamic, make_grid
from siafu.engine.weights import _check_edges_of_own
from siafu.errors import StoreError
from siafu.ingest import load_dynamic
from siafu.launch.run_state import held
from siafu.record import RunFolder

fit_module: Any = import_module("siafu.launch.fit")
KNOWN = SimpleNamespace(edge_attr_names=["w", "k"], edge_types=[2, "cites", "writes"])


def shard_of(attr: tuple[str, ...], types: tuple[str, ...]) -> Any:
    return SimpleNamespace(
        name="new", edge_attr_names=attr, num_edge_types=len(types), edge_type_names=types
    )


def test_own_model_is_given_the_edge_columns_it_has_learnt() -> None:
    given = ("edge_attr", "edge_type")
    _check_edges_of_own(given, shard_of(("w", "k"), ("cites", "writes")), KNOWN)
    with pytest.raises(StoreError, match="edge features"):
        _check_edges_of_own(given, shard_of(("k", "w"), ("cites", "writes")), KNOWN)
    with pytest.raises(StoreError, match="edge types"):
        _check_edges_of_own(given, shard_of(("w", "k"), ("writes", "cites")), KNOWN)
    # What its forward does not take may be anything.
    _check_edges_of_own((), shard_of(("k", "w"), ("writes", "cites")), KNOWN)


def test_classes_over_time_are_those_of_the_model(tmp_path: Path) -> None:
    graph, _ = load_dynamic("drifting:60")
    names = tuple(f"class {number}" for number in range(graph.num_classes))
    graph = replace(graph, class_names=names)
    config = make_config(data="d", model="gcrn", task="node", hidden=4, epochs=1).resolved()
    trainer = begin_dynamic(config, graph, World())
    trainer.run_epoch()
    trainer.workload.save_weights(tmp_path / "weights")

    def predict(names: tuple[str, ...]) -> None:
        other = replace(graph, class_names=names)
        grid = make_grid(World(), other, 1)
        infer_dynamic(config, other, grid, tmp_path / "weights", tmp_path / "out")

    predict(names)
    with pytest.raises(StoreError, match="classes are not those") as caught:
        predict(names[::-1])
    assert "class 0" in caught.value.seen


def test_an_empty_run_goes_while_it_is_still_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = RunFolder(tmp_path / "run"), []
    folder.path.mkdir()

    def discard(found: RunFolder) -> None:
        try:
            with held(found):
                seen.append("free")
        except StoreError:
            seen.append("held")

    monkeypatch.setattr("siafu.launch.run_state.discard_if_empty", discard)
    with (
        pytest.raises(RuntimeError),
        fit_module._working_on(folder, is_new=True, say=lambda line: None),
    ):
        raise RuntimeError
    assert seen == ["held"]


def test_memory_of_a_gpu_is_not_told_from_that_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(type="cuda")
    monkeypatch.setattr(forecast, "choose_device", lambda name, rank: cuda)
    config = make_config(data="large", memory="1MB").resolved()
    check_before_cut(config, None, None)  # nothing is predicted, so nothing is refused


def test_a_run_is_opened_when_it_is_finished(tmp_path: Path) -> None:
    run = siafu.fit("planted:120", epochs=2, checkpoint_every=2, out=str(tmp_path / "run"))
    again = siafu.open_run(tmp_path / "run")
    assert again.score == run.score
    assert list(again.metrics["epoch"]) == [1, 2]
    table = siafu.infer(again)
    assert sorted(table.column("id").to_pylist()) == list(range(120))
    longer = siafu.resume(again, epochs=3)
    assert longer.result["epochs"] == 3
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(StoreError, match="not finished"):
        siafu.open_run(tmp_path / "run")

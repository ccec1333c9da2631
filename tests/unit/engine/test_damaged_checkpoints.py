"""Checkpoints that someone changed: refused by name, and never other losses in silence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.engine.widths import fault_of
from siafu.errors import SiafuError, StoreError
from siafu.ingest import load
from siafu.partitioning import partition_graph
from siafu.shard import Shard, open_shard
from tests.folders import change_array, edit_manifest, put_array, read_manifest
from tests.unit.engine.runs import run_engine

SETTINGS = {"model": "gcn", "hidden": 4, "epochs": 4, "checkpoint_every": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    partition_graph(load("planted:60"), root / "parts", num_parts=1)
    run_engine(World(), root / "parts", root / "run", False, SETTINGS)
    return root


@pytest.fixture(scope="module")
def shard(made: Path) -> Shard:
    return open_shard(made / "parts", World())


@pytest.fixture
def checkpoint(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run" / "checkpoints", tmp_path / "checkpoints")
    return tmp_path / "checkpoints" / "epoch-000004"


def resume(shard: Shard, checkpoint: Path, **settings: Any) -> Trainer:
    config = make_config(data="planted", **{**SETTINGS, "epochs": 8, **settings}).resolved()
    return begin(config, shard, checkpoint.parent)


def run_fact(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["facts"]["run"].update({name: value})


def test_an_untouched_one_is_taken(shard: Shard, checkpoint: Path) -> None:
    assert resume(shard, checkpoint).progress.epochs == 4


@pytest.mark.parametrize(
    "edit",
    [
        run_fact("epochs", 5),
        run_fact("losses", [0.5] * 4),
        lambda said: said["facts"]["param_groups"][0].update(lr=0.5),
        lambda said: said["facts"]["param_groups"][0]["params"].reverse(),
        lambda said: said["facts"]["names"]["model"].reverse(),
    ],
)
def test_an_edit_is_noticed(
    shard: Shard, checkpoint: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    edit_manifest(checkpoint, edit, seal=False)
    with pytest.raises(StoreError, match="wrong checksum"):
        resume(shard, checkpoint)


@pytest.mark.parametrize(
    "edit",
    [
        run_fact("epochs", 5),
        run_fact("epochs", -1),
        run_fact("epochs", "4"),
        run_fact("epochs", 4.0),
        run_fact("best_epoch", 9),
        run_fact("best_scores", None),
        run_fact("best_scores", {"val": "high"}),
        run_fact("losses", None),
        run_fact("losses", [1.0]),
        run_fact("seconds", [-1.0] * 4),
        run_fact("fingerprint", 3),
        run_fact("ranks", 0),
        run_fact("pipeline", []),
        run_fact("best_merit", "x"),
        lambda said: said["facts"].update(run=None),
        lambda said: said["facts"].update(names={"model": []}),
        lambda said: said["facts"].update(names={"model": [1], "best": []}),
        lambda said: said["facts"]["names"].update(best=["other"]),
        lambda said: said["facts"]["names"]["model"].append(said["facts"]["names"]["model"][0]),
        lambda said: said["facts"]["names"].update(best=[]),
        lambda said: said["facts"].update(param_groups=None),
        lambda said: said["facts"].update(param_groups=[]),
        lambda said: said["facts"]["param_groups"][0].update(lr=0.5),
        lambda said: said["facts"]["param_groups"][0].update(lr="0.01"),
        lambda said: said["facts"]["param_groups"][0].update(params=[0]),
        lambda said: said["facts"]["param_groups"][0].update(betas=None),
        lambda said: said["arrays"].pop("model-0"),
        lambda said: said["arrays"].pop("optimiser-0-exp_avg"),
        lambda said: said["arrays"].update({"optimiser-x": said["arrays"]["model-0"]}),
        lambda said: said["arrays"].update({"optimiser-99-step": said["arrays"]["model-0"]}),
    ],
)
def test_facts_that_can_not_be(
    shard: Shard, checkpoint: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    edit_manifest(checkpoint, edit)
    with pytest.raises(StoreError):
        resume(shard, checkpoint)


@pytest.mark.parametrize("section", ["facts", "run"])
def test_every_fact_that_is_missing(shard: Shard, checkpoint: Path, section: str) -> None:
    said = read_manifest(checkpoint)
    names = said["facts"] if section == "facts" else said["facts"]["run"]
    for name in names.keys() - {"best_merit", "pipeline", "partition", "most_ranks"}:
        edit_manifest(
            checkpoint,
            lambda all_, n=name: (
                all_["facts"] if section == "facts" else all_["facts"]["run"]
            ).pop(n),
        )
        with pytest.raises(StoreError):
            resume(shard, checkpoint)
        (checkpoint / "manifest.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("model-0", np.zeros(3, np.float32)),
        ("model-0", np.zeros((32, 4), np.float64)),
        ("best-0", np.zeros((4, 4), np.float32)),
        ("optimiser-0-exp_avg", np.zeros(2, np.float32)),
        ("optimiser-0-exp_avg", np.zeros((32, 4), np.int64)),
        ("optimiser-0-odd", np.zeros((32, 4), np.float32)),
        ("optimiser-0-step", np.zeros(2, np.float32)),
        ("optimiser-0-step", np.array([np.nan], np.float32)),
        ("optimiser-0-step", np.array([-1], np.float32)),
    ],
)
def test_arrays_that_do_not_fit(
    shard: Shard, checkpoint: Path, name: str, array: np.ndarray
) -> None:
    put_array(checkpoint, name, array)
    with pytest.raises(StoreError):
        resume(shard, checkpoint)


SHARE = {
    "channels": torch.tensor([[0, 0, 0, 2, 1, 0]]),
    "codes": torch.tensor([[4, 4], [8, 2]], dtype=torch.uint8),
    "ranges": torch.tensor([1.0, 2.0]),
    "kept-0-0-0": torch.zeros(2, 3),
}


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("ranges", SHARE["ranges"], None),
        ("channels", torch.tensor([[0, 0, 0, 3, 1, 0]]), "3 messages told"),
        ("channels", -SHARE["channels"], "out of range"),
        ("codes", SHARE["codes"] + 1, "not known"),
        ("codes", SHARE["codes"].long(), "array codes"),
        ("ranges", torch.tensor([1.0, torch.nan]), "not finite"),
        ("kept-0-0-0", torch.tensor([[torch.inf]]), "not finite"),
        ("other", torch.zeros(2), "array other"),
    ],
)
def test_shares_that_do_not_fit(name: str, tensor: torch.Tensor, told: str | None) -> None:
    found = fault_of({**SHARE, name: tensor})
    assert found is None if told is None else told in str(found)


def test_other_settings_of_the_optimiser_are_not_passed_over(
    shard: Shard, checkpoint: Path
) -> None:
    with pytest.raises(StoreError, match=r"lr is 0.01 in it, 0.5 here"):
        resume(shard, checkpoint, lr=0.5)


def test_a_changed_weight_is_noticed(shard: Shard, checkpoint: Path) -> None:
    file = checkpoint / "model-0.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(StoreError, match="wrong checksum") as caught:
        resume(shard, checkpoint)
    assert "first epoch" in caught.value.fix, "there is no other one to go on with"


def test_every_flipped_bit_of_the_manifest_is_refused_or_harmless(
    shard: Shard, checkpoint: Path
) -> None:
    file = checkpoint / "manifest.json"
    whole = file.read_bytes()
    said = json.loads(whole)
    positions = np.random.default_rng(0).choice(8 * len(whole), 200, replace=False)
    for position in positions.tolist():
        raw = bytearray(whole)
        raw[position // 8] ^= 1 << position % 8
        file.write_bytes(raw)
        try:
            resume(shard, checkpoint)
        except SiafuError:
            continue
        assert json.loads(bytes(raw)) == said


def test_a_checkpoint_of_version_1_is_taken(shard: Shard, checkpoint: Path) -> None:
    edit_manifest(checkpoint, lambda said: said.update(version=1))
    assert resume(shard, checkpoint).progress.epochs == 4
    change_array(checkpoint, "model-0", 0, 0.5)
    assert resume(shard, checkpoint).progress.epochs == 4

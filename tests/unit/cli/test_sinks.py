"""Sinks are told what the run's own record is told; one that is missing or fails is said."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from siafu.errors import ConfigError
from siafu.launch.sinks import Sinks, flat_numbers, read_sinks
from tests.command import Command

RUN = ("train", "planted:60", "--epochs", 3, "--hidden", 4, "--out", "run")


class Recorder(types.ModuleType):
    """A module that keeps every call of the functions it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []
        self.__spec__ = types.SimpleNamespace(name=name, loader=None)  # type: ignore[assignment]

    def of(self, name: str) -> list[Any]:
        return [what for called, what in self.calls if called == name]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The part of MLflow's fluent API that is used."""
    module: Any = Recorder("mlflow")
    module.active_run = lambda: None

    def start_run(run_id=None, run_name=None, nested=False):
        module.calls.append(("start_run", (run_id, run_name, nested)))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="id-1"))

    def log_metrics(numbers, step=None):
        module.calls.append(("log_metrics", (numbers, step)))

    module.start_run, module.log_metrics = start_run, log_metrics
    module.log_params = lambda params: module.calls.append(("log_params", params))
    module.end_run = lambda status: module.calls.append(("end_run", status))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The part of W&B's API that is used."""
    module: Any = Recorder("wandb")

    class Run:
        id = "w-1"
        summary = types.SimpleNamespace(
            update=lambda numbers: module.calls.append(("summary", numbers))
        )

        def log(self, numbers, step):
            module.calls.append(("log", (numbers, step)))

        def finish(self, exit_code):
            module.calls.append(("finish", exit_code))

    def init(**settings):
        module.calls.append(("init", settings))
        return Run()

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_mlflow_is_told_settings_rows_and_the_best(siafu: Command, mlflow: Recorder) -> None:
    answer = siafu(*RUN, "--sink", "mlflow", "--lr", 0.02)
    assert answer.code == 0, answer
    assert mlflow.of("start_run") == [(None, "run", False)]
    (params,) = mlflow.of("log_params")
    assert params.items() >= {"data": "planted:60", "model": "gcn", "lr": "0.02"}.items()
    *steps, best = mlflow.of("log_metrics")
    assert [step for _, step in steps] == [1, 2, 3]
    for row, (numbers, _) in zip(rows_of(siafu.here / "run"), steps, strict=True):
        assert numbers["loss"] == row["loss"]
        assert numbers["accuracy/val"] == row["score"]["val"]
    result = json.loads((siafu.here / "run" / "result.json").read_text())
    assert best[0]["best/accuracy/test"] == result["score"]["test"]
    assert mlflow.of("end_run") == ["FINISHED"]


def test_a_resumed_run_goes_on_where_it_was(siafu: Command, mlflow: Recorder) -> None:
    assert siafu(*RUN, "--sink", "mlflow", "--checkpoint-every", 1).code == 0
    assert siafu("train", "--resume", "run", "--epochs", 5).code == 0
    assert [run_id for run_id, _, _ in mlflow.of("start_run")] == [None, "id-1"]
    assert len(mlflow.of("log_params")) == 1, "they can't be changed"
    assert [s for _, s in mlflow.of("log_metrics") if s is not None] == [1, 2, 3, 4, 5]


def test_wandb_and_mlflow_at_once(siafu: Command, mlflow: Recorder, wandb: Recorder) -> None:
    assert siafu(*RUN, "--sink", "wandb,mlflow").code == 0
    (settings,) = wandb.of("init")
    assert (settings["project"], settings["name"], settings["resume"]) == ("siafu", "run", "allow")
    assert settings["config"]["model"] == "gcn"
    assert [step for _, step in wandb.of("log")] == [1, 2, 3]
    assert wandb.of("summary")[0].keys() >= {"best/accuracy/test", "best/epoch"}
    assert wandb.of("finish") == [0]
    assert len(mlflow.of("log_metrics")) == 4


@pytest.mark.usefixtures("runs_on_pool")
def test_a_run_that_fails_ends_as_failed(siafu: Command, wandb: Recorder) -> None:
    assert siafu(*RUN, "--sink", "wandb", "--lr", 1e30).code == 2
    assert wandb.of("finish") == [1]


def test_a_service_that_fails_does_not_end_the_training(siafu: Command, mlflow: Recorder) -> None:
    def refuse(numbers, step=None):
        raise ConnectionError("no route")

    mlflow.log_metrics = refuse  # type: ignore[attr-defined]
    answer = siafu(*RUN, "--sink", "mlflow")
    assert answer.code == 0, answer
    assert answer.err.count("mlflow is told no more: ConnectionError: no route") == 1


def test_a_service_that_can_not_be_opened_is_said(siafu: Command, wandb: Recorder) -> None:
    def refuse(**settings):
        raise RuntimeError("no key")

    wandb.init = refuse  # type: ignore[attr-defined]
    answer = siafu(*RUN, "--sink", "wandb")
    assert answer.code == 2
    assert "--sink wandb can't be opened" in answer.err
    assert "no key" in answer.err


def test_a_package_that_is_missing_is_said_before_data_is_read(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.launch.sinks.find_spec", lambda name: None)
    answer = siafu(*RUN, "--sink", "tensorboard")
    assert answer.code == 2
    assert "pip install tensorboard" in answer.err
    assert not (siafu.here / "run").exists()


def test_names_of_sinks() -> None:
    assert read_sinks("tensorboard, MLflow,tensorboard") == ["tensorboard", "mlflow"]
    assert read_sinks(None) == []
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        read_sinks("wanb")


def test_rows_become_flat_numbers() -> None:
    row = {
        "epoch": 3,
        "loss": 0.5,
        "score": {"val": 0.25},
        "scores": {"val": {"recall@10": 0.75}},
        "bytes_sent": {"a": 2, "b": 3},
        "told": "words",
    }
    assert flat_numbers(row, "f1") == {
        "loss": 0.5,
        "f1/val": 0.25,
        "recall@10/val": 0.75,
        "bytes_sent": 5.0,
    }
    Sinks({}, lambda line: None).row(row, "f1")


def test_tensorboard_writes_curves(siafu: Command) -> None:
    pytest.importorskip("tensorboard")
    assert siafu(*RUN, "--sink", "tensorboard", "--checkpoint-every", 1).code == 0
    assert siafu("train", "--resume", "run", "--epochs", 4).code == 0
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = loading.EventAccumulator(str(siafu.here / "run" / "tensorboard"))
    found.Reload()
    rows = rows_of(siafu.here / "run")
    losses = found.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4]
    assert [event.value for event in losses] == pytest.approx([row["loss"] for row in rows])
    assert "accuracy/val" in found.Tags()["scalars"]

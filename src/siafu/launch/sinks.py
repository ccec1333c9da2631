"""Where rows of metrics go beside the run's folder: TensorBoard, MLflow, Weights & Biases.

Each is imported when it is asked for, and by rank 0 alone. What a service needs to know (addresses,
projects, keys) is told by its own variables: MLFLOW_TRACKING_URI, WANDB_PROJECT and so on.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from siafu.config import RunConfig
from siafu.errors import ConfigError, did_you_mean
from siafu.files import read_json, write_text_atomically
from siafu.launch.run_list import asked_settings
from siafu.record import RunFolder, Say

Numbers = dict[str, float]


class Sink(Protocol):
    """One place that follows a run."""

    def row(self, epoch: int, numbers: Numbers) -> None:
        """Take what an epoch came to."""
        ...

    def end(self, numbers: Numbers, *, failed: bool) -> None:
        """Take what the run came to, the last thing that is told."""
        ...


class TensorBoard:
    """Event files in the folder of the run: `tensorboard --logdir runs`."""

    def __init__(self, folder: RunFolder, settings: dict[str, Any], epochs: int) -> None:
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        # Epochs that a resumed run trains again take the place of those it had written.
        again = epochs + 1 if epochs else None
        self._writer = writer(log_dir=str(folder.path / "tensorboard"), purge_step=again)
        if not epochs:
            rows = "\n".join(f"    {name}: {value}" for name, value in settings.items())
            self._writer.add_text("settings", rows)

    def row(self, epoch: int, numbers: Numbers) -> None:
        """Write the numbers of an epoch as curves."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def end(self, numbers: Numbers, *, failed: bool) -> None:
        """Write the numbers at the best epoch."""
        for name, value in numbers.items():
            self._writer.add_scalar(f"best/{name}", value, 0)
        self._writer.close()


class MLflow:
    """A run of MLflow's, which a resumed run goes on with."""

    def __init__(self, folder: RunFolder, settings: dict[str, Any], epochs: int) -> None:
        self._mlflow = import_module("mlflow")
        known, name = _known_id(folder, "mlflow"), folder.path.name
        nested = self._mlflow.active_run() is not None
        run = self._mlflow.start_run(run_id=known, run_name=name, nested=nested)
        if known is None:
            _note_id(folder, "mlflow", run.info.run_id)
            self._mlflow.log_params({name: str(value) for name, value in settings.items()})

    def row(self, epoch: int, numbers: Numbers) -> None:
        """Log the numbers of an epoch as a step."""
        self._mlflow.log_metrics(_plain_names(numbers), step=epoch)

    def end(self, numbers: Numbers, *, failed: bool) -> None:
        """Log the numbers at the best epoch, and end the run."""
        self._mlflow.log_metrics(_plain_names({f"best/{n}": v for n, v in numbers.items()}))
        self._mlflow.end_run(status="FAILED" if failed else "FINISHED")


class WeightsAndBiases:
    """A run of W&B's, in the project `siafu` unless WANDB_PROJECT names another."""

    def __init__(self, folder: RunFolder, settings: dict[str, Any], epochs: int) -> None:
        wandb = import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "siafu"),
            name=folder.path.name,
            dir=str(folder.path),
            id=_known_id(folder, "wandb"),
            resume="allow",
            config=settings,
        )
        _note_id(folder, "wandb", str(self._run.id))

    def row(self, epoch: int, numbers: Numbers) -> None:
        """Log the numbers of an epoch as a step."""
        self._run.log(numbers, step=epoch)

    def end(self, numbers: Numbers, *, failed: bool) -> None:
        """Put the numbers at the best epoch into the summary, and end the run."""
        self._run.summary.update({f"best/{name}": value for name, value in numbers.items()})
        self._run.finish(exit_code=int(failed))


SINKS: dict[str, tuple[str, Callable[[RunFolder, dict[str, Any], int], Sink]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WeightsAndBiases),
}
"""The package that each needs, and what opens it."""


def read_sinks(text: str | None) -> list[str]:
    """Return the names of the sinks that `tensorboard,mlflow` asks for."""
    names = [name.strip().lower() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in SINKS:
            raise ConfigError(
                "There is no such sink.",
                seen=f"--sink {text}",
                fix=f"use one or several of: {', '.join(SINKS)}{did_you_mean(name, SINKS)}",
            )
    return list(dict.fromkeys(names))


def check_sinks(config: RunConfig) -> None:
    """Raise where a sink is unknown, or its package is not there."""
    for name in read_sinks(config.sink):
        package = SINKS[name][0]
        if find_spec(package) is None:
            raise ConfigError(
                f"--sink {name} needs a package that is not installed.",
                seen=f"no package {package}",
                fix=f"run `pip install {package}`, or leave --sink {name} out",
            )


class Sinks:
    """All sinks of a run; one that fails while training goes on is given up, and that is said."""

    def __init__(self, opened: dict[str, Sink], say: Say) -> None:
        self._opened, self._say = opened, say

    def row(self, row: dict[str, Any], metric: str) -> None:
        """Tell all what an epoch came to."""
        numbers = flat_numbers(row, metric)
        self._tell(lambda sink: sink.row(int(row["epoch"]), numbers))

    def end(self, result: dict[str, Any] | None) -> None:
        """Tell all what the run came to; None where it failed."""
        numbers: Numbers = {}
        if result is not None:
            kept = {name: result[name] for name in ("score", "scores") if result.get(name)}
            numbers = {**flat_numbers(kept, result["metric"]), "epoch": float(result["best_epoch"])}
        self._tell(lambda sink: sink.end(numbers, failed=result is None))

    def _tell(self, call: Callable[[Sink], None]) -> None:
        for name, sink in list(self._opened.items()):
            try:
                call(sink)
            except Exception as error:  # noqa: BLE001 - a service's trouble must not end a training
                del self._opened[name]
                self._say(f"{name} is told no more: {type(error).__name__}: {error}")


@contextmanager
def open_sinks(
    config: RunConfig, folder: RunFolder, epochs: int, say: Say, *, is_first: bool
) -> Iterator[Sinks]:
    """Open what was asked for, on rank 0; a training that fails ends it as failed."""
    opened: dict[str, Sink] = {}
    for name in read_sinks(config.sink) if is_first else []:
        named, asked = asked_settings(folder)
        kept: dict[str, Any] = {
            key: named[key] for key in ("data", "model", "strategy", "ranks") if key in named
        }
        try:
            opened[name] = SINKS[name][1](folder, {**kept, **asked}, epochs)
        except Exception as error:
            raise ConfigError(
                f"--sink {name} can't be opened.",
                seen=f"{type(error).__name__}: {error}",
                fix=f"check its address and key, or leave --sink {name} out",
            ) from error
    sinks = Sinks(opened, say)
    try:
        yield sinks
    except BaseException:
        sinks.end(None)
        raise


def flat_numbers(row: dict[str, Any], metric: str) -> Numbers:
    """Return the numbers of a row of metrics by one name each: `accuracy/val`, `f1/test`."""
    numbers = {name: float(v) for name, v in row.items() if _is_number(v) and name != "epoch"}
    for split, value in (row.get("score") or {}).items():
        numbers[f"{metric}/{split}"] = float(value)
    for split, found in (row.get("scores") or {}).items():
        numbers |= {f"{name}/{split}": float(v) for name, v in found.items() if _is_number(v)}
    if sent := row.get("bytes_sent"):
        numbers["bytes_sent"] = float(sum(sent.values()))
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_names(numbers: Numbers) -> Numbers:
    """Return numbers by names that MLflow takes: `recall@10` is none."""
    return {re.sub(r"[^\w\-./ ]", "_", name): value for name, value in numbers.items()}


def _ids(folder: RunFolder) -> Path:
    return folder.path / "sinks.json"


def _known_id(folder: RunFolder, sink: str) -> str | None:
    """Return by which name a service knows the run, where it began it."""
    try:
        found = read_json(_ids(folder))[sink]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _note_id(folder: RunFolder, sink: str, name: str) -> None:
    ids = {known: at for known in SINKS if (at := _known_id(folder, known)) is not None}
    write_text_atomically(_ids(folder), json.dumps(ids | {sink: name}) + "\n")

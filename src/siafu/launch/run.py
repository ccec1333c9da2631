"""A finished run as a thing: scores, metrics, predictions, its model, a picture of it."""

import html
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from siafu.config import make_config, read_run_config
from siafu.engine import plain_model
from siafu.errors import ConfigError, SiafuError
from siafu.launch.infer import infer
from siafu.launch.own_code import model_to_run
from siafu.record import RunFolder, shown_score


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A finished run: its folder and what it reported."""

    path: Path
    result: dict[str, Any]
    is_first_rank: bool = True
    """False on the other ranks under torchrun: one of them is enough to print."""

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self._summary().items())
        return f"Run({str(self.path)!r}, {told})"

    def _repr_html_(self) -> str:
        rows = {"run": str(self.path), **self._summary()}
        cells = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in rows.items()
        )
        return f"<table>{''.join(cells)}</table>"

    def _summary(self) -> dict[str, Any]:
        result, metric = self.result, self._metric
        told = {"model": result["model"].rpartition(":")[2], "data": result["data"]}
        told["epochs"] = result["epochs"]
        for split, value in self.score.items():
            told[f"{split} {metric}"] = shown_score(metric, value)
        return told

    @property
    def _metric(self) -> str:
        return str(self.result.get("metric", "score"))

    @property
    def score(self) -> dict[str, float]:
        """The score that counts, of train, val and test nodes or edges, at the best epoch."""
        score: dict[str, float] = self.result["score"]
        return score

    @property
    def metrics(self) -> Any:
        """A frame with a row per epoch: loss, seconds, bytes sent and, where evaluated, scores.

        A pandas `DataFrame` where pandas is installed, else an Arrow table.
        """
        rows = [_flat(row, self._metric) for row in RunFolder(self.path).read_metrics()]
        names = dict.fromkeys(name for row in rows for name in row)
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        return table.to_pandas() if importlib.util.find_spec("pandas") else table

    @property
    def predictions(self) -> pa.Table:
        """One row per node: original id, prediction, confidence, label, split.

        Where edges are predicted, one per held-out edge: src, dst, score, split.
        """
        return pq.read_table(RunFolder(self.path).predictions)

    @property
    def probabilities(self) -> pa.Table:
        """The probability of each class, a column by the class's own name, beside the ids."""
        table = self.predictions
        classes = [name for name in table.column_names if name.startswith("p(")]
        if not classes:
            raise SiafuError(
                "The predictions of this run are no classes.",
                seen=f"columns {', '.join(table.column_names)}",
                fix="use run.predictions",
            )
        keys = [name for name in ("id", "src", "dst", "time") if name in table.column_names]
        chosen = table.select([*keys, *classes])
        return chosen.rename_columns([*keys, *(name[2:-1] for name in classes)])

    @property
    def embeddings(self) -> pa.Table:
        """One row per node: its id and its numbers before the last layer."""
        table = infer(self.path, embeddings=True, quiet=True)
        keys = ("id", "time", "embedding")
        return table.select([name for name in keys if name in table.column_names])

    def predict(self, data: Any = None, **settings: Any) -> pa.Table:
        """Return predictions for other data, as `siafu.infer` does; without any, for its own.

        `settings` are those of `siafu.infer`: `quiet=True` tells nothing but warnings.

        >>> run.predict("new.npz").column("prediction")
        """
        return infer(self.path, data, **settings)

    def model(self) -> nn.Module:
        """Return the plain torch module with its weights, called as `model(x, edge_index)`.

        A model of your own is an instance of its class; a built-in one takes what PyG's take.
        """
        folder = RunFolder(self.path)
        config = make_config(**read_run_config(folder.config)).resolved()
        model_to_run(config.model, None, f"siafu infer {self.path}", self.path)
        return plain_model(config, folder.weights)

    def plot(self) -> Any:
        """Draw loss and scores by epoch; return the figure of matplotlib."""
        if importlib.util.find_spec("matplotlib") is None:
            raise ConfigError(
                "There is nothing to draw with.",
                seen="matplotlib is not installed",
                fix="pip install matplotlib, or draw run.metrics with what you have",
            )
        figures = importlib.import_module("matplotlib.figure")
        rows = [_flat(row, self._metric) for row in RunFolder(self.path).read_metrics()]
        figure = figures.Figure(figsize=(9, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot([row["epoch"] for row in rows], [row["loss"] for row in rows])
        left.set(xlabel="epoch", ylabel="loss")
        for split in ("train", "val", "test"):
            name = f"{split}_{self._metric}"
            scored = [row for row in rows if name in row]
            if scored:
                epochs = [row["epoch"] for row in scored]
                right.plot(epochs, [row[name] for row in scored], label=split)
        right.set(xlabel="epoch", ylabel=self._metric)
        if right.lines:
            right.legend()
        return figure


def _flat(row: dict[str, Any], metric: str) -> dict[str, Any]:
    """Return a row of metrics with a name per number: val_accuracy, bytes_sent."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name == "bytes_sent":
            flat[name] = sum(value.values())
        elif name == "metric":
            continue
        elif name == "score":
            flat |= {f"{split}_{metric}": score for split, score in value.items()}
        elif isinstance(value, dict):
            for split, scores in value.items():
                inner = scores if isinstance(scores, dict) else {name: scores}
                flat |= {f"{split}_{one}": number for one, number in inner.items()}
        else:
            flat[name] = value
    return flat

"""Telling the class of vertices, or the next value of a signal at each of them.

Shapes: T snapshots, N vertices, D embedding width, C classes or channels.
"""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.engine.dynamic_scores import confusion, f1_by_class
from siafu.engine.tasks import Tally, TaskInput, named, split_of, time_column
from siafu.engine.time_split import DEFAULT, SPLITS, split_next_steps, split_steps
from siafu.errors import ConfigError, DataError
from siafu.nn import VertexHead
from siafu.ops import DrawKey, uniform_rows

_SPLIT_SITE = (1 << 18) + 3


class NodeTask:
    """Classes of vertices: those of each snapshot, or one class for all time.

    Labels that change are split by time. Labels that do not are asked for after the last snapshot,
    and the vertices are split: fractions drawn by their number.
    """

    name, metric, lower_is_better = "node", "accuracy", False

    def __init__(self, given: TaskInput) -> None:
        graph, split = given.graph, given.config.split
        if graph.y is None:
            raise DataError(
                "The vertices have no classes to learn.",
                seen=f"--task node with {graph.name}",
                fix="use another --task, or data with labels of vertices",
            )
        self.graph, self.device = graph, given.device
        self.num_classes, self.num_steps = graph.num_classes, graph.num_snapshots
        self.is_fixed = graph.y.ndim == 1
        self.splits = split_steps(self.num_steps, None if self.is_fixed else split)
        self.train_steps = self.num_steps if self.is_fixed else len(self.splits["train"])
        self._part_N = self._drawn(split, given.config.seed) if self.is_fixed else None
        counts = [len(self._rows(step, "train")[0]) for step in range(self.train_steps)]
        self.total = sum(counts)
        if not self.total:
            raise DataError(
                "No vertex of the training snapshots has a class.",
                seen=f"{self.train_steps} training snapshots of {graph.name}",
                fix="train on more of them with --split, or check the labels",
            )

    def _drawn(self, split: str | None, seed: int) -> Tensor:
        """Return which split each vertex belongs to: 0, 1 or 2."""
        try:
            shares = [float(part) for part in (split or DEFAULT).split(",")]
        except ValueError:
            shares = []
        # Written so that NaN, which no comparison holds for, is refused too.
        if not (len(shares) == 2 and min(shares) >= 0 and sum(shares) <= 1):
            raise ConfigError(
                "The vertices can't be split that way.",
                seen=f"--split {split}",
                fix="labels that do not change need fractions for train and val, as 0.4,0.1",
            )
        key = DrawKey(seed=seed, epoch=0, purpose=_SPLIT_SITE)
        ids = torch.arange(self.graph.num_nodes)
        u_N = uniform_rows(key, ids, 1, dtype=torch.float64)[:, 0]
        return (u_N >= shares[0]).long() + (u_N >= sum(shares)).long()

    def _rows(self, step: int, split: str) -> tuple[Tensor, Tensor]:
        """Return the labelled vertices of a split in a snapshot, and their labels."""
        labels = self.graph.labels(step)
        assert labels is not None
        y_N = torch.from_numpy(np.array(labels)).long()
        is_asked = y_N >= 0
        if self._part_N is not None:
            is_asked &= self._part_N == SPLITS.index(split)
            is_asked &= step == self.num_steps - 1
        elif step not in self.splits[split]:
            is_asked = torch.zeros_like(is_asked)
        rows = is_asked.nonzero().squeeze(1)
        return rows.to(self.device), y_N[rows].to(self.device)

    def make_head(self, width: int) -> nn.Module:
        """Return a head over vertices."""
        return VertexHead(width, self.num_classes)

    def loss(self, head: nn.Module, step: int, rows_ND: Tensor) -> Tensor | None:
        """Return the loss of the vertices of a snapshot over the number of all."""
        rows, label = self._rows(step, "train")
        if not len(rows):
            return None
        return functional.cross_entropy(head(rows_ND[rows]), label, reduction="sum") / self.total

    def tally(self, head: nn.Module, step: int, rows_ND: Tensor) -> Tally:
        """Return how often each class was called which."""
        found: Tally = {}
        for split in SPLITS:
            rows, label = self._rows(step, split)
            if len(rows):
                said = head(rows_ND[rows]).argmax(dim=1)
                counts = confusion(label, said, self.num_classes)
                found[split] = counts.flatten().double().tolist()
        return found

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return accuracy and macro F1."""
        count_CC = torch.tensor(sums).view(self.num_classes, self.num_classes)
        accuracy = float(count_CC.diagonal().sum() / count_CC.sum().clamp(min=1))
        occurs_C = count_CC.sum(1) > 0
        macro = float(f1_by_class(count_CC)[occurs_C].mean()) if bool(occurs_C.any()) else 0.0
        return {"accuracy": accuracy, "macro f1": macro}

    def table(self, head: nn.Module, step: int, rows_ND: Tensor) -> dict[str, pa.Array]:
        """Return the class of every vertex; labels that do not change are told once."""
        if self.is_fixed and step < self.num_steps - 1:
            return {}
        score_N, said_N = head(rows_ND).float().softmax(dim=1).max(dim=1)
        labels = self.graph.labels(step)
        assert labels is not None
        count, names = len(said_N), self.graph.class_names
        if self._part_N is None:
            splits = [split_of(self.splits, step)] * count
        else:
            splits = [SPLITS[part] for part in self._part_N.tolist()]
        return {
            "id": self.graph.ids.to_arrow(),
            "time": time_column(self.graph, step, count),
            "prediction": named(said_N.tolist(), names),
            "score": pa.array(score_N.cpu().numpy()),
            "label": named(labels.tolist(), names),
            "split": pa.array(splits, pa.string()),
        }


class SignalTask:
    """The next value of a signal at every vertex; mean squared error, told as RMSE."""

    name, metric, lower_is_better = "signal", "rmse", True

    def __init__(self, given: TaskInput) -> None:
        graph = given.graph
        if graph.signal is None or graph.num_snapshots < 2:
            raise DataError(
                "There is no signal to forecast.",
                seen=f"--task signal with {graph.name}, {graph.num_snapshots} snapshots",
                fix="use another --task, or data with `signal` [T, N]",
            )
        self.graph, self.device, self.signal = graph, given.device, graph.signal
        self.splits = split_next_steps(graph.num_snapshots, given.config.split)
        self.num_steps = graph.num_snapshots - 1
        self.train_steps = len(self.splits["train"])
        self.channels = int(self.signal.shape[-1])

    def make_head(self, width: int) -> nn.Module:
        """Return a head over vertices."""
        return VertexHead(width, self.channels)

    def _target(self, step: int, like: Tensor) -> Tensor:
        return torch.from_numpy(np.array(self.signal[step + 1])).to(like)

    def loss(self, head: nn.Module, step: int, rows_ND: Tensor) -> Tensor | None:
        """Return a snapshot's share of the mean squared error."""
        return functional.mse_loss(head(rows_ND), self._target(step, rows_ND)) / self.train_steps

    def tally(self, head: nn.Module, step: int, rows_ND: Tensor) -> Tally:
        """Return the mean squared error and mean absolute error of a snapshot, and 1."""
        error = (head(rows_ND) - self._target(step, rows_ND)).double()
        found = [float(error.square().mean()), float(error.abs().mean()), 1.0]
        return {split_of(self.splits, step): found}

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return root mean squared, mean squared and mean absolute error."""
        squared, absolute, steps = sums
        mse = squared / max(1.0, steps)
        mae = absolute / max(1.0, steps)
        return {"rmse": mse**0.5, "mse": mse, "mae": mae}

    def table(self, head: nn.Module, step: int, rows_ND: Tensor) -> dict[str, pa.Array]:
        """Return the forecast for the next snapshot, a row a vertex; channels are a list."""
        said, true = head(rows_ND).float().cpu(), self._target(step, rows_ND).cpu()
        count = len(said)
        columns = {"prediction": said.numpy(), "value": true.numpy()}
        shaped = {
            name: pa.array(values[:, 0])
            if self.channels == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), self.channels)
            for name, values in columns.items()
        }
        return {
            "id": self.graph.ids.to_arrow(),
            "time": time_column(self.graph, step + 1, count),
            **shaped,
            "split": pa.array([split_of(self.splits, step)] * count, pa.string()),
        }

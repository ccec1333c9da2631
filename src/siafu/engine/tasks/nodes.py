"""Telling the class of nodes, or the next value of a signal at each of them.

Shapes: T snapshots, N nodes, n of them this rank's, D embedding width, C classes or channels.
"""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.engine.tasks.scores import confusion, f1_by_class
from siafu.engine.tasks.task import (
    DEFAULT,
    SPLITS,
    Tally,
    TaskInput,
    named,
    shares,
    split_next_steps,
    split_of,
    split_steps,
    time_column,
)
from siafu.errors import ConfigError, DataError
from siafu.nn import NodeHead
from siafu.ops import DrawKey, uniform_rows

_SPLIT_SITE = (1 << 18) + 3


class NodeTask:
    """Classes of nodes: those of each snapshot, or one class for all time.

    Labels that change are split by time. Labels that do not are asked for after the last snapshot,
    and the nodes are split: fractions drawn by their number.
    """

    name, metric, lower_is_better = "node", "accuracy", False

    def __init__(self, given: TaskInput) -> None:
        graph, split = given.graph, given.config.split
        if graph.y is None:
            raise DataError(
                "The nodes have no classes to learn.",
                seen=f"--task node with {graph.name}",
                fix="use another --task, or data with labels of nodes",
            )
        self.graph, self.share, self._ids_n = graph, given.share, given.share.ids_n.cpu()
        self.num_classes, self.num_steps = graph.num_classes, graph.num_snapshots
        self._known: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        self.is_fixed = graph.y.ndim == 1
        self.splits = split_steps(self.num_steps, None if self.is_fixed else split)
        self.train_steps = self.num_steps if self.is_fixed else len(self.splits["train"])
        self._part_N = self._drawn(split, given.config.seed) if self.is_fixed else None
        counts = [self._asked(step, "train")[0].sum() for step in range(self.train_steps)]
        self.total = int(sum(counts))
        if not self.total:
            raise DataError(
                "No node of the training snapshots has a class.",
                seen=f"{self.train_steps} training snapshots of {graph.name}",
                fix="train on more of them with --split, or check the labels",
            )

    def _drawn(self, split: str | None, seed: int) -> Tensor:
        """Return which split each node belongs to: 0, 1 or 2."""
        try:
            shares = [float(part) for part in (split or DEFAULT).split(",")]
        except ValueError:
            shares = []
        # Written so that NaN, which no comparison holds for, is refused too.
        if not (len(shares) == 2 and min(shares) >= 0 and sum(shares) <= 1):
            raise ConfigError(
                "The nodes can't be split that way.",
                seen=f"--split {split}",
                fix="labels that do not change need fractions for train and val, as 0.4,0.1",
            )
        key = DrawKey(seed=seed, epoch=0, purpose=_SPLIT_SITE)
        ids = torch.arange(self.graph.num_nodes)
        u_N = uniform_rows(key, ids, 1, dtype=torch.float64)[:, 0]
        return (u_N >= shares[0]).long() + (u_N >= sum(shares)).long()

    def _asked(self, step: int, split: str) -> tuple[Tensor, Tensor]:
        """Return which nodes of a snapshot are of a split and labelled, and all labels."""
        labels = self.graph.labels(step)
        assert labels is not None
        y_N = torch.from_numpy(np.array(labels)).long()
        is_asked_N = y_N >= 0
        if self._part_N is not None:
            is_asked_N &= self._part_N == SPLITS.index(split)
            is_asked_N &= step == self.num_steps - 1
        elif step not in self.splits[split]:
            is_asked_N = torch.zeros_like(is_asked_N)
        return is_asked_N, y_N

    def _rows(self, step: int, split: str) -> tuple[Tensor, Tensor]:
        """Return this rank's rows of a split in a snapshot, and their labels; made once."""
        if (step, split) not in self._known:
            is_asked_N, y_N = self._asked(step, split)
            rows = is_asked_N[self._ids_n].nonzero().squeeze(1)
            device = self.share.world.device
            self._known[step, split] = rows.to(device), y_N[self._ids_n[rows]].to(device)
        return self._known[step, split]

    def make_head(self, width: int) -> nn.Module:
        """Return a head over nodes."""
        return NodeHead(width, self.num_classes)

    def loss(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor | None:
        """Return the loss of the nodes of a snapshot over the number of all."""
        rows, label = self._rows(step, "train")
        if not len(rows):
            return None
        return functional.cross_entropy(head(rows_nD[rows]), label, reduction="sum") / self.total

    def tally(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tally:
        """Return how often each class was called which."""
        found: Tally = {}
        for split in SPLITS:
            rows, label = self._rows(step, split)
            if len(rows):
                said = head(rows_nD[rows]).argmax(dim=1)
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

    def table(self, head: nn.Module, step: int, rows_nD: Tensor) -> dict[str, pa.Array]:
        """Return the class of every node; labels that do not change are told once."""
        if self.is_fixed and step < self.num_steps - 1:
            return {}
        share_nC = head(rows_nD).float().softmax(dim=1)
        score_n, said_n = share_nC.max(dim=1)
        labels = self.graph.labels(step)
        assert labels is not None
        count, names, own_n = len(said_n), self.graph.class_names, self._ids_n.numpy()
        if self._part_N is None:
            splits = [split_of(self.splits, step)] * count
        else:
            splits = [SPLITS[part] for part in self._part_N[self._ids_n].tolist()]
        return {
            "id": self.graph.ids.take(own_n).to_arrow(),
            "time": time_column(self.graph, step, count),
            "prediction": named(said_n.tolist(), names),
            "score": pa.array(score_n.cpu().numpy()),
            "label": named(labels[own_n].tolist(), names),
            **shares(share_nC, names),
            "split": pa.array(splits, pa.string()),
        }


class SignalTask:
    """The next value of a signal at every node; mean squared error, told as RMSE."""

    name, metric, lower_is_better = "signal", "rmse", True

    def __init__(self, given: TaskInput) -> None:
        graph = given.graph
        if graph.signal is None or graph.num_snapshots < 2:
            raise DataError(
                "There is no signal to forecast.",
                seen=f"--task signal with {graph.name}, {graph.num_snapshots} snapshots",
                fix="use another --task, or data with `signal` [T, N]",
            )
        self.graph, self.share, self.signal = graph, given.share, graph.signal
        self._own_n = given.share.ids_n.cpu().numpy()
        self.splits = split_next_steps(graph.num_snapshots, given.config.split)
        self.num_steps = graph.num_snapshots - 1
        self.train_steps = len(self.splits["train"])
        self.channels = int(self.signal.shape[-1])

    def make_head(self, width: int) -> nn.Module:
        """Return a head over nodes."""
        return NodeHead(width, self.channels)

    def _target(self, step: int, like: Tensor) -> Tensor:
        return torch.from_numpy(np.array(self.signal[step + 1][self._own_n])).to(like)

    def _error(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor:
        return head(rows_nD) - self._target(step, rows_nD)

    @property
    def _num_values(self) -> int:
        """Values of a snapshot, over all ranks that share it."""
        return self.graph.num_nodes * self.channels

    def loss(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor | None:
        """Return a snapshot's share of the mean squared error."""
        total = self._error(head, step, rows_nD).square().sum()
        return total / (self._num_values * self.train_steps)

    def tally(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tally:
        """Return shares of a snapshot's mean squared and mean absolute error, and 1 for it."""
        error = self._error(head, step, rows_nD).double()
        found = [float(error.square().sum()), float(error.abs().sum())]
        shares = [total / self._num_values for total in found]
        return {split_of(self.splits, step): [*shares, float(self.share.speaks)]}

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return root mean squared, mean squared and mean absolute error."""
        squared, absolute, steps = sums
        mse = squared / max(1.0, steps)
        mae = absolute / max(1.0, steps)
        return {"rmse": mse**0.5, "mse": mse, "mae": mae}

    def table(self, head: nn.Module, step: int, rows_nD: Tensor) -> dict[str, pa.Array]:
        """Return the forecast for the next snapshot, a row per node; channels are a list."""
        said, true = head(rows_nD).float().cpu(), self._target(step, rows_nD).cpu()
        count = len(said)
        columns = {"prediction": said.numpy(), "value": true.numpy()}
        shaped = {
            name: pa.array(values[:, 0])
            if self.channels == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), self.channels)
            for name, values in columns.items()
        }
        return {
            "id": self.graph.ids.take(self._own_n).to_arrow(),
            "time": time_column(self.graph, step + 1, count),
            **shaped,
            "split": pa.array([split_of(self.splits, step)] * count, pa.string()),
        }

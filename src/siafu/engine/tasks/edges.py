"""Telling the class of the events of a snapshot from the embeddings of both ends.

Shapes: n nodes of this rank, E events, D embedding width, C classes.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.config import RunConfig, read_class_weights
from siafu.engine.dynamic.event_features import EventScale
from siafu.engine.tasks.scores import confusion, f1_by_class, judge
from siafu.engine.tasks.task import (
    Tally,
    TaskInput,
    as_times,
    named,
    refuse_overlap,
    shares,
    split_of,
    split_steps,
    time_column,
)
from siafu.errors import ConfigError, DataError
from siafu.nn import DYNAMIC_CARDS, PairHead


class _Asked(NamedTuple):
    """Events whose classes are asked for."""

    source: Tensor
    target: Tensor
    label: Tensor
    attr: Tensor | None
    """[E, F], where features are read."""

    def where(self, is_kept_E: Tensor) -> "_Asked":
        """Return some of them."""
        source, target, label = (each[is_kept_E] for each in self[:3])
        attr = None if self.attr is None else self.attr[is_kept_E]
        return _Asked(source, target, label, attr)


class EdgeTask:
    """Class-weighted cross-entropy over labelled events; F1 of the rarest class of two.

    With more classes the score is accuracy. The mean over classes (macro F1) is told as well.
    """

    name, lower_is_better = "edge", False
    event_scale: EventScale | None = None
    """Where an event is judged by its features too: their scale, a part of the network."""

    def __init__(self, given: TaskInput) -> None:
        graph = given.graph
        if graph.event_label is None:
            raise DataError(
                "The events have no classes to learn.",
                seen=f"--task edge with {graph.name}",
                fix="use --task link, or data with a label column",
            )
        refuse_overlap(graph, self.name)
        self.graph, self.share = graph, given.share
        self.device = given.share.world.device
        self.num_classes = graph.num_edge_classes
        self.num_steps = graph.num_snapshots
        self.splits = split_steps(self.num_steps, given.config.split)
        self.train_steps = len(self.splits["train"])
        labels = np.asarray(graph.event_label[: graph.event_starts[self.train_steps]])
        count_C = np.bincount(labels[labels >= 0], minlength=self.num_classes)
        if given.draws.training and not count_C.sum():
            raise DataError(
                "No event of the training snapshots has a class.",
                seen=f"{self.train_steps} training snapshots of {graph.name}",
                fix="train on more of them with --split, or check the labels",
            )
        self._asked: dict[int, _Asked] = {}
        self.rarest = int(np.argmin(np.where(count_C > 0, count_C, np.iinfo(np.int64).max)))
        weight_C = class_weights(given.config.class_weights or "balanced", count_C)
        self.weight_C = torch.from_numpy(weight_C).to(self.device)
        self.total = float((weight_C * count_C).sum())
        card = DYNAMIC_CARDS.get(given.config.model)
        self.hidden = head_width(given.config, default=card.edge_head if card else "mlp")
        name = graph.edge_class_names[self.rarest] if graph.edge_class_names else self.rarest
        self.metric = f"f1 of class {name}" if self.num_classes == 2 else "accuracy"

    def make_head(self, width: int) -> nn.Module:
        """Return a head over pairs."""
        known = self.graph.num_event_features if self.event_scale is not None else 0
        return PairHead(width, self.num_classes, self.hidden, known)

    def _events(self, step: int) -> _Asked:
        """Return this rank's events of a snapshot."""
        events = self.graph.edge_events(step)
        assert events.label is not None
        columns = (events.src, events.dst, events.label)
        source, target, label = (
            torch.from_numpy(column.astype(np.int64)).to(self.device) for column in columns
        )
        attr_EF = None
        if self.event_scale is not None:
            attr_EF = torch.from_numpy(np.array(events.attr)).to(self.device)
        return _Asked(source, target, label, attr_EF).where(self.share.is_mine(source))

    def _judged(self, head: nn.Module, rows_nD: Tensor, asked: _Asked) -> Tensor:
        """Return logits_EC of events, whose features are brought to the network's scale."""
        attr = None
        if self.event_scale is not None and asked.attr is not None:
            attr = self.event_scale(asked.attr).to(rows_nD.dtype)
        return judge(head, self.share, rows_nD, asked.source, asked.target, attr)

    def _times(self, step: int, count: int) -> pa.Array:
        """Return when each of this rank's events happened; of older folders, its window's start."""
        events = self.graph.edge_events(step)
        if events.time is None:
            return time_column(self.graph, step, count)
        source = torch.from_numpy(events.src.astype(np.int64)).to(self.device)
        return as_times(self.graph, events.time[self.share.is_mine(source).cpu().numpy()])

    def _labelled(self, step: int) -> _Asked:
        """Return those of them that have a class, made once for each snapshot of this rank."""
        if step not in self._asked:
            asked = self._events(step)
            self._asked[step] = asked.where(asked.label >= 0)
        return self._asked[step]

    def loss(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor | None:
        """Return the weighted loss of the events of a snapshot over the weight of all."""
        asked = self._labelled(step)
        if self.share.is_whole and not len(asked.label):
            return None
        logits_EC = self._judged(head, rows_nD, asked)
        weight_C = self.weight_C.to(logits_EC.dtype)
        total = functional.cross_entropy(logits_EC, asked.label, weight=weight_C, reduction="sum")
        return total / self.total

    def tally(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tally:
        """Return how often each class was called which."""
        asked = self._labelled(step)
        said = self._judged(head, rows_nD, asked).argmax(dim=1)
        counts = confusion(asked.label, said, self.num_classes)
        return {split_of(self.splits, step): counts.flatten().double().tolist()}

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return F1 of the rarest class, macro F1 and accuracy."""
        count_CC = torch.tensor(sums).view(self.num_classes, self.num_classes)
        f1_C = f1_by_class(count_CC)
        occurs_C = count_CC.sum(1) > 0
        macro = float(f1_C[occurs_C].mean()) if bool(occurs_C.any()) else 0.0
        accuracy = float(count_CC.diagonal().sum() / count_CC.sum().clamp(min=1))
        if self.num_classes == 2:
            rarest = float(f1_C[self.rarest])
            return {self.metric: rarest, "macro f1": macro, "accuracy": accuracy}
        return {"accuracy": accuracy, "macro f1": macro}

    def table(self, head: nn.Module, step: int, rows_nD: Tensor) -> dict[str, pa.Array]:
        """Return the class of every event of the snapshot, labelled or not."""
        asked = self._events(step)
        source, target, label, _ = asked
        share_EC = self._judged(head, rows_nD, asked).float().softmax(dim=1)
        score_E, said_E = share_EC.max(dim=1)
        names, count = self.graph.edge_class_names, len(source)
        return {
            "src": self.graph.ids.take(source.cpu().numpy()).to_arrow(),
            "dst": self.graph.ids.take(target.cpu().numpy()).to_arrow(),
            "time": self._times(step, count),
            "prediction": named(said_E.tolist(), names),
            "score": pa.array(score_E.cpu().numpy()),
            "label": named(label.tolist(), names),
            **shares(share_EC, names),
            "split": pa.array([split_of(self.splits, step)] * count, pa.string()),
        }


def head_width(config: RunConfig, default: str) -> int:
    """Return the hidden width of a head over pairs: as wide as the model, or 0 for a linear one."""
    return 0 if (config.head or default) == "linear" else config.hidden or 0


def class_weights(text: str, count_C: np.ndarray) -> np.ndarray:
    """Return float64 [C]: `balanced` weighs classes inversely to how often they occur."""
    if text == "none":
        return np.ones(len(count_C))
    weights = read_class_weights(text)
    if weights is None:
        return count_C.sum() / (len(count_C) * np.maximum(count_C, 1.0))
    if len(weights) != len(count_C):
        raise ConfigError(
            "The weights of the classes can't be used.",
            seen=f"--class-weights {text} with {len(count_C)} classes",
            fix="use balanced, none, or a number of 0 or more for each class, comma between",
        )
    return np.array(weights)

"""What a person who looks at the data and the machine would warn of, before a training begins.

Everything is counted over all parts, so that any number of ranks is told the same.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from siafu.config import RunConfig
from siafu.graph import Array, Folder, folder_kind
from siafu.partitioning import Parts, open_parts
from siafu.record import counted, percent, shortened

SCALES = 1e3
"""Columns whose largest values differ by more are not of one scale."""
MAJORITY = 0.97
"""A class with a larger share makes accuracy say little."""
FEW = 5
"""Training nodes of a class from which nothing can be learnt."""
REPEATED = 0.01
"""Share of repeated edges that is worth a word."""
_MOST_BYTES = 256 << 20
"""Of features that are looked at; of more, every k-th node."""
_MOST_EDGES = 20_000_000
_EDGES_AT_ONCE = 4_000_000


def machine_warnings(config: RunConfig) -> list[str]:
    """Return what speaks against so many ranks on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if config.launcher != "local" or not cores or config.ranks <= cores:
        return []
    return [
        f"{counted(config.ranks, 'rank')} share {counted(cores, 'core')}: they take turns, and "
        f"nothing gets faster beyond --ranks {cores}."
    ]


def data_warnings(path: Path, config: RunConfig) -> list[str]:
    """Return what is odd about the data of a run; of dynamic graphs nothing is told."""
    if folder_kind(path) != "parts":
        return []
    parts = open_parts(path)
    told = [] if config.normalize_features else _unscaled(parts)
    if config.task in (None, "node", "classification"):
        told += _classes(parts)
    return [*told, *_repeated(parts)]


def _folders(parts: Parts) -> Iterator[Folder]:
    return (parts.part(number) for number in range(parts.num_parts))


def _classes(parts: Parts) -> list[str]:
    """Return what the training nodes of each class speak of."""
    graph = parts.facts["graph"]
    num_classes = int(graph.get("num_classes", 0))
    trained = np.zeros(num_classes, np.int64)
    labelled = np.zeros(num_classes, np.int64)
    for folder in _folders(parts):
        labels, train = folder.load_if_present("y"), folder.load_if_present("train")
        if labels is None or train is None or labels.ndim != 1:
            return []
        known = np.asarray(labels) >= 0
        labelled += np.bincount(labels[known], minlength=num_classes)
        trained += np.bincount(labels[known & np.asarray(train)], minlength=num_classes)
    names = [str(name) for name in graph.get("class_names", ())]
    return class_warnings(trained, labelled, names or [str(k) for k in range(num_classes)])


def class_warnings(trained: Array, labelled: Array, names: list[str]) -> list[str]:
    """Return warnings on the nodes of each class that are trained on, and that have a label."""
    total, largest = int(trained.sum()), int(trained.argmax()) if len(trained) else 0
    if not total:
        return []
    share = trained[largest] / total
    if share == 1:
        return [
            f"All {counted(total, 'training node')} are of one class, {names[largest]}: there is "
            "nothing to tell apart."
        ]
    told = []
    if share >= MAJORITY:
        told.append(
            f"{percent(share)} of the training nodes are of class {names[largest]}: guessing it "
            "always is as accurate, so accuracy says little. See average precision and F1, and "
            "weigh the classes (--class-weights balanced)."
        )
    few = [
        f"{name} ({count:,})"
        for name, count, known in zip(names, trained.tolist(), labelled.tolist(), strict=True)
        if known and count < FEW
    ]
    if few:
        told.append(
            f"Fewer than {FEW} training nodes of a class: {shortened(few)}. Little can be learnt "
            "of it; label more, or train on a larger share (--split 0.8,0.1)."
        )
    return told


def _unscaled(parts: Parts) -> list[str]:
    """Return a warning where columns that nobody scaled are of different scales."""
    graph = parts.facts["graph"]
    if graph.get("schema") is not None:
        return []
    largest: Array | None = None
    for folder in _folders(parts):
        x = folder.load_if_present("x")
        if x is None:
            return []
        step = 1 + 4 * int(graph["num_nodes"]) * x.shape[1] // _MOST_BYTES
        chosen = np.flatnonzero(np.asarray(folder.load("rows")) % step == 0)
        found = _largest(x, chosen)
        largest = found if largest is None else np.maximum(largest, found)
    names = [str(name) for name in graph.get("feature_names", ())]
    return [] if largest is None else scale_warnings(largest, names)


def _largest(x: Any, rows: Array) -> Array:
    """Return the largest absolute value of each column, read a piece at a time."""
    largest = np.zeros(x.shape[1])
    at_once = max(1, (8 << 20) // max(1, 4 * x.shape[1]))
    for low in range(0, len(rows), at_once):
        piece = np.abs(x[rows[low : low + at_once]])
        np.fmax(largest, piece.max(axis=0, initial=0.0), out=largest)
    return largest


def scale_warnings(largest: Array, names: list[str]) -> list[str]:
    """Return a warning where the largest values of columns are too far apart."""
    used = np.flatnonzero(np.isfinite(largest) & (largest > 0))
    if not len(used):
        return []
    least, most = used[largest[used].argmin()], used[largest[used].argmax()]
    if largest[most] <= SCALES * largest[least]:
        return []
    least_name, most_name = (names[k] if names else f"column {k}" for k in (least, most))
    return [
        f"Columns differ in scale: {most_name} goes up to {largest[most]:.3g}, {least_name} to "
        f"{largest[least]:.3g}. Large ones drown the others; scale them first (tables are scaled "
        "by --scale standard)."
    ]


def _repeated(parts: Parts) -> list[str]:
    """Return a warning where many edges that nothing tells apart are there more than once."""
    total = int(parts.facts["graph"]["num_edges"])
    if total > _MOST_EDGES or not total:
        return []
    count = 0
    for folder in _folders(parts):
        if folder.load_if_present("edge_attr") is not None:
            return []
        kinds = folder.load_if_present("edge_type")
        count += count_repeated(folder.load("indptr"), folder.load("src"), kinds)
    if count < REPEATED * total:
        return []
    return [
        f"{count:,} of {total:,} edges ({percent(count / total)}) repeat another one with the same "
        "ends: each counts as often as it is there."
    ]


def count_repeated(indptr: Array, src: Array, kinds: Array | None = None) -> int:
    """Return how many edges have the same ends, and type, as an earlier one."""
    count, low, num_rows = 0, 0, len(indptr) - 1
    while low < num_rows:
        high = int(np.searchsorted(indptr, indptr[low] + _EDGES_AT_ONCE, side="right")) - 1
        high = min(num_rows, max(low + 1, high))
        edges = slice(int(indptr[low]), int(indptr[high]))
        dst = np.repeat(np.arange(low, high), np.diff(indptr[low : high + 1]))
        columns = [np.asarray(src[edges]), dst]
        if kinds is not None:
            columns.insert(0, np.asarray(kinds[edges]))
        order = np.lexsort(columns)
        same = np.ones(max(0, len(order) - 1), bool)
        for column in columns:
            same &= np.diff(column[order]) == 0
        count += int(same.sum())
        low = high
    return count


@dataclass(slots=True)
class LossWatch:
    """Warns once of a loss that begins far too high, and once of one that explodes."""

    lr: float
    guessed: float | None = None
    """The loss of guessing, where classes are learnt."""
    lowest: float = float("inf")
    begins: bool = True
    has_grown: bool = False

    def note(self, epoch: int, loss: float) -> str | None:
        """Return what is to be said of the loss of an epoch, if anything is."""
        before, self.lowest = self.lowest, min(self.lowest, loss)
        is_first, self.begins = self.begins, False
        if is_first and self.guessed is not None and loss > 30 * self.guessed:
            return (
                f"The loss begins at {loss:.4g}, where guessing gives {self.guessed:.2f}: look "
                f"for columns that are not scaled, or lower --lr (now {self.lr:g})."
            )
        floor = 0.0 if self.guessed is None else 10 * self.guessed
        if not self.has_grown and loss > max(100 * before, floor):
            self.has_grown = True
            return (
                f"The loss has grown from {before:.4g} to {loss:.4g} by epoch {epoch}: lower "
                f"--lr (now {self.lr:g}), or add --clip-norm 1 or --warmup 10."
            )
        return None

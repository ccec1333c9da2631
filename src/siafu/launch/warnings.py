"""What a person who looks at the data and the machine would warn of, before a training begins.

Everything is counted over all parts, so that any number of ranks is told the same.
"""

import os
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from siafu.config import RunConfig
from siafu.graph import Array, Folder, Schema, folder_kind
from siafu.launch.learnt import reads_weights
from siafu.nn.cards import cards_that
from siafu.partitioning import Parts, open_parts
from siafu.record import counted, percent, shortened

SCALES = 1e3
"""Columns whose largest values differ by more are not of one scale."""
MAJORITY = 0.97
"""A class with a larger share makes accuracy say little."""
FEW = 5
"""Training nodes, or edges, of a class from which nothing can be learnt."""
REPEATED = 0.01
"""Share of repeated edges that is worth a word."""
SLOW, SLOW_SECONDS, SLOW_EPOCHS = 1.5, 0.1, 5
"""A rank is slow that works so many times as long as the others, and longer, epoch after epoch."""
_MOST_BYTES = 256 << 20
"""Of features that are looked at; of more, every k-th node."""
_MOST_EDGES = 20_000_000
_MOST_ROWS = 20_000
"""Training nodes that are looked at for a column that tells the target."""
_LEFT_OVER = 0.05
"""A column that leaves fewer of the wrong guesses than this tells the target."""
_FEWEST_WRONG = 10
_BINS = 32
_EDGES_AT_ONCE = 4_000_000


def lone_warnings(config: RunConfig) -> list[str]:
    """Return what of one rank's settings is about other ranks alone."""
    strategy = config.chosen
    if config.ranks > 1 or strategy.unit != "graph":
        return []
    asked = {
        "--staleness": strategy.staleness > 0,
        "--wire": config.wire not in (None, "32"),
        "--changes": strategy.changes,
        "--boundary": strategy.boundary < 1,
    }
    if not (named := [name for name, is_asked in asked.items() if is_asked]):
        return []
    return [
        f"One rank sends no rows: {' and '.join(named)} change"
        f"{'s' if len(named) == 1 else ''} nothing before there are --ranks 2."
    ]


def machine_warnings(config: RunConfig) -> list[str]:
    """Return what speaks against so many ranks on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", config.ranks))  # torchrun's may be elsewhere
    if config.launcher != "local" or not cores or ranks <= cores:
        return []
    return [
        f"{counted(ranks, 'rank')} share {counted(cores, 'core')}: they take turns, and "
        f"nothing gets faster beyond --ranks {cores}."
    ]


def data_warnings(path: Path, config: RunConfig) -> list[str]:
    """Return what is odd about the data of a run; of dynamic graphs nothing is told."""
    if folder_kind(path) != "parts":
        return []
    parts = open_parts(path)
    told = [] if config.normalize_features else _unscaled(parts)
    weighed = config.class_weights not in (None, "none")
    if config.task in (None, "node", "classification"):
        told += class_warnings(*node_classes(parts), "node", is_weighed=weighed)
        told += _telling(parts)
    elif config.task == "edge":
        told += class_warnings(*_edge_classes(parts), "edge", is_weighed=weighed)
    return [*told, *_unread_weights(parts, config), *_repeated(parts)]


def _unread_weights(parts: Parts, config: RunConfig) -> list[str]:
    """Return a warning where edges have weights that nothing in the run reads."""
    if reads_weights(config):
        return []
    if not any("edge_weight" in folder for folder in _folders(parts)):
        return []
    others = ", ".join(cards_that(lambda other: other.reads_weights))
    return [f"--model {config.model} does not read weights of edges ({others} do)."]


def _folders(parts: Parts) -> Iterator[Folder]:
    return (parts.part(number) for number in range(parts.num_parts))


Counts = tuple[Array, Array, list[str]]
"""Of each class: how many are trained on, how many have a label, its name."""


def node_classes(parts: Parts) -> Counts:
    """Return the counts of the nodes of each class, over all parts."""
    graph = parts.facts["graph"]
    found = []
    for folder in _folders(parts):
        labels, train = folder.load_if_present("y"), folder.load_if_present("train")
        if labels is not None and train is not None:
            found.append((np.asarray(labels), np.asarray(train)))
    return _counts(found, int(graph.get("num_classes", 0)), graph.get("class_names", ()))


def _edge_classes(parts: Parts) -> Counts:
    graph = parts.facts["graph"]
    found = []
    for folder in _folders(parts):
        labels, split = folder.load_if_present("edge_y"), folder.load_if_present("edge_split")
        if labels is not None and split is not None:
            found.append((np.asarray(labels), np.asarray(split) == 1))
    return _counts(found, int(graph.get("num_edge_classes", 0)), graph.get("edge_class_names", ()))


def _counts(found: list[tuple[Array, Array]], num_classes: int, names: Sequence[Any]) -> Counts:
    """Return counts of what has one class each; nothing where several, or numbers, are told."""
    trained, labelled = np.zeros((2, num_classes), np.int64)
    for labels, train in found:
        if labels.ndim == 1:
            known = labels >= 0
            labelled += np.bincount(labels[known], minlength=num_classes)
            trained += np.bincount(labels[known & train], minlength=num_classes)
    return trained, labelled, [str(name) for name in names or range(num_classes)]


def class_warnings(
    trained: Array, labelled: Array, names: list[str], noun: str, *, is_weighed: bool = False
) -> list[str]:
    """Return warnings on the nodes or edges of each class that are trained on, or have a label."""
    total, largest = int(trained.sum()), int(trained.argmax()) if len(trained) else 0
    if not total:
        return []
    share = trained[largest] / total
    if share == 1:
        return [
            f"All {counted(total, f'training {noun}')} are of one class, {names[largest]}: there "
            "is nothing to tell apart."
        ]
    told = []
    if share >= MAJORITY:
        weigh = "" if is_weighed else ", and weigh the classes (--class-weights balanced)"
        told.append(
            f"{percent(share)} of the training {noun}s are of class {names[largest]}: guessing it "
            "always is as accurate, so accuracy says little. See average precision and F1"
            f"{weigh}."
        )
    few = [
        f"{name} ({count:,})"
        for name, count, known in zip(names, trained.tolist(), labelled.tolist(), strict=True)
        if known and count < FEW
    ]
    if few:
        told.append(
            f"Fewer than {FEW} training {noun}s of a class: {shortened(few)}. Little can be learnt "
            "of it; label more, or train on a larger share (--split 0.8,0.1)."
        )
    return told


def _telling(parts: Parts) -> list[str]:
    """Return a warning on columns of a table each of which alone tells the target."""
    graph = parts.facts["graph"]
    if graph.get("schema") is None or not int(graph.get("num_classes", 0)):
        return []
    step = 1 + int(graph["num_nodes"]) // _MOST_ROWS
    rows, labels = [], []
    for folder in _folders(parts):
        x, y = folder.load_if_present("x"), folder.load_if_present("y")
        train = folder.load_if_present("train")
        if x is None or y is None or train is None or y.ndim > 1:
            return []
        chosen = np.asarray(train) & (np.asarray(y) >= 0)
        chosen &= np.asarray(folder.load("rows")) % step == 0
        rows.append(np.asarray(x[np.flatnonzero(chosen)]))
        labels.append(np.asarray(y)[chosen])
    x_NW, y_N, place = np.concatenate(rows), np.concatenate(labels), 0
    told = {}
    for column in Schema.from_dict(graph["schema"]).nodes:
        width = len(column.prepared_names())
        if (right := telling_share(x_NW[:, place : place + width], y_N)) is not None:
            told[column.name] = right
        place += width
    if not told:
        return []
    names = [f"{name} ({percent(right)})" for name, right in told.items()]
    leave = ",".join(f"-{name}" for name in told)
    return [
        f"A column that alone tells the target in nearly all training nodes: {shortened(names)}. "
        f"Is it known before the target is? If not, leave it out (--features {leave})."
    ]


def telling_share(x_NW: Array, y_N: Array) -> float | None:
    """Return how often the columns of one source tell the class; None where they do not."""
    count = np.bincount(y_N)
    wrong = len(y_N) - int(count.max(initial=0))
    if wrong < _FEWEST_WRONG or not x_NW.shape[1]:
        return None
    bins = max(2, min(_BINS, len(y_N) // 50))
    code_N = np.zeros(len(y_N), np.int64)
    for x_N in x_NW.T:
        edges = np.unique(np.quantile(x_N, np.linspace(0, 1, bins + 1)[1:-1], method="lower"))
        found_N = 2 * np.searchsorted(edges, x_N) + np.isin(x_N, edges)
        _, code_N = np.unique(code_N * (2 * bins + 2) + found_N, return_inverse=True)
    if code_N.max() > len(y_N) // 20:
        return None
    table = np.bincount(code_N * len(count) + y_N, minlength=(code_N.max() + 1) * len(count))
    right = int(table.reshape(-1, len(count)).max(axis=1).sum())
    return right / len(y_N) if len(y_N) - right <= _LEFT_OVER * wrong else None


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
        names = ("edge_type", "edge_weight", "edge_attr")
        beside = [column for name in names if (column := folder.load_if_present(name)) is not None]
        count += count_repeated(folder.load("indptr"), folder.load("src"), *beside)
    if count < REPEATED * total:
        return []
    return [
        f"{count:,} of {total:,} edges ({percent(count / total)}) repeat another one in all that "
        "they have: each counts as often as it is there."
    ]


def count_repeated(indptr: Array, src: Array, *beside: Array) -> int:
    """Return how many edges have the same ends, and all else, as an earlier one."""
    count, low, num_rows = 0, 0, len(indptr) - 1
    while low < num_rows:
        high = int(np.searchsorted(indptr, indptr[low] + _EDGES_AT_ONCE, side="right")) - 1
        high = min(num_rows, max(low + 1, high))
        edges = slice(int(indptr[low]), int(indptr[high]))
        dst = np.repeat(np.arange(low, high), np.diff(indptr[low : high + 1]))
        columns = [np.asarray(src[edges]), dst]
        for extra in beside:
            rows = np.asarray(extra[edges])
            columns[:0] = [rows] if rows.ndim == 1 else list(rows.T)
        order = np.lexsort(columns)
        same = np.ones(max(0, len(order) - 1), bool)
        for column in columns:
            ordered = column[order]
            same &= ordered[1:] == ordered[:-1]
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


@dataclass(slots=True)
class PaceWatch:
    """Warns once of each rank that the others wait for, epoch after epoch."""

    named: Callable[[int], str]
    recent: deque[list[float]] = field(default_factory=lambda: deque(maxlen=SLOW_EPOCHS))
    told: set[int] = field(default_factory=set)
    begins: bool = True

    def note(self, seconds: list[float]) -> str | None:
        """Return what is to be said of the seconds that ranks worked in an epoch, if anything.

        The first epoch is passed over: kernels are compiled in it.
        """
        if len(seconds) < 2 or self.begins:
            self.begins = self.begins and not seconds
            return None
        self.recent.append(seconds)
        slowest = max(range(len(seconds)), key=lambda rank: seconds[rank])
        if len(self.recent) < SLOW_EPOCHS or slowest in self.told:
            return None
        own = [row[slowest] for row in self.recent]
        others = [statistics.median(row[:slowest] + row[slowest + 1 :]) for row in self.recent]
        pairs = zip(own, others, strict=True)
        if not all(mine > max(SLOW * usual, usual + SLOW_SECONDS) for mine, usual in pairs):
            return None
        self.told.add(slowest)
        mine, usual = statistics.median(own), statistics.median(others)
        return (
            f"{self.named(slowest).capitalize()} works {mine:.2g} s per epoch, the others "
            f"{usual:.2g} s, and they wait for it: see what else runs on its machine, or how even "
            "the cut is (siafu inspect on the parts)."
        )

"""What is learnt from the snapshots of a dynamic graph, and how they are split.

Shapes: N nodes, n of them this rank's, D embedding width.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from siafu.config import RunConfig
from siafu.errors import ConfigError, DataError
from siafu.graph import Array, DynamicGraph
from siafu.nn import Draws
from siafu.record import counted
from siafu.shard import NodeShare

Tally = dict[str, list[float]]
"""By split, numbers that are added up over snapshots and ranks before they become scores."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskInput:
    """What every task is made from."""

    graph: DynamicGraph
    config: RunConfig
    draws: Draws
    share: NodeShare
    """The nodes whose embeddings this rank has."""


class DynamicTask(Protocol):
    """One kind of question. Losses are shares of a mean over all ranks: they add up to it."""

    name: str
    metric: str
    """What `score` tells first, and the best epoch is chosen by."""
    lower_is_better: bool
    """True where `metric` is an error."""
    num_steps: int
    """Snapshots that are embedded."""
    train_steps: int
    """The first so many of them are trained on."""

    def make_head(self, width: int) -> nn.Module:
        """Return what turns embeddings into answers."""
        ...

    def loss(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor | None:
        """Return this rank's share of a snapshot's training loss; None where it has no targets."""
        ...

    def tally(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tally:
        """Return a snapshot's contribution to the scores."""
        ...

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return the scores of what was added up; `metric` is first."""
        ...

    def table(self, head: nn.Module, step: int, rows_nD: Tensor) -> dict[str, pa.Array]:
        """Return the columns of predictions of a snapshot, by the user's own ids."""
        ...


def refuse_overlap(graph: DynamicGraph, task: str) -> None:
    """Raise where an event that is asked about may have been learnt in an earlier split."""
    if graph.overlapping:
        raise ConfigError(
            "The windows overlap, so events of the test may be trained on.",
            seen=f"--task {task} with {graph.name}, whose stride is shorter than its window",
            fix="make the windows with a stride as long as they are, or leave the stride out",
        )


def refuse_one_snapshot(graph: DynamicGraph, task: str) -> None:
    """Raise where there is no next snapshot to ask about."""
    if graph.num_snapshots < 2:
        raise DataError(
            "The next snapshot can't be predicted when there is only one.",
            seen=f"--task {task} with {counted(graph.num_snapshots, 'snapshot')} of {graph.name}",
            fix="use a shorter --window, or events of several times",
        )


def split_of(splits: dict[str, range], step: int) -> str:
    """Return the split that a snapshot belongs to."""
    return next(name for name, steps in splits.items() if step in steps)


def time_column(graph: DynamicGraph, step: int, count: int) -> pa.Array:
    """Return when a snapshot starts, as a date where the data had dates."""
    return as_times(graph, np.full(count, graph.times[step]))


def as_times(graph: DynamicGraph, times: Array) -> pa.Array:
    """Return times, in the data's own numbers, as a column: dates where the data had dates."""
    if not graph.dates:
        return pa.array(times)
    return pa.array(np.rint(times * 1e6).astype(np.int64), pa.timestamp("us"))


def shares(share_EC: Tensor, names: tuple[str | int, ...]) -> dict[str, pa.Array]:
    """Return a column of probabilities for each class."""
    columns = share_EC.float().cpu().numpy().T
    return {
        f"p({names[number] if names else number})": pa.array(np.ascontiguousarray(column))
        for number, column in enumerate(columns)
    }


def named(classes: list[int], names: tuple[str | int, ...]) -> pa.Array:
    """Return classes as the user names them; -1, which is no class, becomes null."""
    values = [None if c < 0 else (names[c] if names else c) for c in classes]
    return pa.array(values, None if any(v is not None for v in values) else pa.int64())


DEFAULT = "0.7,0.1"
SPLITS = ("train", "val", "test")


def split_steps(num_steps: int, text: str | None) -> dict[str, range]:
    """Return the snapshots of train, val and test: fractions (0.7,0.1) or numbers (95,20) of them.

    What is left over is the test.
    """
    shown = text or DEFAULT
    try:
        first, second = (float(part) for part in shown.split(","))
    except ValueError:
        raise _unusable(shown, num_steps) from None
    if not (math.isfinite(first) and math.isfinite(second)):
        raise _unusable(shown, num_steps)
    if 0 < first < 1 and 0 <= second < 1:
        first, second = round(first * num_steps), round(second * num_steps)
    train, val = int(first), int(second)
    if train < 1 or val < 0 or train + val > num_steps or (train, val) != (first, second):
        raise _unusable(shown, num_steps)
    return {
        "train": range(train),
        "val": range(train, train + val),
        "test": range(train + val, num_steps),
    }


def split_next_steps(num_steps: int, text: str | None) -> dict[str, range]:
    """Return the splits of snapshots that are asked about the next one: all a step earlier."""
    splits = split_steps(num_steps, text)
    if len(splits["train"]) < 2:
        raise ConfigError(
            "Training needs two snapshots or more.",
            seen=f"--split {text or DEFAULT} leaves {len(splits['train'])} of {num_steps}",
            fix="give training more of them, or use a shorter --window",
        )
    return {name: range(max(0, steps.start - 1), steps.stop - 1) for name, steps in splits.items()}


def _unusable(text: str, num_steps: int) -> ConfigError:
    return ConfigError(
        "The snapshots can't be split that way.",
        seen=f"--split {text} with {num_steps} snapshots",
        fix="use fractions for train and val as 0.7,0.1, or numbers of snapshots as 95,20",
    )

"""The objective of a run on a static graph, from its settings and the targets of all ranks.

Shapes: n training rows of this rank, C classes, T numbers.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from siafu.config import RunConfig, flag_of, read_threshold
from siafu.engine.tasks.edges import class_weights
from siafu.errors import ConfigError, DataError
from siafu.nn.losses import CLASS_LOSSES, NUMBER_LOSSES
from siafu.nn.own_loss import try_loss
from siafu.shard import Objective, Shard

_FEW = 8
"""Rows that a loss of the user's own is tried with."""
_KINDS = {"regression": "numbers", "classification": "classes"}


def with_objective(config: RunConfig, shard: Shard) -> Shard:
    """Return the shard with what is learnt of its targets; all ranks call this together."""
    assert shard.y is not None, "require(shard, 'y') comes first"
    _check_kind(config, shard.num_targets > 0)
    made = find_objective(config, shard, shard.y[shard.train], shard.class_names)
    return replace(shard, objective=made)


def find_objective(
    config: RunConfig, shard: Shard, y: Tensor, names: tuple[str | int, ...]
) -> Objective:
    """Return what is learnt from this rank's training rows and those of all others."""
    if y.is_floating_point():
        return _of_numbers(config, shard, y)
    loss = config.loss or "cross-entropy"
    is_own = ":" in loss
    if not is_own and loss not in CLASS_LOSSES:
        raise _wrong_loss(loss, "classes", CLASS_LOSSES)
    counts_C = _count(shard, y)
    weights = _weights(config, counts_C, several=y.dim() == 2, num_rows=_rows(shard, y))
    per_row = float(len(counts_C)) if y.dim() == 2 and not is_own else 1.0
    if is_own:
        _check_own(config, y, len(counts_C))
    counts = tuple(int(count) for count in counts_C)
    return Objective(
        loss=loss,
        weights=weights,
        per_row=per_row,
        counts=counts,
        positive=_positive(counts, names),
        threshold=_threshold(config, "several" if y.dim() == 2 else len(counts)),
    )


def _positive(counts: tuple[int, ...], names: tuple[str | int, ...]) -> int:
    """Return the class of two that is looked for: the second, of two words the rarer."""
    words = bool(names) and all(isinstance(name, str) for name in names)
    return 0 if len(counts) == 2 and words and counts[0] < counts[1] else 1


def _threshold(config: RunConfig, classes: int | str) -> float | None:
    """Return the threshold that is asked for; None where none is, or validation will tell."""
    text = config.threshold
    fits = classes == 2 or (classes == "several" and text != "f1")
    if text is not None and not fits:
        raise ConfigError(
            "A threshold decides between two classes.",
            seen=f"--threshold {text} with {classes} classes",
            fix="leave --threshold out",
        )
    return read_threshold(text)


def _check_kind(config: RunConfig, numbers: bool) -> None:
    found = "numbers" if numbers else "classes"
    if _KINDS.get(config.task or "", found) != found:
        raise ConfigError(
            f"The targets of the data are {found}.",
            seen=f"--task {config.task}",
            fix="name another label, or read the data again with that --task",
        )


def _wrong_loss(loss: str, found: str, fits: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        f"The loss is not one of {found}.",
        seen=f"--loss {loss}, and the targets are {found}",
        fix=f"use --loss {' or '.join(fits)}",
    )


def _rows(shard: Shard, y: Tensor) -> float:
    return sum(row[0] for row in shard.world.gather_numbers([float(len(y))], "metric"))


def _summed(shard: Shard, numbers: Tensor) -> Tensor:
    """Return the sum over all ranks of a row of numbers, on the host."""
    total = shard.world.sum_in_place(numbers.double().to(shard.world.device), "metric")
    return total.cpu()


def _count(shard: Shard, y: Tensor) -> np.ndarray:
    """Return how many training rows of all ranks have each class."""
    if y.dim() == 2:
        own = y.sum(dim=0, dtype=torch.int64)
    else:
        own = torch.bincount(y, minlength=shard.num_classes)
    return _summed(shard, own).numpy()


def _weights(
    config: RunConfig, counts_C: np.ndarray, *, several: bool, num_rows: float
) -> tuple[float, ...]:
    """Return the weights of the classes such that they come to 1 on average over training rows.

    Where several may hold, each is a weight of those that do: balanced, both sides count alike.
    """
    text = config.class_weights or "none"
    if text == "none":
        return ()
    if several and text == "balanced":
        return tuple(((num_rows - counts_C) / np.maximum(counts_C, 1)).clip(min=1e-6).tolist())
    weights_C = class_weights(text, counts_C)
    if several:
        return tuple(weights_C.tolist())
    total = float((weights_C * counts_C).sum())
    if not total:
        raise ConfigError(
            "No training node has a class that counts.",
            seen=f"--class-weights {text}",
            fix="give a weight above 0 to a class that occurs",
        )
    return tuple((weights_C * counts_C.sum() / total).tolist())


def _of_numbers(config: RunConfig, shard: Shard, y: Tensor) -> Objective:
    loss = config.loss or "mse"
    is_own = ":" in loss
    if not is_own and loss not in NUMBER_LOSSES:
        raise _wrong_loss(loss, "numbers", NUMBER_LOSSES)
    for name in ("class_weights", "threshold"):
        if (text := getattr(config, name)) not in (None, "none"):
            flag = flag_of(name)
            raise ConfigError(
                "Numbers have no classes to weigh or to decide between.",
                seen=f"{flag} {text}, and the targets are numbers",
                fix=f"leave {flag} out",
            )
    known, values = ~y.isnan(), y.double().nan_to_num()
    count_T, sum_T = _summed(shard, torch.stack([known.sum(0), values.sum(0)]))
    if not bool((count_T > 0).all()):
        raise DataError(
            "A target is known of no training node.",
            seen=f"target {int(torch.argmin(count_T))} of {shard.name}",
            fix="leave it out, or draw masks anew with --split",
        )
    mean_T = sum_T / count_T
    # Squares of differences from the mean, in a second pass: large means would swallow them.
    off = ((values - mean_T.to(values.device)) * known) ** 2
    scale_T = (_summed(shard, off.sum(0)) / count_T).sqrt()
    scale_T[scale_T <= 1e-12 * mean_T.abs().clamp(min=1e-30)] = 1.0
    rows = _rows(shard, y)
    made = Objective(
        loss=loss,
        mean=tuple(mean_T.tolist()),
        scale=tuple(scale_T.tolist()),
        per_row=1.0 if is_own else math.fsum(count_T.tolist()) / max(1.0, rows),
    )
    if is_own:
        _check_own(config, made.prepared(y), y.size(1))
    return made


def _check_own(config: RunConfig, y: Tensor, width: int) -> None:
    """Raise where a loss of the user's own can't be learnt from, or weighs classes itself."""
    assert config.loss is not None
    if config.class_weights not in (None, "none"):
        raise ConfigError(
            "A loss of your own weighs classes itself.",
            seen=f"--class-weights {config.class_weights} with --loss {config.loss}",
            fix="leave --class-weights out",
        )
    if len(y):
        try_loss(config.loss, y[:_FEW], width)

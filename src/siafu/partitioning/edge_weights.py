"""Weights of edges from tables: divided by their mean, so that their unit makes no difference."""

from collections.abc import Iterable

import numpy as np

from siafu.graph import Array, forget

_LEAST_MEAN = 1e-30
"""A smaller one is no unit; float32 would not hold what is divided by it."""


def learn_mean(pieces: Iterable[Array]) -> tuple[float, str]:
    """Return the mean of weights, and why they stay as they are where they can't be divided."""
    total, count, least = 0.0, 0, 0.0
    for piece in pieces:
        total += float(piece.sum(dtype=np.float64))
        count += len(piece)
        least = min(least, float(piece.min(initial=0.0)))
    if least < 0:
        return 1.0, "some are below 0"
    if not total > _LEAST_MEAN * count:
        return 1.0, "all are 0"
    return (total / count, "") if np.isfinite(total) else (1.0, "some are no numbers")


class ScaledWeights:
    """Stands for an array of weights divided by a mean, made when they are read, slice by slice."""

    ndim, dtype = 1, np.dtype(np.float32)

    def __init__(self, raw: Array, mean: float) -> None:
        self._raw, self._mean = raw, mean
        self.shape = raw.shape

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, rows: slice) -> Array:
        scaled = (np.asarray(self._raw[rows], np.float64) / self._mean).astype(np.float32)
        forget(self._raw)
        return scaled


def told_weights(weight_mean: float, kept: str) -> list[str]:
    """Return a line on what became of weights; none where nothing did."""
    if kept:
        return [f"Warning: the weights of edges are not scaled: {kept}."]
    if weight_mean == 1:
        return []
    return [f"Weights of edges are divided by their mean in training rows, {weight_mean:.6g}."]

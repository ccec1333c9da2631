"""Node features, dense or sparse.

Shapes: N vertices, F features.
"""

from dataclasses import dataclass

import numpy as np

from siafu.graph.array_stream import Array


@dataclass(frozen=True, slots=True)
class SparseFeatures:
    """Node features as CSR: the columns and values of each vertex that are not zero."""

    indptr: Array
    index: Array
    value: Array
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """Vertices and width, as for a dense matrix."""
        return len(self.indptr) - 1, self.width

    def dense(self) -> Array:
        """Return float32 [N, F] with the zeros."""
        x_NF = np.zeros(self.shape, np.float32)
        x_NF[np.repeat(np.arange(len(x_NF)), np.diff(self.indptr)), self.index] = self.value
        return x_NF

    def take(self, rows: Array) -> "SparseFeatures":
        """Return the features of these rows, in this order."""
        counts = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        pick = np.repeat(self.indptr[:-1][rows] - indptr[:-1], counts) + np.arange(indptr[-1])
        return SparseFeatures(indptr, self.index[pick], self.value[pick], self.width)


Features = Array | SparseFeatures


def rows_to_sum_one(x: Features) -> Features:
    """Return the features with each row scaled to sum to 1; those that sum to 0 or less stay."""
    if isinstance(x, SparseFeatures):
        counts = np.diff(x.indptr)
        sums = np.bincount(np.repeat(np.arange(len(counts)), counts), x.value, len(counts))
        factor = np.repeat(1 / np.where(sums > 0, sums, 1), counts)
        return SparseFeatures(x.indptr, x.index, (x.value * factor).astype(np.float32), x.width)
    sums = x.sum(axis=1, keepdims=True)
    return (x / np.where(sums > 0, sums, 1)).astype(np.float32)

"""What stands by each node: the user's own id, which comes back out, features, and its class.

Shapes: N nodes, F features, C classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from siafu.graph.array_stream import Array
from siafu.graph.folder import Folder, FolderWriter

_ROWS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class IntegerIds:
    """Ids that are integers: one int64 a node."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Array) -> "IntegerIds":
        """Return the ids of these rows, in this order."""
        return IntegerIds(np.asarray(self.values[rows]))

    def to_arrow(self) -> pa.Array:
        """Return the ids as a column for tables."""
        return pa.array(np.asarray(self.values))

    def save(self, writer: FolderWriter) -> None:
        """Write the ids' arrays into a folder."""
        writer.save("ids", self.values)


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids that are text: UTF-8 bytes end to end, and where each starts."""

    offsets: Array
    utf8: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_arrow(cls, column: pa.Array) -> "TextIds":
        """Return the ids held by a string column without nulls."""
        column = column.cast(pa.large_string())
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        utf8 = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        return cls(starts - starts[0], utf8[starts[0] : starts[-1]])

    @classmethod
    def from_strings(cls, texts: list[str]) -> "TextIds":
        """Return the ids held by a list."""
        return cls.from_arrow(pa.array(texts, pa.large_string()))

    def take(self, rows: Array) -> "TextIds":
        """Return the ids of these rows, in this order."""
        return TextIds.from_arrow(self.to_arrow().take(pa.array(np.asarray(rows))))

    def to_arrow(self) -> pa.Array:
        """Return the ids as a column for tables."""
        buffers = [
            None,
            pa.py_buffer(np.asarray(self.offsets)),
            pa.py_buffer(np.asarray(self.utf8)),
        ]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def save(self, writer: FolderWriter) -> None:
        """Write the ids' arrays into a folder."""
        writer.save("ids_offsets", self.offsets)
        writer.save("ids_utf8", self.utf8)


Ids = IntegerIds | TextIds


def load_ids(folder: Folder | FolderWriter) -> Ids:
    """Return the ids kept in a store or a part, or complete in one that is being written."""
    if "ids" in folder:
        return IntegerIds(folder.load("ids"))
    return TextIds(folder.load("ids_offsets"), folder.load("ids_utf8"))


@dataclass(frozen=True, slots=True)
class SparseFeatures:
    """Node features as CSR: the columns and values of each node that are not zero."""

    indptr: Array
    index: Array
    value: Array
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes and width, as for a dense matrix."""
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


def count_classes(labels: Iterable[Array], num_classes: int) -> list[int]:
    """Return how often each class occurs in int [N], or as 1 in uint8 [N, C]; others are none."""
    counts_C = np.zeros(num_classes, np.int64)
    for array in labels:
        for start in range(0, len(array), _ROWS_AT_ONCE):
            some = np.asarray(array[start : start + _ROWS_AT_ONCE])
            if some.ndim == 2:
                counts_C += (some == 1).sum(axis=0, dtype=np.int64)
            else:
                counts_C += np.bincount(some[some >= 0], minlength=num_classes)
    return [int(count) for count in counts_C]


def class_rows(counts: Sequence[int], names: Sequence[str | int]) -> list[str]:
    """Return `0 fraud (120)`, `1 ok (880)`; without names `0 (120)`."""
    return [
        f"{number} {names[number]} ({count:,})"
        if names and names[number] != number
        else f"{number} ({count:,})"
        for number, count in enumerate(counts)
    ]

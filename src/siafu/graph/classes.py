"""Classes as users see them: by name, in the order of their numbers, with how often they occur."""

from collections.abc import Iterable, Sequence

import numpy as np

from siafu.graph.array_stream import Array

_ROWS_AT_ONCE = 1 << 22


def count_classes(labels: Iterable[Array], num_classes: int) -> list[int]:
    """Return how often each class occurs in int [N], -1 for none, or in 0 and 1 of [N, C]."""
    counts_C = np.zeros(num_classes, np.int64)
    for array in labels:
        for start in range(0, len(array), _ROWS_AT_ONCE):
            some = np.asarray(array[start : start + _ROWS_AT_ONCE])
            if some.ndim == 2:
                counts_C += some.sum(axis=0, dtype=np.int64)
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

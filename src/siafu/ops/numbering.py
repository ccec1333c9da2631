"""Small numbers for large keys, in order of first appearance: the compact ids of a sub-graph.

Shapes: S keys, U different ones.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.numbering_table import empty_table, insert, reinsert

INT32_MAX = 2**31 - 1
LEAST_KEYS = 1 << 10
GROWTH = 4
"""How many times larger a full table is made: what is inserted again adds up to a third."""


class Numbering:
    """Keys (any int64 from 0) and their numbers 0, 1, 2 ..., given as keys first appear.

    A hash table with open addressing, at most half full. `add` runs without the GIL, so that
    several minibatches may be numbered by as many threads, one `Numbering` each.
    """

    def __init__(self, capacity_hint: int = 0) -> None:
        """Make room for `capacity_hint` keys; more may come."""
        self._count = 0
        self._keys = np.empty(max(LEAST_KEYS, 1 << (capacity_hint - 1).bit_length()), np.int64)
        self._table = empty_table(2 * len(self._keys))

    def __len__(self) -> int:
        """Return how many different keys were added."""
        return self._count

    @property
    def keys(self) -> Tensor:
        """All keys, int64 [U]: keys[number] is the key of that number."""
        return torch.from_numpy(self._keys[: self._count].copy())

    def add(self, keys_S: Tensor) -> tuple[Tensor, Tensor]:
        """Return int32 numbers_S, and the keys that are new, in the order of their numbers."""
        _check(keys_S)
        keys, numbers = keys_S.contiguous().numpy(), np.empty(len(keys_S), np.int32)
        before, done = self._count, 0
        while True:
            done, self._count = insert(keys, done, numbers, self._table, self._keys, self._count)
            if done == len(keys):
                break
            self._grow()
        new = self._keys[before : self._count].copy()
        return torch.from_numpy(numbers), torch.from_numpy(new)

    def _grow(self) -> None:
        if GROWTH * len(self._keys) > INT32_MAX:
            raise PlanError(
                "A sub-graph has too many vertices.",
                seen=f"{self._count} different keys",
                fix="use smaller minibatches",
            )
        keys = np.empty(GROWTH * len(self._keys), np.int64)
        keys[: self._count] = self._keys
        self._keys, self._table = keys, empty_table(2 * len(keys))
        reinsert(keys, self._count, self._table)


def union(key_arrays: Iterable[Tensor]) -> Tensor:
    """Return every key once, int64 [U], in order of first appearance."""
    numbering = Numbering()
    for keys_S in key_arrays:
        numbering.add(keys_S)
    return numbering.keys


def _check(keys_S: Tensor) -> None:
    if keys_S.dtype not in (torch.int32, torch.int64) or keys_S.dim() != 1:
        raise PlanError(
            "Keys must be a row of int32 or int64.",
            seen=f"{keys_S.dtype}, shape {tuple(keys_S.shape)}",
            fix="pass ids from 0",
        )

"""Small numbers for large keys, in order of first appearance: the compact ids of a sub-graph.

A slot of the hash table holds a number alone; its key stands in the list of keys, which is read to
compare. So the table is small enough for a cache, and slots are asked for some keys ahead. Without
Numba the same functions run as Python.

Shapes: S keys, U different ones, T slots (a power of two).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.numba_jit import callee, prefetch, strict_kernel

Array = NDArray[Any]

EMPTY = -1
AHEAD = 24
"""Keys between the one whose slot is asked for and the one inserted."""

ONE, HALF = np.uint64(1), np.uint64(32)
SPREAD = np.uint64(0x9E3779B97F4A7C15)

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
        self._table = _empty_table(2 * len(self._keys))

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
            done, self._count = _insert(keys, done, numbers, self._table, self._keys, self._count)
            if done == len(keys):
                break
            self._grow()
        new = self._keys[before : self._count].copy()
        return torch.from_numpy(numbers), torch.from_numpy(new)

    def _grow(self) -> None:
        if GROWTH * len(self._keys) > INT32_MAX:
            raise PlanError(
                "A sub-graph has too many nodes.",
                seen=f"{self._count} different keys",
                fix="use smaller minibatches",
            )
        keys = np.empty(GROWTH * len(self._keys), np.int64)
        keys[: self._count] = self._keys
        self._keys, self._table = keys, _empty_table(2 * len(keys))
        _reinsert(keys, self._count, self._table)


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


def _empty_table(slots: int) -> Array:
    """Return T free slots; two-dimensional, as prefetching wants it."""
    return np.full((slots, 1), EMPTY, np.int32)


@callee
def _home(key: Any, shift: Any) -> Any:
    """Return the slot where the search for `key` begins: its product's highest bits."""
    bits = np.uint64(key)
    return ((bits ^ (bits >> HALF)) * SPREAD) >> shift


@callee
def _shift(table: Array) -> Any:
    slots, shift = len(table), 64
    while slots > 1:
        slots >>= 1
        shift -= 1
    return np.uint64(shift)


@strict_kernel
def _insert(
    keys: Array, done: int, numbers: Array, table: Array, ordered: Array, count: int
) -> tuple[int, int]:
    """Number keys[done:]; return how far that came before `ordered` was full, and U."""
    shift, mask, last = _shift(table), np.uint64(len(table) - 1), len(keys) - 1
    for s in range(done, len(keys)):
        prefetch(table, _home(keys[min(s + AHEAD, last)], shift), 0)
        key = np.int64(keys[s])
        slot = _home(key, shift)
        number = table[slot, 0]
        while number != EMPTY and ordered[np.uint64(number)] != key:
            slot = (slot + ONE) & mask
            number = table[slot, 0]
        if number == EMPTY:
            if count == len(ordered):
                return s, count
            number = np.int32(count)
            table[slot, 0], ordered[count] = number, key
            count += 1
        numbers[s] = number
    return len(keys), count


@strict_kernel
def _reinsert(ordered: Array, count: int, table: Array) -> None:
    """Fill an empty table with the numbers of keys that are all different."""
    shift, mask = _shift(table), np.uint64(len(table) - 1)
    for number in range(count):
        prefetch(table, _home(ordered[min(number + AHEAD, count - 1)], shift), 0)
        slot = _home(ordered[number], shift)
        while table[slot, 0] != EMPTY:
            slot = (slot + ONE) & mask
        table[slot, 0] = number

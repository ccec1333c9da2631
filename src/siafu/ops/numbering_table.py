"""The hash table of `Numbering`, compiled by Numba where there is one.

A slot holds a number alone; its key stands in the list of keys, which is read to compare. So the
table is small enough for a cache, and slots are asked for some keys ahead. Without Numba the same
functions run as Python.

Shapes: S keys, U different ones, T slots (a power of two).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.ops.numba_jit import callee, strict_kernel

try:
    from siafu.ops.numba_jit import prefetch
except ImportError:

    def prefetch(array: Any, row: int, column: int) -> None:
        """Without a compiler there is nothing to ask for."""


Array = NDArray[Any]

EMPTY = -1
AHEAD = 24
"""Keys between the one whose slot is asked for and the one inserted."""

ONE, HALF = np.uint64(1), np.uint64(32)
SPREAD = np.uint64(0x9E3779B97F4A7C15)


def empty_table(slots: int) -> Array:
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
def insert(
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
def reinsert(ordered: Array, count: int, table: Array) -> None:
    """Fill an empty table with the numbers of keys that are all different."""
    shift, mask = _shift(table), np.uint64(len(table) - 1)
    for number in range(count):
        prefetch(table, _home(ordered[min(number + AHEAD, count - 1)], shift), 0)
        slot = _home(ordered[number], shift)
        while table[slot, 0] != EMPTY:
            slot = (slot + ONE) & mask
        table[slot, 0] = number

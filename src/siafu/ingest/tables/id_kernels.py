"""Hash tables from a node id to its row, for ids that are integers or text.

A table is an array of slots, a power of two long and at most two thirds full; a slot holds a row
or -1, and a taken slot sends a key to the next one.
"""

from typing import Any

import numpy as np

from siafu.graph import Array, index_dtype
from siafu.ops.numba_jit import prefetch, strict_kernel

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(33)
_AHEAD = 8
"""Texts between one whose bytes are asked for and the one compared, and as many per step before."""


@strict_kernel
def _mix(key: Any) -> Any:
    """Return the bits of a key spread over all 64 (the finaliser of MurmurHash3)."""
    h = np.uint64(key)
    h = (h ^ (h >> _HALF)) * _MIX_A
    h = (h ^ (h >> _HALF)) * _MIX_B
    return h ^ (h >> _HALF)


def make_slots(num_ids: int) -> Array:
    """Return an empty table with room for this many ids."""
    return np.full(
        1 << max(4, (num_ids + num_ids // 2).bit_length()), -1, dtype=index_dtype(num_ids)
    )


@strict_kernel
def parse_integers(offsets: Array, utf8: Array, values: Array) -> int:
    """Set values[i] to the number that text i is; return the first that is none, or -1.

    Only what a number is printed as counts: no leading zero, no plus sign, no -0.
    """
    for i in range(len(values)):
        at, end = offsets[i], offsets[i + 1]
        negative = at < end and utf8[at] == 45  # a minus sign
        at += int(negative)
        digits = end - at
        # Nineteen digits may be too many: those are looked at as a sum that must not turn over.
        if digits < 1 or digits > 19 or (utf8[at] == 48 and (digits > 1 or negative)):
            return i
        value = np.int64(0)
        while at < end:
            digit = np.int64(utf8[at]) - 48
            if digit < 0 or digit > 9:
                return i
            value = value * 10 + digit
            at += 1
        if value < 0:
            return i
        values[i] = -value if negative else value
    return -1


@strict_kernel
def insert_integers(ids: Array, slots: Array) -> int:
    """Fill the slots; return the row of the first id that was there already, or -1."""
    mask = np.uint64(len(slots) - 1)
    for row in range(len(ids)):
        slot = _mix(ids[row]) & mask
        while slots[slot] >= 0:
            if ids[slots[slot]] == ids[row]:
                return row
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = row
    return -1


@strict_kernel
def find_integers(ids: Array, slots: Array, wanted: Array, rows: Array) -> None:
    """Set rows[i] to the row of wanted[i], or -1."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(wanted)):
        slot = _mix(wanted[i]) & mask
        while slots[slot] >= 0 and ids[slots[slot]] != wanted[i]:
            slot = (slot + np.uint64(1)) & mask
        rows[i] = slots[slot]


@strict_kernel
def hash_text(offsets: Array, utf8: Array, hashes: Array) -> None:
    """Set hashes[i] to the hash of text i (FNV-1a, mixed)."""
    for i in range(len(hashes)):
        h = _FNV_OFFSET
        for at in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(utf8[at])) * _FNV_PRIME
        hashes[i] = _mix(h)


@strict_kernel
def _same_text(
    a_offsets: Array, a_utf8: Array, a: int, b_offsets: Array, b_utf8: Array, b: int
) -> bool:
    length = a_offsets[a + 1] - a_offsets[a]
    same = length == b_offsets[b + 1] - b_offsets[b]
    at = 0
    while same and at < length:
        same = a_utf8[a_offsets[a] + at] == b_utf8[b_offsets[b] + at]
        at += 1
    return same


@strict_kernel
def insert_text(offsets: Array, utf8: Array, hashes: Array, slots: Array) -> int:
    """Fill the slots; return the row of the first id that was there already, or -1."""
    mask = np.uint64(len(slots) - 1)
    for row in range(len(hashes)):
        slot = hashes[row] & mask
        while slots[slot] >= 0:
            taken = slots[slot]
            if hashes[taken] == hashes[row] and _same_text(
                offsets, utf8, taken, offsets, utf8, row
            ):
                return row
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = row
    return -1


@strict_kernel
def find_text(
    offsets: Array,
    utf8: Array,
    hashes: Array,
    slots: Array,
    wanted: tuple[Array, Array, Array],
    rows: Array,
) -> None:
    """Set rows[i] to the row of text i of `wanted` (offsets, utf8, hashes), or -1."""
    wanted_offsets, wanted_utf8, wanted_hashes = wanted
    mask, last = np.uint64(len(slots) - 1), len(wanted_hashes) - 1
    slot_lines, hash_lines = slots.reshape(-1, 1), hashes.reshape(-1, 1)
    offset_lines, utf8_lines = offsets.reshape(-1, 1), utf8.reshape(-1, 1)
    for i in range(len(wanted_hashes)):
        # Four cache misses, of which each tells where the next one is: comparing bytes in between
        # takes so many instructions that the processor does not see the next text's by itself.
        prefetch(slot_lines, np.intp(wanted_hashes[min(i + 3 * _AHEAD, last)] & mask), 0)
        row = max(0, slots[wanted_hashes[min(i + 2 * _AHEAD, last)] & mask])
        prefetch(hash_lines, row, 0)
        prefetch(offset_lines, row, 0)
        row = max(0, slots[wanted_hashes[min(i + _AHEAD, last)] & mask])
        prefetch(utf8_lines, offsets[row], 0)
        slot = wanted_hashes[i] & mask
        while slots[slot] >= 0:
            row = slots[slot]
            if hashes[row] == wanted_hashes[i] and _same_text(
                offsets, utf8, row, wanted_offsets, wanted_utf8, i
            ):
                break
            slot = (slot + np.uint64(1)) & mask
        rows[i] = slots[slot]

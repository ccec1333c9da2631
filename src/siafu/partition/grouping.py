"""Sorting rows or edges by part, keeping their order within each: one counting sort."""

import numpy as np

from siafu.graph import Array, index_dtype
from siafu.ops.numba_jit import strict_kernel


def group_by_part(part_of: Array, num_parts: int) -> tuple[Array, Array]:
    """Return (order, bounds): part p's items are order[bounds[p]:bounds[p + 1]], ascending."""
    order = np.empty(len(part_of), index_dtype(len(part_of)))
    return order, _fill_order(part_of, num_parts, order)


@strict_kernel
def _fill_order(part_of: Array, num_parts: int, order: Array) -> Array:
    bounds = np.zeros(num_parts + 1, np.int64)
    for part in part_of:
        bounds[part + 1] += 1
    for part in range(num_parts):
        bounds[part + 1] += bounds[part]
    fill = bounds[:-1].copy()
    for item in range(len(part_of)):
        order[fill[part_of[item]]] = item
        fill[part_of[item]] += 1
    return bounds


@strict_kernel
def number_in_part(part_of: Array, num_parts: int, local: Array) -> None:
    """Set local[v] to how many items before v are in its part."""
    counts = np.zeros(num_parts, np.int64)
    for item in range(len(part_of)):
        local[item] = counts[part_of[item]]
        counts[part_of[item]] += 1


@strict_kernel
def part_of_entries(offsets: Array, part_of: Array, first_row: int, low: int, high: int) -> Array:
    """Return the part of each entry low..high; row first_row + i ends at offsets[i + 1]."""
    out = np.empty(high - low, np.int32)
    at = 0
    for entry in range(low, high):
        while offsets[at + 1] <= entry:
            at += 1
        out[entry - low] = part_of[first_row + at]
    return out

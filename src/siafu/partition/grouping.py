"""Sorting rows or edges by part, keeping their order within each: one counting sort."""

import numpy as np

from siafu.graph import Array
from siafu.ops.numba_jit import strict_kernel


@strict_kernel
def group_by_part(part_of: Array, num_parts: int) -> tuple[Array, Array]:
    """Return (order, bounds): part p's items are order[bounds[p]:bounds[p + 1]], ascending."""
    bounds = np.zeros(num_parts + 1, np.int64)
    for part in part_of:
        bounds[part + 1] += 1
    for part in range(num_parts):
        bounds[part + 1] += bounds[part]
    fill = bounds[:-1].copy()
    order = np.empty(len(part_of), np.int64)
    for item in range(len(part_of)):
        order[fill[part_of[item]]] = item
        fill[part_of[item]] += 1
    return order, bounds


@strict_kernel
def part_of_entries(offsets: Array, part_of: Array, low: int, high: int) -> Array:
    """Return the part of each entry low..high, where row v has offsets[v]..offsets[v + 1]."""
    out = np.empty(high - low, np.int32)
    row = np.searchsorted(offsets, low, side="right") - 1
    for entry in range(low, high):
        while offsets[row + 1] <= entry:
            row += 1
        out[entry - low] = part_of[row]
    return out

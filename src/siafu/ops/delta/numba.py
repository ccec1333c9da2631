"""Delta kernels for CPU, compiled by Numba: both are one merge over rows or places."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.ops.delta.contract import Changes, Slid, SortedEdges
from siafu.ops.delta.reference import next_indptr
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import num_chunks, run_chunks

_NONE = np.empty(0, np.float32)


def changes(now: SortedEdges, following: SortedEdges, num_cols: int) -> Changes:
    """See `contract.DeltaKernels`. Rows are counted first, so that each chunk knows its place."""
    old, new = _arrays(now), _arrays(following)
    num_rows, edges = len(old[0]) - 1, len(old[1]) + len(new[1])
    chunks = min(num_chunks(edges), max(num_rows, 1))
    bounds = _equal(num_rows, chunks)
    counts = np.zeros((chunks + 1, 3), np.int64)
    nothing = tuple(np.empty(0, np.int32) for _ in range(4))

    def count(c: int, _: int) -> None:
        _merge(old, new, (bounds[c], bounds[c + 1]), counts[c + 1], nothing, False)

    run_chunks(count, range(chunks + 1))
    starts = counts.cumsum(axis=0)
    born, gone, changed = starts[-1]
    out = tuple(np.empty(size, np.int32) for size in (born, born, gone, changed))

    def fill(c: int, _: int) -> None:
        _merge(old, new, (bounds[c], bounds[c + 1]), starts[c].copy(), out, True)

    run_chunks(fill, range(chunks + 1))
    return Changes(*(torch.from_numpy(array) for array in out))


def move(
    indptr: Tensor,
    columns: tuple[Tensor, ...],
    fresh: tuple[Tensor, ...],
    delta: Changes,
    num_after: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `contract.DeltaKernels`."""
    born, gone = delta.born_at.numpy(), delta.gone_at.numpy()
    bounds = _equal(num_after, num_chunks(num_after))
    moved = []
    for values, new in zip(columns, fresh, strict=True):
        out = torch.empty(num_after, dtype=values.dtype)
        arrays = (values.numpy(), new.numpy(), born, gone, out.numpy())

        def work(lo: int, hi: int, arrays: Any = arrays) -> None:
            _move(arrays, lo, hi)

        run_chunks(work, bounds)
        moved.append(out)
    return next_indptr(indptr, delta), tuple(moved)


def slide(
    window: Slid, joins: SortedEdges, oldest: SortedEdges | None, keep: int, now: int
) -> Slid:
    """See `contract.DeltaKernels`. Rows are counted first, so that each knows its place."""
    held = (window.indptr.numpy(), window.columns.numpy(), window.last.numpy())
    new = _arrays(joins)
    empty = (np.zeros(len(held[0]), np.int64), held[1][:0], _NONE)
    old = empty if oldest is None else _arrays(oldest)
    num_rows, edges = len(held[0]) - 1, len(held[1]) + len(new[1])
    bounds = _equal(num_rows, min(num_chunks(edges), max(num_rows, 1)))
    indptr = np.zeros(num_rows + 1, np.int64)

    def count(low: int, high: int) -> None:
        _count_union(held, new, (low, high), keep, indptr)

    run_chunks(count, bounds)
    np.cumsum(indptr, out=indptr)
    size = int(indptr[-1])
    index, last = np.empty(size, held[1].dtype), np.empty(size, held[2].dtype)
    columns = np.empty(size, np.float32), np.empty(size, np.float32)

    def fill(low: int, high: int) -> None:
        _fill_union((held, new, old), (low, high), (keep, now), (indptr, index, last, *columns))

    run_chunks(fill, bounds)
    return Slid(*(torch.from_numpy(array) for array in (indptr, index, last, *columns)))


def add_normalised(
    edges: SortedEdges, root_N: Tensor, sums_K: Tensor, sign: int, steps: int
) -> tuple[Tensor, Tensor | None]:
    """See `contract.DeltaKernels`."""
    indptr, index, weight = _arrays(edges)
    sums = torch.empty_like(sums_K)
    mean = torch.empty(len(sums_K) if steps else 0, dtype=torch.float32)
    arrays = (indptr, index, weight, root_N.numpy(), sums_K.numpy(), sums.numpy(), mean.numpy())
    num_rows = len(indptr) - 1

    def work(low: int, high: int) -> None:
        _add_normalised(arrays, low, high, float(sign), steps)

    run_chunks(work, _equal(num_rows, min(num_chunks(len(index)), max(num_rows, 1))))
    return sums, mean if steps else None


def _equal(total: int, chunks: int) -> list[int]:
    return [total * c // chunks for c in range(chunks + 1)]


def _arrays(edges: SortedEdges) -> tuple[Any, Any, Any]:
    indptr, index, weight = edges
    return indptr.numpy(), index.numpy(), _NONE if weight is None else weight.numpy()


@strict_kernel
def _merge(old: Any, new: Any, rows: Any, count: Any, out: Any, fill: bool) -> None:
    """Count, or write from `count` on, what differs in some rows: born, gone, changed."""
    old_indptr, old_index, old_weight = old
    new_indptr, new_index, new_weight = new
    born_at, born_dst, gone_at, changed_at = out
    weighted = len(old_weight) > 0 and len(new_weight) > 0
    born, gone, changed = count
    for row in range(rows[0], rows[1]):
        i, i_stop = old_indptr[row], old_indptr[row + 1]
        j, j_stop = new_indptr[row], new_indptr[row + 1]
        # Both rows are sorted by column: the smaller one is gone or born, equal ones stay.
        while i < i_stop or j < j_stop:
            if j == j_stop or (i < i_stop and old_index[i] < new_index[j]):
                if fill:
                    gone_at[gone] = j
                gone += 1
                i += 1
            elif i == i_stop or old_index[i] > new_index[j]:
                if fill:
                    born_at[born], born_dst[born] = j, row
                born += 1
                j += 1
            else:
                if weighted and old_weight[i] != new_weight[j]:
                    if fill:
                        changed_at[changed] = j
                    changed += 1
                i += 1
                j += 1
    count[0], count[1], count[2] = born, gone, changed


@strict_kernel
def _move(arrays: Any, lo: int, hi: int) -> None:
    """Write places lo to hi - 1: a new value, or the old one that shifts there."""
    values, fresh, born_at, gone_at, out = arrays
    born = np.searchsorted(born_at, lo)
    gone = np.searchsorted(gone_at, lo)
    # An old value shifts by how many were born and gone before its place.
    for place in range(lo, hi):
        while gone < len(gone_at) and gone_at[gone] <= place:
            gone += 1
        if born < len(born_at) and born_at[born] == place:
            out[place] = fresh[born]
            born += 1
        else:
            out[place] = values[place - born + gone]


@strict_kernel
def _count_union(held: Any, new: Any, rows: Any, keep: int, counts: Any) -> None:
    """Write how many edges each row has behind its number: those still held, and the new."""
    indptr, index, last = held
    new_indptr, new_index, _ = new
    for row in range(rows[0], rows[1]):
        j, j_stop = new_indptr[row], new_indptr[row + 1]
        count = j_stop - j
        for i in range(indptr[row], indptr[row + 1]):
            if last[i] >= keep:
                while j < j_stop and new_index[j] < index[i]:
                    j += 1
                if j == j_stop or new_index[j] != index[i]:
                    count += 1
        counts[row + 1] = count


@strict_kernel
def _fill_union(sides: Any, rows: Any, times: Any, out: Any) -> None:
    """Write the edges of some rows, and what they are in the latest and the first snapshot."""
    (indptr, index, last), (new_indptr, new_index, new_weight), old = sides
    old_indptr, old_index, old_weight = old
    starts, out_index, out_last, joined, oldest = out
    keep, now = times
    for row in range(rows[0], rows[1]):
        i, i_stop = indptr[row], indptr[row + 1]
        j, j_stop = new_indptr[row], new_indptr[row + 1]
        k, k_stop = old_indptr[row], old_indptr[row + 1]
        for place in range(starts[row], starts[row + 1]):
            while i < i_stop and last[i] < keep:
                i += 1
            is_held = i < i_stop and (j == j_stop or index[i] <= new_index[j])
            is_new = j < j_stop and (i == i_stop or new_index[j] <= index[i])
            column = new_index[j] if is_new else index[i]
            out_index[place] = column
            out_last[place] = now if is_new else last[i]
            joined[place] = new_weight[j] if is_new else np.float32(0)
            while k < k_stop and old_index[k] < column:
                k += 1
            has_old = k < k_stop and old_index[k] == column
            oldest[place] = old_weight[k] if has_old else np.float32(0)
            i += is_held
            j += is_new


@strict_kernel
def _add_normalised(arrays: Any, low: int, high: int, sign: float, steps: int) -> None:
    """Write the sums, and their means, of some rows."""
    indptr, index, weight, roots, sums, out, mean = arrays
    for row in range(low, high):
        root = roots[row]
        for edge in range(indptr[row], indptr[row + 1]):
            value = np.float32(np.float64(weight[edge]) * (root * roots[index[edge]]))
            total = sums[edge] + sign * np.float64(value)
            out[edge] = total
            if steps:
                mean[edge] = np.float32(total / steps)

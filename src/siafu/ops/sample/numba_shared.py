"""Sampling by draws of sources on CPU, compiled by Numba; gives what `sample.reference` gives.

Every source of a row that is cut has its draw made, so a request costs its degree.

Shapes: Q requests, E their edges, S sampled edges.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.numba_jit import callee, strict_kernel
from siafu.ops.random.numba import HALF, LOW, philox_lanes
from siafu.ops.threads import num_chunks, run_chunks

Array = NDArray[Any]

ONE, SIXTEEN = np.uint64(1), np.uint64(16)


def share(
    indptr: Tensor, ids_E: Tensor, batch_Q: Tensor, keys_B2: Tensor, fanout: int
) -> tuple[Tensor, Tensor]:
    """See `contract.SampleKernels`."""
    offsets, count = indptr.numpy(), len(batch_Q)
    counts = np.minimum(np.diff(offsets), fanout)
    start = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    out = np.empty(start[-1], np.int64)
    keys = keys_B2.numpy().astype(np.uint32)
    ids, batch = ids_E.numpy(), batch_Q.numpy()
    num_edges = int(offsets[-1])
    shares = np.linspace(0, num_edges, num_chunks(8 * num_edges) + 1)
    bounds = np.searchsorted(offsets, shares)
    bounds[0], bounds[-1] = 0, count
    run_chunks(
        lambda lo, hi: _share(offsets, ids, batch, keys, start, fanout, out, (lo, hi)),
        bounds.tolist(),
    )
    return torch.from_numpy(counts), torch.from_numpy(out)


@callee
def _smallest(words: Array, degree: Any, best: Array, size: Any) -> Any:
    """Make `best` the smallest of a row's words, rising; return how many of the last one's equals
    are among them.
    """
    held = np.uint64(0)
    for c in range(degree):
        word = words[c]
        if held == size and not word < best[size - ONE]:
            continue
        # Few are small once a few have been: size * log(degree / size) insertions are expected.
        slot = held if held < size else size - ONE
        while slot > 0 and best[slot - ONE] > word:
            best[slot] = best[slot - ONE]
            slot -= ONE
        best[slot] = word
        held = min(held + ONE, size)
    equal = np.uint64(0)
    for c in range(size):
        equal += np.uint64(best[c] == best[size - ONE])
    return equal


@strict_kernel
def _share(  # noqa: PLR0913 - kernel arguments are flat
    offsets: Array,
    ids: Array,
    batch: Array,
    keys: Array,
    start: Array,
    fanout: int,
    out: Array,
    span: tuple[int, int],
) -> None:
    # Room for the longest row of all requests: one array serves them in turn.
    most = np.int64(0)
    for q in range(span[0], span[1]):
        most = max(most, offsets[q + 1] - offsets[q])
    words, best = np.empty(most, np.uint64), np.empty(max(1, fanout), np.uint64)
    size, zero = np.uint64(fanout), np.uint64(0)
    for q in range(span[0], span[1]):
        first, degree = np.uint64(offsets[q]), np.uint64(offsets[q + 1] - offsets[q])
        at = np.uint64(start[q])
        # A row that is taken whole needs no draw.
        if degree <= size:
            for c in range(degree):
                out[at + c] = first + c
            continue
        if size == 0:
            continue
        b = np.uint64(batch[q])
        key0, key1 = keys[b, 0], keys[b, 1]
        for c in range(degree):
            number = np.uint64(ids[first + c])
            high = (number >> HALF) << SIXTEEN & LOW
            words[c], _ = philox_lanes(number & LOW, zero, high, zero, (key0, key1))
        equal = _smallest(words, degree, best, size)
        last = best[size - ONE]
        for c in range(degree):
            is_last = words[c] == last
            if words[c] < last or (is_last and equal > 0):
                out[at] = first + c
                at += ONE
                equal -= np.uint64(is_last)

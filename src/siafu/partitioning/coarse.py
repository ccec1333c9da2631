"""Clusters of nodes as the nodes of a small graph, which METIS cuts.

An edge of the small graph weighs as many edges as lead from one cluster to the other. Only so many
pairs of clusters are kept as have room, the heaviest.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np

from siafu.errors import PartitionError
from siafu.graph import Array
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import in_order, num_chunks, num_threads, run_chunks
from siafu.partitioning.both_ways import RowPiece
from siafu.partitioning.chunks import evenly
from siafu.partitioning.metis import cut_weighted, has_metis

_GATHERED = 1 << 21
"""Counted pairs that wait for each other before they are added up."""


class Pairs:
    """How many edges lead between two clusters: keys low * C + high, ascending, and counts."""

    def __init__(self, num_clusters: int, most: int) -> None:
        self.num_clusters, self.most = num_clusters, most
        self.keys = self.counts = np.empty(0, np.int64)
        self._waiting = list[tuple[Array, Array]]()
        self._gathered = 0

    def add(self, pieces: Iterable[RowPiece], cluster: Array, every: int) -> None:
        """Count the in-edges of these pieces, of every k-th row."""

        def count(piece: RowPiece) -> tuple[Array, Array]:
            keys = _keys(piece.low, *piece.sides[0], cluster, self.num_clusters, every)
            keys.sort()
            return _runs(keys, np.ones(len(keys), np.int64))

        for found in in_order(count, pieces, ahead=num_threads()):
            self._waiting.append(found)
            self._gathered += len(found[0])
            if self._gathered > max(2 * self.most, _GATHERED):
                self.merge()

    def merge(self) -> None:
        """Add up what was counted; beyond the most that are kept the lightest pairs go."""
        self.keys, self.counts = _merged([(self.keys, self.counts), *self._waiting])
        if len(self.keys) > self.most:
            least = np.partition(self.counts, -self.most)[-self.most]
            kept = self.counts > least
            self.keys, self.counts = self.keys[kept], self.counts[kept]
        self._waiting, self._gathered = [], len(self.keys)


def _merged(found: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return each key of sorted lists once, and the sum of its counts, spans of keys by threads."""
    longest = max((keys for keys, _ in found), key=len)
    spans = evenly(len(longest), num_chunks(sum(len(keys) for keys, _ in found)))
    inner = [np.searchsorted(keys, longest[spans[1:-1]]) for keys, _ in found]
    cuts = [[0, *at.tolist(), len(keys)] for at, (keys, _) in zip(inner, found, strict=True)]

    def merge(span: int) -> tuple[Array, Array]:
        pieces = [slice(*at[span : span + 2]) for at in cuts]
        mine = [(keys[p], counts[p]) for p, (keys, counts) in zip(pieces, found, strict=True)]
        keys, counts = (np.concatenate(arrays) for arrays in zip(*mine, strict=True))
        order = np.argsort(keys, kind="stable")
        return _runs(keys[order], counts[order])

    merged = list(in_order(merge, range(len(spans) - 1), ahead=num_threads()))
    keys, counts = (np.concatenate(arrays) for arrays in zip(*merged, strict=True))
    return keys, counts


def number_from_zero(cluster: Array) -> int:
    """Number the clusters that have nodes anew, in order; return how many there are."""
    if not len(cluster):
        return 0
    number = np.zeros(len(cluster), cluster.dtype)
    bounds = evenly(len(cluster), num_chunks(len(cluster)))
    run_chunks(lambda low, high: _mark_used(cluster[low:high], number), bounds)
    used = [0]
    for low, high in pairwise(bounds):
        used.append(used[-1] + int(np.count_nonzero(number[low:high])))
    starts = dict(zip(bounds, used, strict=True))
    run_chunks(lambda low, high: _count_up(number[low:high], starts[low]), bounds)
    run_chunks(lambda low, high: _renumber(cluster[low:high], number), bounds)
    return used[-1]


@strict_kernel
def _mark_used(cluster: Array, used: Array) -> None:
    for node in range(len(cluster)):
        used[cluster[node]] = 1


@strict_kernel
def _count_up(number: Array, first: int) -> None:
    for old in range(len(number)):
        if number[old]:
            number[old] = first
            first += 1


@strict_kernel
def _renumber(cluster: Array, number: Array) -> None:
    for node in range(len(cluster)):
        cluster[node] = number[cluster[node]]


@strict_kernel
def _keys(
    first: int, offsets: Array, neighbours: Array, cluster: Array, num: int, every: int
) -> Array:
    """Return a key for each in-edge between two clusters, of every k-th row."""
    keys, found = np.empty(len(neighbours) // every + 1, np.int64), 0
    for at in range((every - first % every) % every, len(offsets) - 1, every):
        here = np.int64(cluster[first + at])
        for edge in range(offsets[at], offsets[at + 1]):
            there = np.int64(cluster[neighbours[edge]])
            if there != here:
                if found == len(keys):  # the rows that are taken have more than their share
                    keys = np.concatenate((keys, np.empty(found + 1, np.int64)))
                keys[found] = min(here, there) * num + max(here, there)
                found += 1
    return keys[:found]


@strict_kernel
def _runs(keys: Array, counts: Array) -> tuple[Array, Array]:
    """Return each key of a sorted list once, and the sum of its counts."""
    once, sums, last = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64), -1
    for position in range(len(keys)):
        if last < 0 or keys[position] != once[last]:
            last += 1
            once[last], sums[last] = keys[position], 0
        sums[last] += counts[position]
    return once[: last + 1].copy(), sums[: last + 1].copy()


def cut_clusters(pairs: Pairs, weight_C3: Array, num_parts: int, seed: int) -> Array:
    """Return the part of each cluster: METIS's, then those that it was not given where they fit.

    Where there is no METIS all are dealt by their weights alone.
    """
    low, high = np.divmod(pairs.keys, pairs.num_clusters)
    part_of = np.full(pairs.num_clusters, -1, np.int32)
    known = np.unique(np.concatenate([low, high]))
    if len(known) >= num_parts and has_metis():
        # Native code may give up on odd graphs: then all clusters are dealt.
        with suppress(PartitionError):
            part_of[known] = _by_metis(pairs, known, weight_C3[known], num_parts, seed)
    share_C3 = weight_C3 / np.maximum(weight_C3.sum(axis=0), 1.0)
    load_P3 = np.zeros((num_parts, 3))
    np.add.at(load_P3, part_of[part_of >= 0], share_C3[part_of >= 0])
    left = np.flatnonzero(part_of < 0)
    # By columns: numpy takes ten times as long for the largest of each short row.
    largest = np.maximum.reduce([share_C3[left, constraint] for constraint in range(3)])
    largest_first = left[_sorted_order(-largest)]
    _fit_clusters(largest_first, share_C3, load_P3, part_of)
    return part_of


def _sorted_order(numbers: Array) -> Array:
    """Return the stable order of numbers, each thread's of those in a range."""
    count = num_threads() if len(numbers) and num_chunks(len(numbers)) > 1 else 1
    sample = np.sort(numbers[:: max(1, len(numbers) // (64 * count))])
    inner = sample[[len(sample) * at // count for at in range(1, count)]]
    bounds = [-np.inf, *inner.tolist(), np.inf]

    def sort(span: int) -> Array:
        mine = np.flatnonzero((numbers >= bounds[span]) & (numbers < bounds[span + 1]))
        return mine[np.argsort(numbers[mine], kind="stable")]

    return np.concatenate(list(in_order(sort, range(count), ahead=num_threads())))


def _by_metis(pairs: Pairs, known: Array, weight_K3: Array, num_parts: int, seed: int) -> Array:
    """Return the parts of the clusters that have pairs."""
    low, high = np.divmod(pairs.keys, pairs.num_clusters)
    rows = np.searchsorted(known, np.concatenate([low, high]))
    others = np.searchsorted(known, np.concatenate([high, low]))
    order = np.argsort(rows, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(known)))])
    heavy = np.concatenate([pairs.counts, pairs.counts])[order]
    return cut_weighted((offsets, others[order], heavy), weight_K3, num_parts, seed)


@strict_kernel
def _fit_clusters(order: Array, share_C3: Array, load_P3: Array, part_of: Array) -> None:
    """Give each cluster the part where its weights meet the smallest loads (dot product)."""
    for item in order:
        best, least = 0, np.inf
        for part in range(len(load_P3)):
            meeting = 0.0
            for constraint in range(3):
                meeting += load_P3[part, constraint] * share_C3[item, constraint]
            if meeting < least:
                best, least = part, meeting
        part_of[item] = best
        for constraint in range(3):
            load_P3[best, constraint] += share_C3[item, constraint]

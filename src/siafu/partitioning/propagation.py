"""Moving each node to the group that most of its neighbours are in, a piece of rows at a time.

All rows of a piece decide by the groups as they were before it, on as many threads as there are;
then they move in the order of rows, where there is still room. So what comes out does not depend
on the threads. Groups are clusters that grow from single nodes, or the parts themselves.
"""

# ruff: noqa: PLR0913, PLR0915, C901 - kernel arguments are flat, and loops are written out

from typing import Any

import numpy as np

from siafu.graph import ALONE, Array, Crew
from siafu.ops.numba_jit import strict_kernel
from siafu.ops.threads import run_chunks
from siafu.partitioning.both_ways import RowPiece

_MOST_SEEN = 256
"""Neighbours of a row, per side, that are looked at: every k-th of a larger row's."""
_SLOTS = 2048
"""Of a table of the clusters around a row: at least twice what is looked at, a power of two."""

_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(33)


def grow_clusters(
    piece: RowPiece,
    cluster: Array,
    weight: Array,
    mass: Array,
    largest: int,
    salt: int,
    crew: Crew = ALONE,
) -> int:
    """Let the rows of a piece join clusters that have room; return how many moved.

    `mass` is what the rows of the whole piece weigh; `weight` has the sum of each cluster.
    """
    want = np.empty(piece.high - piece.low, cluster.dtype)
    mine = mass[piece.low - piece.whole[0] : piece.high - piece.whole[0]]

    def propose(low: int, high: int) -> None:
        _propose_clusters(
            low, high, piece.low, piece.sides, mine, cluster, weight, largest, salt, want
        )

    run_chunks(propose, piece.in_chunks())
    return int(_join(piece.whole[0], crew.joined(want), mass, cluster, weight, largest))


def move_rows(
    piece: RowPiece,
    train: Array,
    part_of: Array,
    load_P3: Array,
    room: Array,
    crew: Crew = ALONE,
) -> int:
    """Let the rows of a piece change to better parts that have room; return how many moved.

    A row weighs itself, its in-edges and whether it trains: `train` tells of the whole piece.
    """
    offsets = piece.in_offsets
    want = np.empty(piece.high - piece.low, part_of.dtype)
    skipped = piece.low - piece.whole[0]
    mine = (offsets[skipped:], train[skipped:])

    def propose(low: int, high: int) -> None:
        _propose_parts(low, high, piece.low, piece.sides, *mine, part_of, load_P3, room, want)

    run_chunks(propose, piece.in_chunks())
    return int(_move(piece.whole[0], crew.joined(want), offsets, train, part_of, load_P3, room))


@strict_kernel
def _mix(key: Any) -> Any:
    """Return the bits of a key spread over all 64."""
    h = np.uint64(key)
    h = (h ^ (h >> _HALF)) * _MIX_A
    return h ^ (h >> _HALF)


@strict_kernel
def _propose_clusters(
    low: int,
    high: int,
    first: int,
    sides: tuple[tuple[Array, Array], tuple[Array, Array]],
    mass: Array,
    cluster: Array,
    weight: Array,
    largest: int,
    salt: int,
    want: Array,
) -> None:
    """Set want[i] to the cluster that most neighbours of row first + i are in and that has room."""
    keys = np.full(_SLOTS, -1, np.int64)
    counts = np.zeros(_SLOTS, np.int64)
    used = np.empty(_SLOTS, np.int64)
    around = np.empty(2 * _MOST_SEEN + 2, np.int64)
    steps = np.empty(2 * _MOST_SEEN + 2, np.int64)
    for at in range(low, high):
        row = first + at
        home = cluster[row]
        # Gathered first, since no read has to wait for another; then counted in a small table.
        num_around = 0
        for offsets, neighbours in sides:
            begin, end = offsets[at], offsets[at + 1]
            stride = max(1, (end - begin + _MOST_SEEN - 1) // _MOST_SEEN)
            for edge in range(begin, end, stride):
                if neighbours[edge] != row:
                    around[num_around] = cluster[neighbours[edge]]
                    steps[num_around] = stride
                    num_around += 1
        size = 16
        while size < 2 * num_around:
            size *= 2
        mask, num_used = np.uint64(size - 1), 0
        for place in range(num_around):
            group = around[place]
            slot = _mix(group) & mask
            while keys[slot] != group and keys[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            if keys[slot] < 0:
                keys[slot] = group
                counts[slot] = 0
                used[num_used] = slot
                num_used += 1
            counts[slot] += steps[place]
        # Staying is as good as going where as many neighbours are; of others a drawn one wins.
        best, most, tie = np.int64(home), np.int64(0), np.uint64(0)
        for place in range(num_used):
            slot = used[place]
            if keys[slot] == home:
                most = counts[slot]
        stays = most
        for place in range(num_used):
            slot = used[place]
            group, count = keys[slot], counts[slot]
            keys[slot] = -1
            if group == home or count <= stays or count < most:
                continue
            drawn = _mix(np.uint64(group) * np.uint64(2654435761) + np.uint64(row + salt))
            # Weights are looked up last: mostly they are in no cache.
            if (count > most or drawn >= tie) and weight[group] + mass[at] <= largest:
                best, most, tie = group, count, drawn
        want[at] = best


@strict_kernel
def _join(first: int, want: Array, mass: Array, cluster: Array, weight: Array, largest: int) -> int:
    moved = 0
    for at in range(len(want)):
        home, goal = cluster[first + at], want[at]
        if goal != home and weight[goal] + mass[at] <= largest:
            weight[home] -= mass[at]
            weight[goal] += mass[at]
            cluster[first + at] = goal
            moved += 1
    return moved


@strict_kernel
def _weigh(at: int, offsets: Array, train: Array, weight: Array) -> None:
    weight[0], weight[1], weight[2] = 1.0, offsets[at + 1] - offsets[at], train[at]


@strict_kernel
def _fits(load_P3: Array, part: int, weight: Array, room: Array) -> bool:
    """Whether a part has room for a row, in each weight that the row has."""
    for constraint in range(3):
        more = weight[constraint]
        if more > 0 and load_P3[part, constraint] + more > room[constraint]:
            return False
    return True


@strict_kernel
def _is_over(load_P3: Array, part: int, weight: Array, room: Array) -> bool:
    """Whether a part has too much of what leaves with a row."""
    for constraint in range(3):
        if weight[constraint] > 0 and load_P3[part, constraint] > room[constraint]:
            return True
    return False


@strict_kernel
def _eases(load_P3: Array, home: int, goal: int, weight: Array, room: Array) -> bool:
    """Whether two parts are less over their room together once a row has gone over to the other.

    Where one has too many nodes and the other too many edges, neither has room for any row.
    """
    change = 0.0
    for constraint in range(3):
        if weight[constraint] > 0:
            over = load_P3[home, constraint] - room[constraint]
            beyond = load_P3[goal, constraint] - room[constraint]
            less = max(0.0, over - weight[constraint]) - max(0.0, over)
            more = max(0.0, beyond + weight[constraint]) - max(0.0, beyond)
            change += (less + more) / room[constraint]
    return change < 0.0


@strict_kernel
def _may_go(load_P3: Array, home: int, goal: int, weight: Array, room: Array, must: bool) -> bool:
    if must:
        return _eases(load_P3, home, goal, weight, room)
    return _fits(load_P3, goal, weight, room)


@strict_kernel
def _fullness(load_P3: Array, part: int, room: Array) -> float:
    full = 0.0
    for constraint in range(3):
        if room[constraint] > 0:
            full = max(full, load_P3[part, constraint] / room[constraint])
    return full


@strict_kernel
def _propose_parts(
    low: int,
    high: int,
    first: int,
    sides: tuple[tuple[Array, Array], tuple[Array, Array]],
    offsets_R: Array,
    train_R: Array,
    part_of: Array,
    load_P3: Array,
    room: Array,
    want: Array,
) -> None:
    """Set want[i] to the part with most neighbours of row first + i that has room, else its own.

    A row of a part that is too full goes where it loses least, else to the emptiest part.
    """
    num_parts = len(load_P3)
    near = np.zeros(num_parts, np.int64)
    seen = np.empty(num_parts, np.int64)
    weight = np.empty(3)
    for at in range(low, high):
        row = first + at
        _weigh(at, offsets_R, train_R, weight)
        home = part_of[row]
        num_seen = 0
        for offsets, neighbours in sides:
            begin, end = offsets[at], offsets[at + 1]
            stride = max(1, (end - begin + _MOST_SEEN - 1) // _MOST_SEEN)
            for edge in range(begin, end, stride):
                part = part_of[neighbours[edge]]
                if neighbours[edge] != row:
                    if near[part] == 0:
                        seen[num_seen] = part
                        num_seen += 1
                    near[part] += stride
        must = _is_over(load_P3, home, weight, room)
        best, most, least = home, near[home], np.inf
        if must:
            most = -1
        for place in range(num_seen):
            part = seen[place]
            count = near[part]
            if part == home or count < most or (count == most and best == home):
                continue
            if not _may_go(load_P3, home, part, weight, room, must):
                continue
            full = _fullness(load_P3, part, room)
            if count > most or full < least:
                best, most, least = part, count, full
        if must and best == home:
            for part in range(num_parts):
                full = _fullness(load_P3, part, room)
                if full < least and _eases(load_P3, home, part, weight, room):
                    best, least = part, full
        for place in range(num_seen):
            near[seen[place]] = 0
        # Who has to go is told apart: another that went before may have made room.
        want[at] = -1 - best if must and best != home else best


@strict_kernel
def _move(
    first: int,
    want: Array,
    offsets_R: Array,
    train_R: Array,
    part_of: Array,
    load_P3: Array,
    room: Array,
) -> int:
    moved, weight = 0, np.empty(3)
    for at in range(len(want)):
        home, goal = part_of[first + at], want[at]
        if goal == home:
            continue
        _weigh(at, offsets_R, train_R, weight)
        must = goal < 0
        if must:
            goal = -1 - goal
        if _may_go(load_P3, home, goal, weight, room, must):
            for constraint in range(3):
                load_P3[home, constraint] -= weight[constraint]
                load_P3[goal, constraint] += weight[constraint]
            part_of[first + at] = goal
            moved += 1
    return moved

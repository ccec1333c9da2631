"""A function of every node and all its in-neighbours, some nodes at a time.

Layer by layer this is inference over the whole graph; its memory is that of a piece or two, of the
rows that others have and of those that come out, both of which may go to files. With one
aggregation it is the constant input of a first layer.

Shapes: N owned rows, M rows of a piece, V nodes it reads, R rows of other ranks.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from siafu.comm import World, tell
from siafu.minibatch.far_rows import fetch_near
from siafu.minibatch.kept_rows import ROWS, KeptRows
from siafu.minibatch.relay import Relay
from siafu.minibatch.served import rows_of
from siafu.minibatch.subgraph import Subgraph
from siafu.ops import sum_type
from siafu.shard import PickedRows, RowReader, WrittenRows

_Made = TypeVar("_Made")

RowFunction = Callable[[Subgraph, dict[str, Tensor]], Tensor]
"""Maps a piece, and rows of its nodes by column, to a row for each of its M rows."""

_ROWS_AT_ONCE = 1 << 14
_EDGES_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 1 << 28
"""Of the rows a piece reads, if no two of its edges start at one node."""
_COPIES = 4
"""Of a row while it is fetched: as it comes, joined with others', as asked by others, read."""
_READ_COPIES = 2
"""Of a row while its piece is made ready: as it is read, and among those of the piece."""
_NUMBER_BYTES = 200
"""What an edge and its source take in numbers: addresses, places, what sorting makes of them."""
_PIECES_BETWEEN = 16
"""Two meetings of the ranks, at least."""
_MOST_MEETINGS = 256
"""Of a layer, and states noted: of small pieces there are more between them."""
_MADE = 4
"""Arrays of rows that a layer makes."""
_NODES_A_ROW = 8
"""Nodes of a piece for each row that it writes, at least."""
_AHEAD = "siafu-piece"
_LEAST_NODES = 1 << 10


@dataclass(frozen=True, slots=True)
class WideRows:
    """The widest rows that are made on the way from the nodes of a piece to its rows."""

    width: int
    of_read: bool
    """Of all nodes that are read; False where of those alone that are written."""

    @property
    def node_bytes(self) -> int:
        """What these take for each node that is read, at most."""
        return _MADE * 4 * self.width // (1 if self.of_read else _NODES_A_ROW)


@dataclass(frozen=True, slots=True)
class Room:
    """What a mapping of all rows may take; the same on every rank."""

    on_disk: bool = False
    """Whether the rows that come out go to a file."""
    piece_bytes: int | None = None
    """Of all that a piece makes; None where memory is not limited."""
    times: int = 1
    """How many times larger pieces are than a host's, where memory is not limited."""
    ahead: bool = False
    """Whether a piece is made ready while the one before it is computed."""
    kept: KeptRows | None = None
    """The files of the rows that come out, where they outlast the process."""

    def spans(self, indptr: Tensor, row_bytes: int, wide: WideRows) -> list[tuple[int, int]]:
        """Return pieces that read rows of so many bytes and make wide ones of them."""
        if self.piece_bytes is None:
            edges = min(_EDGES_AT_ONCE, max(_ROWS_AT_ONCE, _BYTES_AT_ONCE // row_bytes))
            return row_spans(indptr, self.times * edges, self.times * _ROWS_AT_ONCE)
        fits = max(_LEAST_NODES, self.piece_bytes // node_bytes(row_bytes, wide, self.ahead))
        # A power of two, since what is free differs a little from run to run, and pieces of another
        # size may round sums of products another way.
        nodes = 1 << (fits.bit_length() - 1)
        rows = min(_ROWS_AT_ONCE, nodes // _NODES_A_ROW)
        return row_spans(indptr, min(_EDGES_AT_ONCE, nodes - rows), rows)

    def fetched_at_once(self, row_bytes: int) -> int:
        """Return how many rows of so many bytes may be on their way together."""
        each = _COPIES * row_bytes + _NUMBER_BYTES
        free = _BYTES_AT_ONCE if self.piece_bytes is None else self.piece_bytes
        return max(_LEAST_NODES, free // each)

    def rows_at_once(self, width: int) -> int:
        """Return how many rows may be worked on that are `width` wide, all that is made counted."""
        if self.piece_bytes is None:
            return _ROWS_AT_ONCE
        return min(_ROWS_AT_ONCE, max(_LEAST_NODES, self.piece_bytes // (4 * width)))


@dataclass(frozen=True, eq=False)
class Some:
    """Some owned rows, and all that they read of other ranks."""

    rows_M: Tensor
    """int64, rising."""
    far_R: Tensor
    """Addresses, rising."""


def node_bytes(row_bytes: int, wide: WideRows, ahead: bool) -> int:
    """Return what pieces take for each node that one of them reads, at most.

    `ahead`: one computes while the next is made ready.
    """
    reading = _READ_COPIES * row_bytes + _NUMBER_BYTES
    computing = 2 * row_bytes + wide.node_bytes + _NUMBER_BYTES
    return computing + reading if ahead else max(computing, reading)


def map_rows(
    relay: Relay,
    columns: tuple[str, ...],
    compute: RowFunction,
    room: Room | None = None,
    *,
    wide: WideRows,
    number: int = 0,
    only: Some | None = None,
) -> WrittenRows | PickedRows:
    """Return compute(...) of every owned row, or of `only` some; every rank calls this together.

    The relay draws one hop, keyed by `number` where that is not of all in-edges. `wide` is what
    `compute` makes. Each row of other ranks travels once, before any piece. Where the room keeps
    rows, pieces that are there already are not computed again.
    """
    served, room = relay.served, room or Room()
    kept = room.kept
    row_bytes = sum(_row_bytes(served.node_columns[name]) for name in columns)
    indptr, far_R = served.shard.csr.indptr, served.far_R
    if only is not None:
        degree, far_R = drawn_degree(relay, only.rows_M), only.far_R
        indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    spans = room.spans(indptr, row_bytes, wide)
    between = _pieces_between(len(spans))
    first = 0 if kept is None else kept.begin(spans, relay.channel)
    out: WrittenRows | None = None if kept is None else kept.found(ROWS)
    meetings = _Meetings(relay.channel, len(spans) - first)
    if out is not None and meetings.are_over:
        return out
    at_once = room.fetched_at_once(row_bytes)
    near = fetch_near(relay, columns, far_R, at_once, on_disk=room.on_disk)

    def ready(at: int) -> tuple[Subgraph, dict[str, Tensor]]:
        low, high = spans[at]
        rows_M = torch.arange(low, high) if only is None else only.rows_M[low:high]
        piece = relay.sample_own(number, rows_M)
        return piece, near.of(piece.addresses)

    num_owned = served.shard.num_owned
    made = _in_turn(ready, range(first, len(spans)), ahead=room.ahead)
    for done, (piece, rows) in enumerate(made, first + 1):
        result = compute(piece, rows)
        del piece, rows  # the one after the next is begun when the next is asked for
        if out is None:
            shape = (num_owned if only is None else len(only.rows_M), *result.shape[1:])
            kind = sum_type(result.dtype) if room.on_disk else result.dtype  # numpy has no bfloat16
            if kept is not None:
                out = kept.new(ROWS, shape, kind)
            else:
                out = relay.new_rows(shape, kind, on_disk=room.on_disk)
        out.write(spans[done - 1][0], result)
        if kept is not None and (done % between == 0 or done == len(spans)):
            kept.note(done)
        meetings.note_piece()
    meetings.end()
    assert out is not None, "there is one piece at least"
    return out if only is None else PickedRows(only.rows_M, out, num_owned)


def _pieces_between(count: int) -> int:
    """Return after how many of so many pieces ranks meet, and what they have is noted."""
    return max(_PIECES_BETWEEN, count // _MOST_MEETINGS)


class _Meetings:
    """Ranks wait for each other every few pieces: after a whole layer a wait might be too long."""

    def __init__(self, channel: World, count: int) -> None:
        """`count` pieces are this rank's; all ranks call together."""
        self._channel, self._count, self._done, self._held = channel, count, 0, 0
        most = int(max(row[0] for row in tell([float(count)], channel, "control")))
        self._number, self.are_over = most // _pieces_between(most), most == 0

    def note_piece(self) -> None:
        """Meet the others when so much of the pieces is done."""
        self._done += 1
        self._meet(self._number * self._done // self._count)

    def end(self) -> None:
        """Meet the others as often as is left, for a rank that had nothing to do."""
        self._meet(self._number)

    def _meet(self, number: int) -> None:
        while self._held < number:
            tell([0.0], self._channel, "control")
            self._held += 1


def _in_turn(make: Callable[[int], _Made], numbers: range, *, ahead: bool) -> Iterator[_Made]:
    """Yield what is made of each number; `ahead` has a thread make the next while one is used."""
    if not ahead or len(numbers) <= 1:
        yield from map(make, numbers)
        return
    with ThreadPoolExecutor(1, thread_name_prefix=_AHEAD) as thread:
        coming = thread.submit(make, numbers[0])
        for number in range(numbers[0] + 1, numbers.stop + 1):
            ready = [coming.result()]
            if number < numbers.stop:
                coming = thread.submit(make, number)
            else:
                del coming
            yield ready.pop()  # no name for it here, which would keep it too long


def first_row_of(piece: Subgraph) -> int:
    """Return the first of the owned rows that a piece of `map_rows` has."""
    return int(rows_of(piece.addresses[:1])) if piece.num_seeds else 0


def drawn_degree(relay: Relay, rows_M: Tensor) -> Tensor:
    """Return int64 [M]: how many in-edges of owned rows a relay of one hop draws."""
    indptr, (fanout,) = relay.served.shard.csr.indptr, relay.sampling.fanouts
    degree = indptr[rows_M + 1] - indptr[rows_M]
    if fanout < 0:
        return degree
    return degree.clamp(max=1) * fanout if relay.sampling.replace else degree.clamp(max=fanout)


def _row_bytes(reader: RowReader) -> int:
    return reader.dtype.itemsize * math.prod(reader.shape[1:])


def row_spans(indptr: Tensor, most_edges: int, most_rows: int) -> list[tuple[int, int]]:
    """Return spans of rows that are small in rows and, but for a hub, in edges."""
    spans, low, last = [], 0, len(indptr) - 1
    while low < last:
        fits = int(torch.searchsorted(indptr, indptr[low] + most_edges, right=True)) - 1
        high = min(max(fits, low + 1), low + most_rows, last)
        spans.append((low, high))
        low = high
    return spans or [(0, 0)]

"""What a band reaches back to: the halo of a span of time, as snapshots or as sums of them.

A mean needs no snapshot of another rank by itself, only the sum of those in its window. So each
rank sends, of its snapshots before a span, either each one or the sums from one on to its last,
whichever are fewer: of a rank inside all windows of a span one sum, however many it has.

Shapes: t snapshots of mine, k of them whose windows begin before, p pieces, N nodes, D columns.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm import BACKWARD, FORWARD, Coding, World, start_coded, start_exchange
from siafu.nn import BandedMean, banded_sum
from siafu.partitioning import TimeBlock
from siafu.strategy.time.exchanges import CodingsOf, Root, exactly, tied

Pieces = list[range]
"""Snapshots of one rank that travel as one sum each, earliest first."""


def halo_steps(block: TimeBlock, rank: int, band: int) -> range:
    """Return the snapshots that a rank must know besides its own of a block."""
    start, stop = block.bounds[rank], block.bounds[rank + 1]
    return range(max(0, start - band + 1) if stop > start else start, start)


def pieces_of(steps: Sequence[int], readers: range, band: int) -> Pieces:
    """Return what one rank's `steps`, all before the `readers`, travel to them as."""
    alone = [range(step, step + 1) for step in steps]
    firsts = {bisect_left(steps, reader - band + 1) for reader in readers}
    sums = [range(steps[at], readers.start) for at in sorted(firsts) if at < len(steps)]
    return sums if len(sums) < len(alone) else alone


def used_by(reader: int, pieces: Pieces, band: int) -> list[int]:
    """Return the pieces that add up to what a snapshot's window has of them."""
    found, begin = [], reader - band + 1
    for number, piece in enumerate(pieces):
        if piece.start >= begin:
            found.append(number)
            begin = piece.stop
    return found


class BandedHalo:
    """TM-GCN's mean over a band: each rank fetches what its windows have of snapshots before.

    Nothing returns, and a block that is run again uses what was fetched before. In backward the
    gradients go to the owners; those of earlier blocks wait there for their turn.
    """

    name = "banded"

    def __init__(self, part: BandedMean, world: World, codings: CodingsOf = exactly) -> None:
        self.part, self.world, self._codings = part, world, codings
        self.owner: dict[int, int] = {}
        self.kept: dict[int, Tensor] = {}
        """My snapshots that later blocks may reach back to."""
        self.late: dict[int, Tensor] = {}
        """Gradients from later blocks, by snapshot."""
        self._sums: dict[int, Tensor] = {}
        self._keep = self._cuts = False
        self._out: list[Root] = []

    def reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        """Begin a pass over `blocks`."""
        self._cuts = cuts
        ranks = range(self.world.size)
        self.owner = {step: rank for b in blocks for rank in ranks for step in b.owned(rank)}
        self._keep = keep
        self.kept.clear()
        self.late.clear()
        self._sums.clear()

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        """Return the means of my snapshots."""
        before_kND = _SumBefore.apply(rows_tND, self, block)
        steps, reached, band = len(rows_tND), len(before_kND), self.part.band
        self._out = [] if steps else tied(before_kND)
        if not steps:
            return before_kND
        total_tND = banded_sum(rows_tND, 0, min(band, steps))
        total_tND = torch.cat([total_tND[:reached] + before_kND, total_tND[reached:]])
        first = block.bounds[self.world.rank]
        count_t = torch.arange(first + 1, first + steps + 1, device=rows_tND.device)
        return total_tND / count_t.clamp(max=band).to(rows_tND.dtype).view(-1, 1, 1)

    def _pieces(self, block: TimeBlock, owner: int, reader: int) -> Pieces:
        """Return what goes from one rank to another."""
        halo = halo_steps(block, reader, self.part.band)
        steps = [step for step in halo if self.owner[step] == owner]
        return pieces_of(steps, block.owned(reader), self.part.band)

    def _traffic(self, block: TimeBlock) -> tuple[list[Pieces], list[Pieces]]:
        """Return what this rank has for each, and what each has for it; itself for itself."""
        me, ranks = self.world.rank, range(self.world.size)
        sent = [self._pieces(block, me, rank) for rank in ranks]
        return sent, [self._pieces(block, rank, me) for rank in ranks]

    def _uses(self, block: TimeBlock, received: list[Pieces], like: Tensor) -> Tensor:
        """Return uses_kp: 1 where a piece is in the window of a snapshot."""
        readers = block.owned(self.world.rank)[: self.part.band - 1]
        rows = []
        for reader in readers:
            row: list[float] = []
            for pieces in received:
                used = set(used_by(reader, pieces, self.part.band))
                row += [float(number in used) for number in range(len(pieces))]
            rows.append(row)
        count = sum(map(len, received))
        return torch.tensor(rows, dtype=like.dtype, device=like.device).view(len(readers), count)

    def fetch(self, rows_tND: Tensor, block: TimeBlock) -> Tensor:
        """Return before_kND, the sums of my windows until my first snapshot."""
        if block.number in self._sums:
            return self._sums[block.number]
        me, first = self.world.rank, block.bounds[self.world.rank]
        known = self.kept | {first + i: rows.detach() for i, rows in enumerate(rows_tND)}
        sent, received = self._traffic(block)
        found = [row for rank, each in enumerate(sent) if rank != me for row in _added(each, known)]
        rows_pND = _stacked(found, rows_tND)
        codings = self._codings(block)
        came = self._swapped(rows_pND, sent, received, FORWARD, codings and codings[0]())
        parts = list(came.split([0 if r == me else len(each) for r, each in enumerate(received)]))
        parts[me] = _stacked(_added(received[me], known), rows_tND)
        uses_kp = self._uses(block, received, rows_tND)
        before_kND = (uses_kp @ torch.cat(parts).flatten(1)).view(len(uses_kp), *rows_tND.shape[1:])
        reach = block.stop - self.part.band + 1
        self.kept = {step: row for step, row in known.items() if step >= reach}
        if self._keep:
            self._sums[block.number] = before_kND
        return before_kND

    def _swapped(
        self,
        rows_pND: Tensor,
        sent: list[Pieces],
        received: list[Pieces],
        purpose: str,
        coding: Coding | None,
    ) -> Tensor:
        """Return the pieces that others have for me; they get theirs of mine."""
        counts = self._counts(sent), self._counts(received)
        if coding is None:
            pending = start_exchange(rows_pND, *counts, self.world, purpose)
        else:
            pending = start_coded(rows_pND.flatten(0, 1), None, self.world, purpose, coding)
        found = pending.wait(self.world, "exchanging snapshots")
        return found.view(sum(counts[1]), *rows_pND.shape[1:])

    def _counts(self, pieces: list[Pieces]) -> tuple[int, ...]:
        return tuple(0 if r == self.world.rank else len(each) for r, each in enumerate(pieces))

    def bring_home(self, grad_kND: Tensor, block: TimeBlock) -> Tensor:
        """Return the gradient of my rows of this block from all ranks that read them."""
        me, own = self.world.rank, block.owned(self.world.rank)
        sent, received = self._traffic(block)
        grad_tND = grad_kND.new_zeros(len(own), *grad_kND.shape[1:])
        uses_kp = self._uses(block, received, grad_kND)
        grad_pND = (uses_kp.T @ grad_kND.flatten(1)).view(uses_kp.size(1), *grad_kND.shape[1:])
        parts = list(grad_pND.split([len(each) for each in received]))
        mine, parts[me] = parts[me], parts[me][:0]
        codings = self._codings(block)
        coding = codings and codings[1]()
        came = self._swapped(torch.cat(parts), received, sent, BACKWARD, coding)
        returned = list(came.split(list(self._counts(sent))))
        returned[me] = mine
        for pieces, grads in zip(sent, returned, strict=True):
            steps = [s for piece in pieces[:1] for s in range(piece.start, pieces[-1].stop)]
            for step, grad in _shared(pieces, grads, [s for s in steps if self.owner[s] == me]):
                if step in own:
                    grad_tND[step - own.start] += grad
                elif not self._cuts:
                    self.late[step] = self.late[step] + grad if step in self.late else grad.clone()
        for row, step in enumerate(own):
            if step in self.late:
                grad_tND[row] += self.late.pop(step)
        return grad_tND

    def roots(self) -> list[Root]:
        """Return the sums on a rank without snapshots."""
        return self._out

    def settle(self) -> None:
        """Forget the block."""
        self._out = []


def _stacked(rows: list[Tensor], like_tND: Tensor) -> Tensor:
    return torch.stack(rows) if rows else like_tND.new_empty(0, *like_tND.shape[1:])


def _nested(pieces: Pieces, number: int) -> bool:
    """Return whether a piece is a part of the one before it."""
    return 0 < number < len(pieces) and pieces[number].stop == pieces[number - 1].stop


def _added(pieces: Pieces, known: Mapping[int, Tensor]) -> list[Tensor]:
    """Return the sum of each piece, each made from the one after it where that is a part of it."""
    rows: list[Tensor] = []
    for number in reversed(range(len(pieces))):
        is_whole = not _nested(pieces, number + 1)
        stop = pieces[number].stop if is_whole else pieces[number + 1].start
        parts = [known[step] for step in range(pieces[number].start, stop) if step in known]
        rows.append(sum(parts[1:], parts[0] if is_whole else rows[-1] + parts[0]))
    return rows[::-1]


def _shared(
    pieces: Pieces, grads_pND: Tensor, steps: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Yield the gradient of each snapshot: that of all pieces that it is in."""
    total = grads_pND[:0]
    for number, piece in enumerate(pieces):
        total = total + grads_pND[number] if _nested(pieces, number) else grads_pND[number]
        stop = pieces[number + 1].start if _nested(pieces, number + 1) else piece.stop
        yield from ((step, total) for step in steps if piece.start <= step < stop)


class _SumBefore(torch.autograd.Function):
    """Linear map from all ranks' rows to what a rank's windows have of them, and its transpose."""

    @staticmethod
    def forward(ctx: Any, rows_tND: Tensor, exchange: BandedHalo, block: TimeBlock) -> Tensor:
        ctx.exchange, ctx.block = exchange, block
        return exchange.fetch(rows_tND, block).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_kND: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.bring_home(grad_kND, ctx.block), None, None

"""Fetching the snapshots that a band reaches back to: the halo of a stretch of time.

Shapes: t snapshots of mine, h halo snapshots before them, N nodes, D columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm import BACKWARD, FORWARD, Coding, World, start_coded, start_exchange
from siafu.nn import BandedMean, banded_mean
from siafu.partitioning import TimeBlock
from siafu.strategy.time.exchanges import CodingsOf, Root, exactly, tied


class BandedHalo:
    """TM-GCN's mean over a band: each rank fetches the last B - 1 snapshots before its own.

    Nothing returns, and a block that is run again uses what was fetched before. In backward the
    gradients of the halo go to its owners; those of earlier blocks wait there for their turn.
    """

    name = "banded"

    def __init__(self, part: BandedMean, world: World, codings: CodingsOf = exactly) -> None:
        self.part, self.world, self._codings = part, world, codings
        self.owner: dict[int, int] = {}
        self.kept: dict[int, Tensor] = {}
        """My snapshots that later blocks may reach back to."""
        self.late: dict[int, Tensor] = {}
        """Gradients from later blocks, by snapshot."""
        self._halos: dict[int, Tensor] = {}
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
        self._halos.clear()

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        """Return the means of my snapshots."""
        halo = _FetchHalo.apply(rows_tND, self, block)
        self._out = [] if len(rows_tND) else tied(halo)
        return banded_mean(torch.cat([halo, rows_tND]), len(halo), self.part.band)

    def halo_steps(self, block: TimeBlock, rank: int) -> range:
        """Return the snapshots that a rank must know besides its own."""
        return halo_steps(block, rank, self.part.band)

    def traffic(self, block: TimeBlock) -> tuple[list[list[int]], list[list[int]]]:
        """Return which of my snapshots go to each rank, and which come from it."""
        me, ranks = self.world.rank, range(self.world.size)
        mine = self.halo_steps(block, me)
        sent = [
            [s for s in self.halo_steps(block, rank) if self.owner[s] == me and rank != me]
            for rank in ranks
        ]
        received = [[s for s in mine if self.owner[s] == rank and rank != me] for rank in ranks]
        return sent, received

    def fetch(self, rows_tND: Tensor, block: TimeBlock) -> Tensor:
        """Return halo_hND, from what was kept of it or from its owners."""
        if block.number in self._halos:
            return self._halos[block.number]
        first = block.bounds[self.world.rank]
        known = self.kept | {first + i: rows.detach() for i, rows in enumerate(rows_tND)}
        sent, received = self.traffic(block)
        empty = rows_tND.new_empty(0, *rows_tND.shape[1:])
        rows = torch.stack([known[s] for each in sent for s in each]) if any(sent) else empty
        codings = self._codings(block)
        found = self._swapped(rows, sent, received, FORWARD, codings and codings[0]())
        known |= dict(zip([s for each in received for s in each], found, strict=True))
        steps = self.halo_steps(block, self.world.rank)
        halo = torch.stack([known[s] for s in steps]) if len(steps) else empty
        reach = block.stop - self.part.band + 1
        self.kept = {s: r for s, r in known.items() if s >= reach and self.owner[s] == self._me}
        if self._keep:
            self._halos[block.number] = halo
        return halo

    def _swapped(
        self,
        rows_sND: Tensor,
        sent: list[list[int]],
        received: list[list[int]],
        purpose: str,
        coding: Coding | None,
    ) -> Tensor:
        """Return the snapshots that others have for me; they get theirs of mine."""
        if coding is None:
            counts = _lengths(sent), _lengths(received)
            pending = start_exchange(rows_sND, *counts, self.world, purpose)
        else:
            pending = start_coded(rows_sND.flatten(0, 1), None, self.world, purpose, coding)
        found = pending.wait(self.world, "exchanging snapshots")
        return found.view(sum(_lengths(received)), *rows_sND.shape[1:])

    @property
    def _me(self) -> int:
        return self.world.rank

    def bring_home(self, grad_hND: Tensor, block: TimeBlock) -> Tensor:
        """Return the gradient of my rows of this block from all ranks that read them."""
        sent, received = self.traffic(block)
        own = block.owned(self._me)
        grad_tND = grad_hND.new_zeros(len(own), *grad_hND.shape[1:])
        at = {step: row for row, step in enumerate(self.halo_steps(block, self._me))}
        leaving = [at[s] for each in received for s in each]
        codings = self._codings(block)
        coding = codings and codings[1]()
        returned = self._swapped(grad_hND[leaving], received, sent, BACKWARD, coding)
        arrived = list(zip([s for each in sent for s in each], returned, strict=True))
        arrived += [(s, grad_hND[row]) for s, row in at.items() if self.owner[s] == self._me]
        for step, grad in arrived:
            if step in own:
                grad_tND[step - own.start] += grad
            elif not self._cuts:
                self.late[step] = self.late[step] + grad if step in self.late else grad.clone()
        for row, step in enumerate(own):
            if step in self.late:
                grad_tND[row] += self.late.pop(step)
        return grad_tND

    def roots(self) -> list[Root]:
        """Return the halo on a rank without snapshots."""
        return self._out

    def settle(self) -> None:
        """Forget the block."""
        self._out = []


def halo_steps(block: TimeBlock, rank: int, band: int) -> range:
    """Return the snapshots that a rank must know besides its own of a block."""
    start, stop = block.bounds[rank], block.bounds[rank + 1]
    return range(max(0, start - band + 1) if stop > start else start, start)


def _lengths(lists: list[list[int]]) -> tuple[int, ...]:
    return tuple(len(each) for each in lists)


class _FetchHalo(torch.autograd.Function):
    """Linear map from all ranks' rows to a rank's halo, and its transpose."""

    @staticmethod
    def forward(ctx: Any, rows_tND: Tensor, exchange: BandedHalo, block: TimeBlock) -> Tensor:
        ctx.exchange, ctx.block = exchange, block
        return exchange.fetch(rows_tND, block).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hND: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.bring_home(grad_hND, ctx.block), None, None

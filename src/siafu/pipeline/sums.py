"""Gradients of an epoch summed over ranks that are in other epochs already, in one order.

A rank adds one slice of the columns for all, rank after rank, and hands the sum round, as
`comm.sum_in_order` does; here nobody waits. All ranks get the same bits.

Shapes: P ranks, K columns, W columns of a slice.
"""

import torch
from torch import Tensor

from siafu.comm import Mailbox, World

TERM, SUM = 2, 3
"""Kinds of mail: a rank's term for a slice, and the sum of a slice."""


class EpochSums:
    """Sums of one row of numbers an epoch."""

    def __init__(self, world: World, mail: Mailbox, width: int) -> None:
        self._world, self._mail, self._width = world, mail, width
        self._slice = -(-width // world.size)
        self._terms: dict[int, dict[int, Tensor]] = {}
        self._sums: dict[int, dict[int, Tensor]] = {}

    def give(self, epoch: int, mine_K: Tensor) -> None:
        """Give this rank's term."""
        padded = mine_K.new_zeros(self._slice * self._world.size)
        padded[: self._width] = mine_K
        for rank, piece_W in enumerate(padded.view(self._world.size, -1)):
            if rank == self._world.rank:
                self.take(TERM, epoch, rank, piece_W)
            else:
                self._mail.send(rank, (TERM, epoch), piece_W.unsqueeze(0), "gradient")

    def take(self, kind: int, epoch: int, sender: int, piece_W: Tensor) -> None:
        """Take in what a rank sent."""
        if kind == SUM:
            self._sums.setdefault(epoch, {})[sender] = piece_W
            return
        terms = self._terms.setdefault(epoch, {})
        terms[sender] = piece_W
        if len(terms) < self._world.size:
            return
        total = terms[0].clone()
        for rank in range(1, self._world.size):
            total += terms[rank]
        del self._terms[epoch]
        for rank in range(self._world.size):
            if rank != self._world.rank:
                self._mail.send(rank, (SUM, epoch), total.unsqueeze(0), "gradient")
        self._sums.setdefault(epoch, {})[self._world.rank] = total

    def result(self, epoch: int) -> Tensor | None:
        """Return the sum once it is whole; it is then let go of."""
        if len(self._sums.get(epoch, {})) < self._world.size:
            return None
        pieces = self._sums.pop(epoch)
        return torch.cat([pieces[rank] for rank in range(self._world.size)])[: self._width]

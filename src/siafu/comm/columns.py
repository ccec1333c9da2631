"""Turning rows into columns: from "all columns of my rows" to "my columns of all rows", and back.

One all-to-all each way, whose traffic does not depend on the graph: of N rows of D columns over P
ranks, N D (P - 1) / P numbers leave all ranks together. Counted, and differentiable: the gradient
of one way is the other way.

Shapes: n rows that I own of N, d columns that I take of D; a column may itself be of several
numbers, as a head is.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm.halo import PendingRows, start_exchange
from siafu.comm.redistribute import even_counts
from siafu.comm.world import World

_FORWARD, _BACKWARD = "column_forward", "column_backward"


@dataclass(frozen=True, slots=True)
class Turn:
    """How many rows each rank has, and how many columns each takes."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def even(cls, rows: tuple[int, ...], width: int) -> "Turn":
        """Return the turn in which all ranks take as many columns, or one more than others."""
        return cls(rows, even_counts(width, len(rows)))

    def span(self, rank: int) -> slice:
        """Return which columns a rank takes."""
        ends = list(accumulate(self.columns, initial=0))
        return slice(ends[rank], ends[rank + 1])

    def columns_sent(self, rank: int) -> int:
        """Return the columns that leave a rank on the way there: those that others take."""
        return self.rows[rank] * (sum(self.columns) - self.columns[rank])

    def columns_returned(self, rank: int) -> int:
        """Return the columns that leave a rank on the way back: of rows that are not its own."""
        return self.columns[rank] * (sum(self.rows) - self.rows[rank])

    def start(self, x: Tensor, world: World, purpose: str, *, back: bool) -> PendingRows:
        """Start sending each rank what it takes of x_nD, or `back` what it owns of x_Nd."""
        mine, one = world.rank, math.prod(x.shape[2:])
        counts = [count * self.columns[mine] * one for count in self.rows]
        if back:
            counts = [count * self.rows[mine] * one for count in self.columns]
        pieces = x.split(self.rows) if back else x.split(self.columns, dim=1)
        flat = [piece.reshape(-1) for piece in pieces]
        # What stays here is not sent.
        flat[mine], counts[mine] = flat[mine][:0], 0
        sent = tuple(piece.numel() for piece in flat)
        return start_exchange(torch.cat(flat), sent, tuple(counts), world, purpose)

    def end(self, pending: PendingRows, x: Tensor, world: World, *, back: bool) -> Tensor:
        """Return x_Nd, or `back` x_nD, once all of it has come; `x` is what was sent."""
        mine, tail = world.rank, x.shape[2:]
        rows = [self.rows[mine]] * world.size if back else list(self.rows)
        columns = list(self.columns) if back else [self.columns[mine]] * world.size
        stays = x.split(self.rows)[mine] if back else x[:, self.span(mine)]
        one = math.prod(tail)
        sizes = [one * r * c for r, c in zip(rows, columns, strict=True)]
        sizes[mine] = 0
        found = list(pending.wait(world, "turning rows and columns").split(sizes))
        found[mine] = stays
        shapes = zip(found, rows, columns, strict=True)
        return torch.cat([part.reshape(r, c, *tail) for part, r, c in shapes], dim=int(back))


class _Turned(torch.autograd.Function):
    """Several tensors there, or back; their gradients the other way, all at once."""

    @staticmethod
    def forward(
        ctx: Any, turns: tuple[Turn, ...], world: World, back: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.turns, ctx.world, ctx.back = turns, world, back
        return _all(turns, world, tensors, _FORWARD, back=back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        wanted = [n for n, is_wanted in enumerate(ctx.needs_input_grad[3:]) if is_wanted]
        turns, sent = tuple(ctx.turns[n] for n in wanted), tuple(grads[n] for n in wanted)
        found = iter(_all(turns, ctx.world, sent, _BACKWARD, back=not ctx.back))
        return None, None, None, *(next(found) if n in wanted else None for n in range(len(grads)))


def _all(
    turns: tuple[Turn, ...], world: World, tensors: tuple[Tensor, ...], purpose: str, *, back: bool
) -> tuple[Tensor, ...]:
    pairs = list(zip(turns, tensors, strict=True))
    pending = [turn.start(tensor, world, purpose, back=back) for turn, tensor in pairs]
    return tuple(
        turn.end(coming, tensor, world, back=back)
        for coming, (turn, tensor) in zip(pending, pairs, strict=True)
    )


def to_columns(
    turns: tuple[Turn, ...], world: World, tensors: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return my columns of all rows of each tensor, differentiably; every rank calls it."""
    turned: tuple[Tensor, ...] = _Turned.apply(turns, world, False, *tensors)
    return turned


def to_rows(turn: Turn, world: World, x_Nd: Tensor) -> Tensor:
    """Return all columns of my rows, differentiably; every rank calls it."""
    (turned,) = _Turned.apply((turn,), world, True, x_Nd)
    return turned


def share_rows(x: Tensor, world: World) -> Tensor:
    """Return the rows of all ranks in their order, on every rank; a rank's at a time."""
    counts = [int(row[0]) for row in world.gather_numbers([float(len(x))])]
    found = {world.rank: x}
    for distance in range(1, world.size):
        to, source = (world.rank + distance) % world.size, (world.rank - distance) % world.size
        sent = tuple(len(x) if rank == to else 0 for rank in range(world.size))
        read = tuple(counts[source] if rank == source else 0 for rank in range(world.size))
        pending = start_exchange(x, sent, read, world, "control")
        found[source] = pending.wait(world, "sharing rows of all ranks")
    return torch.cat([found[rank] for rank in range(world.size)])

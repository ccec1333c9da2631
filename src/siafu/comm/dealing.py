"""Rows of some nodes on their way from their snapshots to their nodes' ranks, or back, begun and
ended apart, so that others compute in between; in backward their gradients travel likewise.

Begin(x) starts it and returns a token without numbers; End(token) waits for it. Backward of End
starts the gradients home, backward of Begin waits for them.

Shapes: T snapshots, t of them mine, n of these nodes mine, D columns, P ranks.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm.halo import PendingRows, start_exchange
from siafu.comm.redistribute import BACKWARD, FORWARD, Redistribution
from siafu.comm.world import World

Pieces = tuple[Tensor, ...]


class Dealing:
    """One way of one group of nodes; `outward` to their ranks, else home to their snapshots.

    Outward it takes P pieces, my snapshots of each rank's nodes, and gives x_TnD; home it takes
    x_TnD and gives P pieces.
    """

    def __init__(
        self, plan: Redistribution, world: World, *, outward: bool, is_gradient: bool = False
    ) -> None:
        self._plan, self._world, self._outward = plan, world, outward
        self._is_gradient = is_gradient
        self._pending: PendingRows | None = None
        self._mine: Tensor | None = None
        self.back: Dealing | None = None
        """The way of the gradients, once it has begun."""

    def turned(self) -> "Dealing":
        """Return the way of the gradients."""
        return Dealing(self._plan, self._world, outward=not self._outward, is_gradient=True)

    def begin(self, *given: Tensor) -> Tensor:
        """Start it, differentiably; return a token to `end` it with."""
        token: Tensor = _Begin.apply(self, *given)
        return token

    def end(self, token: Tensor) -> Pieces:
        """Return what has come: x_TnD alone, or P pieces."""
        found: Pieces = _End.apply(self, token)
        return found

    def start(self, given: Pieces) -> None:
        """Start it."""
        me = self._world.rank
        pieces = given if self._outward else given[0].split(list(self._plan.steps))
        self._mine, tail = pieces[me], pieces[me].shape[2:]
        rows = [p.reshape(p.size(0) * p.size(1), *tail) for p in pieces]
        rows[me] = rows[me][:0]
        counts = [steps * n for steps, n in self._shapes()]
        counts[me] = 0
        purpose = BACKWARD if self._is_gradient else FORWARD
        sent = tuple(len(piece) for piece in rows)
        self._pending = start_exchange(torch.cat(rows), sent, tuple(counts), self._world, purpose)

    def wait(self) -> Pieces:
        """Return what has come."""
        pending, mine, me = self._pending, self._mine, self._world.rank
        assert pending is not None, "it was started"
        assert mine is not None, "it was started"
        self._pending = self._mine = None
        shapes, tail = self._shapes(), mine.shape[2:]
        counts = [0 if r == me else steps * n for r, (steps, n) in enumerate(shapes)]
        found = pending.wait(self._world, "redistributing rows").split(counts)
        pieces = [
            mine if rank == me else part.view(*shape, *tail)
            for rank, (part, shape) in enumerate(zip(found, shapes, strict=True))
        ]
        return (torch.cat(pieces),) if self._outward else tuple(pieces)

    def _shapes(self) -> list[tuple[int, int]]:
        """Return snapshots and nodes of what comes from each rank."""
        me, plan = self._world.rank, self._plan
        if self._outward:
            return [(steps, plan.nodes[me]) for steps in plan.steps]
        return [(plan.steps[me], nodes) for nodes in plan.nodes]


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dealing: Dealing, *given: Tensor) -> Tensor:
        dealing.back = ctx.back = dealing.turned()
        dealing.start(given)
        return given[0].new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, nothing: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.back.wait()


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dealing: Dealing, token: Tensor) -> Pieces:
        ctx.back = dealing.back
        # None may be a view of what was given: autograd would take it for an input.
        return tuple(piece.clone() for piece in dealing.wait())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        ctx.back.start(tuple(grads))
        return None, grads[0].new_empty(0)

"""Moving rows along time: from "my snapshots of all nodes" to "all snapshots of my nodes" and
back, snapshots to all ranks, rows to one neighbour. Counted, and differentiable but for the last.
Rows that are dealt out may be rounded on their way.

Shapes: T snapshots of a block, t of them mine, N nodes, n of them mine, D columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm.coding import Coding
from siafu.comm.halo import PendingRows, start_coded, start_exchange
from siafu.comm.peers import post
from siafu.comm.staging import room_on_host, to_host
from siafu.comm.world import World

FORWARD, BACKWARD = "time_forward", "time_backward"
"""Purposes of what travels along time."""

MakeCodings = tuple[Callable[[], Coding], Callable[[], Coding]]
"""Of rows on their way out, and of their gradients back; made when needed, for they are large."""


@dataclass(frozen=True, slots=True)
class Redistribution:
    """How many snapshots each rank holds before, and how many nodes after."""

    steps: tuple[int, ...]
    nodes: tuple[int, ...]

    def rows_sent(self) -> int:
        """Return the rows that leave all ranks together, one way: T N (P - 1) / P if even."""
        total = sum(self.nodes)
        pairs = zip(self.steps, self.nodes, strict=True)
        return sum(steps * (total - nodes) for steps, nodes in pairs)


def even_counts(total: int, num_parts: int) -> tuple[int, ...]:
    """Return counts that add up to `total` and differ by one at most."""
    cuts = [total * part // num_parts for part in range(num_parts + 1)]
    return tuple(b - a for a, b in pairwise(cuts))


def _spread(
    x_tND: Tensor, plan: Redistribution, world: World, purpose: str, coding: Coding | None
) -> Tensor:
    """Return x_TnD: every rank's snapshots of my nodes."""
    pieces = x_tND.split(list(plan.nodes), dim=1)
    shapes = [(steps, plan.nodes[world.rank]) for steps in plan.steps]
    return torch.cat(_swap(pieces, shapes, world, purpose, coding))


def _collect(
    x_TnD: Tensor, plan: Redistribution, world: World, purpose: str, coding: Coding | None
) -> Tensor:
    """Return x_tND: all nodes of my snapshots."""
    pieces = x_TnD.split(list(plan.steps))
    shapes = [(plan.steps[world.rank], nodes) for nodes in plan.nodes]
    return torch.cat(_swap(pieces, shapes, world, purpose, coding), dim=1)


def _swap(
    pieces: tuple[Tensor, ...],
    shapes: list[tuple[int, int]],
    world: World,
    purpose: str,
    coding: Coding | None,
) -> list[Tensor]:
    """Return what each rank has for me, of these shapes; it gets its piece of mine."""
    mine, tail = world.rank, pieces[0].shape[2:]
    rows = [piece.reshape(piece.size(0) * piece.size(1), *tail) for piece in pieces]
    rows[mine] = rows[mine][:0]
    counts = [0 if rank == mine else steps * n for rank, (steps, n) in enumerate(shapes)]
    if coding is None:
        sent = tuple(len(piece) for piece in rows)
        pending = start_exchange(torch.cat(rows), sent, tuple(counts), world, purpose)
    else:
        pending = start_coded(torch.cat(rows), None, world, purpose, coding)
    found = pending.wait(world, "redistributing rows").split(counts)
    return [
        pieces[mine] if rank == mine else part.view(*shape, *tail)
        for rank, (part, shape) in enumerate(zip(found, shapes, strict=True))
    ]


class _ToNodes(torch.autograd.Function):
    """A permutation of rows over the ranks; its transpose is the way back."""

    @staticmethod
    def forward(
        ctx: Any, x_tND: Tensor, plan: Redistribution, world: World, codings: MakeCodings | None
    ) -> Tensor:
        ctx.plan, ctx.world, ctx.codings = plan, world, codings
        return _spread(x_tND, plan, world, FORWARD, codings and codings[0]())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TnD: Tensor) -> tuple[Tensor, None, None, None]:
        coding = ctx.codings and ctx.codings[1]()
        return _collect(grad_TnD, ctx.plan, ctx.world, BACKWARD, coding), None, None, None


class _ToSteps(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(
        ctx: Any, x_TnD: Tensor, plan: Redistribution, world: World, codings: MakeCodings | None
    ) -> Tensor:
        ctx.plan, ctx.world, ctx.codings = plan, world, codings
        return _collect(x_TnD, plan, world, FORWARD, codings and codings[0]())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_tND: Tensor) -> tuple[Tensor, None, None, None]:
        coding = ctx.codings and ctx.codings[1]()
        return _spread(grad_tND, ctx.plan, ctx.world, BACKWARD, coding), None, None, None


def to_nodes(
    x_tND: Tensor, plan: Redistribution, world: World, codings: MakeCodings | None = None
) -> Tensor:
    """Return x_TnD, all snapshots of my nodes, differentiably; every rank calls it."""
    return x_tND if world.size == 1 else _ToNodes.apply(x_tND, plan, world, codings)


def to_steps(
    x_TnD: Tensor, plan: Redistribution, world: World, codings: MakeCodings | None = None
) -> Tensor:
    """Return x_tND, all nodes of my snapshots, differentiably; every rank calls it."""
    return x_TnD if world.size == 1 else _ToSteps.apply(x_TnD, plan, world, codings)


class _GatherSteps(torch.autograd.Function):
    """Every rank gets every row; gradients of the copies are added up at home, rank by rank."""

    @staticmethod
    def forward(ctx: Any, x_tD: Tensor, steps: tuple[int, ...], world: World) -> Tensor:
        ctx.steps, ctx.world = steps, world
        own, others = world.rank, world.size - 1
        sent = tuple(0 if rank == own else len(x_tD) for rank in range(world.size))
        counts = [0 if rank == own else count for rank, count in enumerate(steps)]
        rows = x_tD.repeat(others, *[1] * (x_tD.dim() - 1))
        pending = start_exchange(rows, sent, tuple(counts), world, FORWARD)
        parts = list(pending.wait(world, "gathering snapshots").split(counts))
        parts[own] = x_tD
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None, None]:
        own, count = ctx.world.rank, ctx.steps[ctx.world.rank]
        parts = list(grad_TD.split(list(ctx.steps)))
        mine, parts[own] = parts[own], parts[own][:0]
        sent = tuple(len(part) for part in parts)
        counts = [0 if rank == own else count for rank in range(ctx.world.size)]
        pending = start_exchange(torch.cat(parts), sent, tuple(counts), ctx.world, BACKWARD)
        returned = list(pending.wait(ctx.world, "returning gradients of snapshots").split(counts))
        returned[own] = mine
        return torch.stack(returned).sum(0), None, None


def gather_steps(x_tD: Tensor, steps: tuple[int, ...], world: World) -> Tensor:
    """Return x_TD, the rows of all ranks in order, differentiably; every rank calls it."""
    return x_tD if world.size == 1 else _GatherSteps.apply(x_tD, steps, world)


def start_send(rows: Tensor, peer: int, world: World, purpose: str, kind: str) -> PendingRows:
    """Start sending rows to one rank, which receives them under the same `kind`."""
    rows = rows.detach().contiguous()
    carrier = to_host(rows) if world.stages_through_host else rows
    world.meter.count(purpose, carrier.nbytes, 1, world.group_rank(peer))
    messages = post([(peer, dist.isend, carrier)], world.tag_of(kind), world, purpose)
    return PendingRows(carrier[:0], messages, carrier)


def start_receive(like: Tensor, peer: int, world: World, purpose: str, kind: str) -> PendingRows:
    """Start receiving rows of the shape of `like` from one rank."""
    through_host = world.stages_through_host
    rows = room_on_host(like) if through_host else torch.empty_like(like)
    messages = post([(peer, dist.irecv, rows)], world.tag_of(kind), world, purpose)
    return PendingRows(rows, messages, rows[:0])

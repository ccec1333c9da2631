"""Handing the state of a recurrence on from rank to rank, one group of nodes after another.

Snapshots stay where they are. A rank keeps the states it was given, so that a block that is run
again needs no messages; the gradients of states travel the other way in backward.

Shapes: t snapshots of mine, N nodes, D columns in, O out, K groups of nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm import (
    BACKWARD,
    FORWARD,
    PendingRows,
    World,
    even_counts,
    start_receive,
    start_send,
)
from siafu.nn import State, TemporalLayer
from siafu.partitioning import TimeBlock
from siafu.strategy.time.exchanges import Root


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stretch stands in the chain of stretches."""

    block: int
    rank: int


Key = tuple[str, int, int, int]
"""What travels: purpose, and the stretch (block, rank) and group whose first state it is of."""


class Wavefront:
    """A recurrence whose state goes from each rank's stretch of a block to the next one's."""

    name = "wavefront"

    def __init__(
        self, part: TemporalLayer, number: int, num_nodes: int, chunks: int, world: World
    ) -> None:
        self.part, self.number, self.world = part, number, world
        self.spans = list(pairwise(accumulate(even_counts(num_nodes, chunks), initial=0)))
        self.states: dict[int, list[State | None]] = {}
        """What each block of mine began with, by group of nodes."""
        self.keep = self.cuts = False
        self._chain: list[_Place] = []
        self._local: dict[Key, State] = {}
        self._sending: list[PendingRows] = []
        self._held: list[tuple[State, _Place, Key]] = []
        """What goes to another block, where messages can't pass one another."""

    def reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        """Begin a pass over `blocks`."""
        self.cuts = cuts
        self._chain = [_Place(b.number, rank) for b in blocks for rank in b.busy_ranks()]
        self.keep = keep
        self.states.clear()
        self._local.clear()
        self._held.clear()

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        """Return out_tNO."""
        self.send_held(FORWARD)
        if not len(rows_tND):
            return rows_tND.new_empty(0, rows_tND.size(1), self.part.out_width)
        run = _Run(self, _Place(block.number, self.world.rank))
        if torch.is_grad_enabled():
            return _HandOn.apply(run, rows_tND, *self.part.parameters())
        return run.forward(rows_tND)

    def roots(self) -> list[Root]:
        """Return nothing: gradients of states travel within backward."""
        return []

    def settle(self) -> None:
        """Do nothing: the gradients of the border are on their way to the stretch before.

        To wait here could be for ever: who takes them does so after running the block before,
        and other parts of the model may need this rank for that.
        """

    def wait_for_sends(self) -> None:
        """Wait, after the last block of a pass, until all that was handed on was taken."""
        for pending in self._sending:
            pending.wait(self.world, "handing states on")
        self._sending = []

    def neighbour(self, place: _Place, offset: int) -> _Place | None:
        """Return the stretch before (-1) or after (1) this one."""
        index = self._chain.index(place) + offset
        return self._chain[index] if 0 <= index < len(self._chain) else None

    def hand(self, tensors: State, by: _Place, to: _Place, key: Key) -> None:
        """Give tensors to a stretch, by message or, where it is this rank's own, in memory.

        NCCL matches messages by their order alone. There, what goes to another block is kept until
        this rank runs that block too, and leaves when the other one begins to take it.
        """
        if to.rank == self.world.rank:
            self._local[key] = tuple(tensor.detach() for tensor in tensors)
        elif by.block != to.block and self.world.backend == "nccl":
            self._held.append((tuple(tensor.detach() for tensor in tensors), to, key))
        else:
            self._send(tensors, to, key)

    def send_held(self, purpose: str) -> None:
        """Send what was kept for the block that is run now, before anything else in it."""
        held = self._held
        self._held = [one for one in held if one[2][0] != purpose]
        for tensors, to, key in held:
            if key[0] == purpose:
                self._send(tensors, to, key)

    def _send(self, tensors: State, to: _Place, key: Key) -> None:
        kind = f"{self.number} {key}"
        self._sending.append(start_send(_packed(tensors), to.rank, self.world, key[0], kind))

    def start_taking(self, like: State, source: _Place, key: Key) -> PendingRows | State:
        """Start to take tensors of the shapes of `like` from a stretch."""
        if source.rank == self.world.rank:
            return self._local.pop(key)
        kind = f"{self.number} {key}"
        return start_receive(_packed(like), source.rank, self.world, key[0], kind)

    def take(self, pending: PendingRows | State, like: State) -> State:
        """Return the tensors once they are here."""
        if isinstance(pending, tuple):
            return pending
        packed = pending.wait(self.world, "taking states over")
        pieces = packed.split([tensor.size(1) for tensor in like], dim=1)
        return tuple(piece.contiguous() for piece in pieces)


def _packed(tensors: State) -> Tensor:
    return torch.cat([tensor.detach() for tensor in tensors], dim=1)


class _Run:
    """One stretch run forward, group by group, and backward in the same order."""

    def __init__(self, exchange: Wavefront, place: _Place) -> None:
        self.exchange, self.place = exchange, place
        self.before, self.after = exchange.neighbour(place, -1), exchange.neighbour(place, 1)
        self.is_new = place.block not in exchange.states
        self._groups: list[tuple[Tensor, State, Tensor, State]] = []
        """For backward: rows, first state, result and last state of each group."""

    def _key(self, purpose: str, place: _Place, group: int) -> Key:
        return purpose, place.block, place.rank, group

    def forward(self, rows_tND: Tensor) -> Tensor:
        """Return out_tNO; states come from the stretch before and go to the one after."""
        exchange, outs = self.exchange, []
        given = self._given(rows_tND)
        for group, (lo, hi) in enumerate(exchange.spans):
            rows, state = rows_tND[:, lo:hi], given[group]
            if isinstance(state, PendingRows):
                state = given[group] = exchange.take(state, exchange.part.begin(rows[0]))
            out, end = self._compute(rows, state)
            outs.append(out.detach())
            if self.is_new and self.after is not None:
                key = self._key(FORWARD, self.after, group)
                exchange.hand(end, self.place, self.after, key)
        if self.is_new and exchange.keep:
            exchange.states[self.place.block] = given
        return torch.cat(outs, dim=1)

    def _given(self, rows_tND: Tensor) -> list[Any]:
        """Return each group's first state: kept, on its way, or None at the beginning of time."""
        exchange = self.exchange
        if not self.is_new:
            return list(exchange.states[self.place.block])
        if self.before is None:
            return [None] * len(exchange.spans)
        given = []
        for group, (lo, hi) in enumerate(exchange.spans):
            like = exchange.part.begin(rows_tND[0, lo:hi])
            key = self._key(FORWARD, self.place, group)
            given.append(exchange.start_taking(like, self.before, key))
        return given

    def _compute(self, rows: Tensor, state: State | None) -> tuple[Tensor, State]:
        part = self.exchange.part
        if not torch.is_grad_enabled():
            return part(rows, part.begin(rows[0]) if state is None else state)
        rows = rows.detach().requires_grad_()
        leaves: State = ()
        if state is not None:
            state = leaves = tuple(tensor.detach().requires_grad_() for tensor in state)
        out, end = part(rows, part.begin(rows[0]) if state is None else state)
        self._groups.append((rows, leaves, out, end))
        return out, end

    def _linked(self, place: _Place | None) -> _Place | None:
        """Return a neighbour that gradients are exchanged with."""
        is_cut = self.exchange.cuts and place is not None and place.block != self.place.block
        return None if is_cut else place

    def backward(self, grad_tNO: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return gradients of rows and parameters; those of states come and go as states did."""
        exchange, after, before = self.exchange, self._linked(self.after), self._linked(self.before)
        parameters = list(exchange.part.parameters())
        coming: list[PendingRows | State] = []
        exchange.send_held(BACKWARD)
        if after is not None:
            for group, (_, _, _, end) in enumerate(self._groups):
                key = self._key(BACKWARD, after, group)
                coming.append(exchange.start_taking(end, after, key))
        grad_rows: list[Tensor] = []
        total: list[Tensor | None] = [None] * len(parameters)
        for group, (rows, leaves, out, end) in enumerate(self._groups):
            lo, hi = exchange.spans[group]
            heads, grads = [out], [grad_tNO[:, lo:hi]]
            if after is not None:
                heads, grads = [out, *end], [*grads, *exchange.take(coming[group], end)]
            inputs = [rows, *leaves, *parameters]
            found = list(torch.autograd.grad(heads, inputs, grads, allow_unused=True))
            grad_rows.append(_or_zero(found[0], rows))
            states = found[1 : 1 + len(leaves)]
            if before is not None:
                grad = tuple(_or_zero(g, leaf) for g, leaf in zip(states, leaves, strict=True))
                exchange.hand(grad, self.place, before, self._key(BACKWARD, self.place, group))
            total = [_added(a, b) for a, b in zip(total, found[1 + len(leaves) :], strict=True)]
        self._groups = []
        return torch.cat(grad_rows, dim=1), total


def _or_zero(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class _HandOn(torch.autograd.Function):
    """A stretch as one step of autograd, so that groups follow one another in backward too."""

    @staticmethod
    def forward(ctx: Any, run: _Run, rows_tND: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        with torch.enable_grad():
            return run.forward(rows_tND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_tNO: Tensor) -> tuple[Any, ...]:
        with torch.enable_grad():
            grad_rows, grads = ctx.run.backward(grad_tNO)
        return None, grad_rows, *grads

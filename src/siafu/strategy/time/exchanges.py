"""Temporal parts of a model on one rank: what each keeps at the borders of time blocks, and how it
reaches what other ranks know.

A block is run forward once without gradients to learn the borders (`sweep`), and again with them,
last block first. An exchange hands the gradient of a border to the block before.

Shapes: T snapshots of a block, t of them mine, N nodes, n of them mine, D columns in, O out.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from siafu.comm import (
    MakeCodings,
    Redistribution,
    World,
    even_counts,
    gather_steps,
    to_steps,
    to_vertices,
)
from siafu.nn import EvolvingGCN, Rows, State, StepGraph, TemporalLayer, summaries
from siafu.partitioning import TimeBlock

Root = tuple[Tensor, Tensor]
"""A tensor to start backward from, and its gradient."""

CodingsOf = Callable[[TimeBlock], MakeCodings | None]
"""How rows of a block are rounded on their way, if they are."""


class TemporalExchange(Protocol):
    """One temporal part on one rank."""

    def reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        """Begin a pass over `blocks`; `keep` their borders when they will be run again.

        `cuts`: they are run in order, with gradients that end at their borders.
        """
        ...

    def roots(self) -> list[Root]:
        """Return where backward of the block just run must start, besides its loss."""
        ...

    def settle(self) -> None:
        """Take the gradients of the border, after backward; the block is done with."""
        ...


class Borders:
    """States at the starts of blocks, and the gradient that the block after this one left."""

    def __init__(self, *, keep: bool = False, cuts: bool = False) -> None:
        self._states: dict[int, State] = {}
        self._keep, self._cuts = keep, cuts
        self._leaves: State = ()
        self._ends: State = ()
        self._grads: list[Tensor | None] = []

    def enter(self, block: TimeBlock, first: State | None) -> State:
        """Return the state before a block: `first` for the first one."""
        if first is not None:
            self._leaves = ()
            return first
        state = self._states[block.number] if self._keep else self._states.pop(block.number)
        if torch.is_grad_enabled() and not self._cuts:
            state = self._leaves = tuple(tensor.detach().requires_grad_() for tensor in state)
        return state

    def leave(self, block: TimeBlock, state: State) -> None:
        """Note the state after a block."""
        if torch.is_grad_enabled() and not self._cuts:
            self._ends = state
        else:
            self._states[block.number + 1] = tuple(tensor.detach() for tensor in state)

    def roots(self) -> list[Root]:
        """Return the states after the block with the gradients that later blocks gave them."""
        pairs = zip(self._ends, self._grads, strict=False)
        return [(end, grad) for end, grad in pairs if grad is not None and end.requires_grad]

    def settle(self) -> None:
        """Take the gradients of the state before the block."""
        self._grads = [leaf.grad for leaf in self._leaves]
        self._leaves = self._ends = ()


def tied(out: Tensor) -> list[Root]:
    """Return a root that makes backward pass through `out` on a rank without a loss of its own.

    Ranks exchange gradients in backward, so none may leave a step out.
    """
    return [(out, torch.zeros_like(out))] if out.requires_grad else []


def exactly(block: TimeBlock) -> None:
    """Return that the rows of a block travel as they are."""


class AllToAll:
    """The paper's exchange: rows are dealt out by node, run along time, and collected again."""

    name = "all-to-all"

    def __init__(
        self,
        part: TemporalLayer,
        num_vertices: int,
        world: World,
        codings: tuple[CodingsOf, CodingsOf] | None = None,
    ) -> None:
        """`codings` round rows on their way to their nodes, and back to their snapshots."""
        self.part, self.world = part, world
        self._codings = codings or (exactly, exactly)
        self._vertices = even_counts(num_vertices, world.size)
        self._borders = Borders()
        self._out: list[Root] = []

    def reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        """Begin a pass."""
        self._borders = Borders(keep=keep, cuts=cuts)

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        """Return out_tNO; nothing worth reading unless it `returns`."""
        plan = Redistribution(block.steps, self._vertices)
        coding_in, coding_out = (codings(block) for codings in self._codings)
        x_TnD = to_vertices(rows_tND, plan, self.world, coding_in)
        first = None if block.number else self.part.begin(x_TnD[0])
        out_TnO, state = self.part(x_TnD, self._borders.enter(block, first))
        self._borders.leave(block, state)
        if not returns:
            return rows_tND
        out_tNO = to_steps(out_TnO, plan, self.world, coding_out)
        self._out = [] if len(rows_tND) else tied(out_tNO)
        return out_tNO

    def roots(self) -> list[Root]:
        """Return the states at the end, and the result on a rank without snapshots."""
        return self._borders.roots() + self._out

    def settle(self) -> None:
        """Take the border's gradients."""
        self._borders.settle()
        self._out = []


class Evolution:
    """EvolveGCN's weights: every rank runs the small recurrence over all snapshots of the block.

    The variant o reads no rows, so nothing is exchanged; for h the chosen rows of every snapshot go
    to all ranks. Each rank passes on the part of the border's gradient that its own snapshots
    caused; reducing the parameters' gradients adds the parts up.
    """

    name = "none"

    def __init__(self, part: EvolvingGCN, world: World) -> None:
        self.part, self.world = part, world
        self._borders = Borders()
        self._gathered: list[Root] = []

    def reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        """Begin a pass."""
        self._borders = Borders(keep=keep, cuts=cuts)

    def forward(
        self,
        rows: Sequence[Rows],
        graphs: Sequence[StepGraph],
        block: TimeBlock,
        *,
        returns: bool,
    ) -> list[Rows]:
        """Return the rows of my snapshots."""
        summary = summaries(self.part, rows, graphs)
        if summary is not None:
            if torch.is_grad_enabled() and not summary.requires_grad:
                summary.requires_grad_()
            summary = gather_steps(summary, block.steps, self.world)
            self._gathered = [] if len(rows) else tied(summary)
        before = self._borders.enter(block, None if block.number else self.part.begin())
        weights, after = self.part.evolve(summary, before, block.stop - block.start)
        self._borders.leave(block, after)
        if not returns:
            return []
        mine = [weights[step - block.start] for step in block.owned(self.world.rank)]
        triples = zip(rows, graphs, mine, strict=True)
        return [self.part.apply_weight(x, at.neighbours, q_DO) for x, at, q_DO in triples]

    def roots(self) -> list[Root]:
        """Return the last weight, and the summaries on a rank without snapshots."""
        return self._borders.roots() + self._gathered

    def settle(self) -> None:
        """Take the border's gradient."""
        self._borders.settle()
        self._gathered = []

"""Temporal parts of a model on one rank: what each keeps at the borders of time blocks, and how it
reaches what other ranks know.

A block is run forward once without gradients to learn the borders (`sweep`), and again with them,
last block first. An exchange hands the gradient of a border to the block before.

Shapes: T snapshots of a block, t of them mine, N nodes, n of them mine, D columns in, O out.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from siafu.comm import (
    Dealing,
    MakeCodings,
    Redistribution,
    World,
    even_counts,
    gather_steps,
    to_nodes,
    to_steps,
)
from siafu.nn import EvolvingGCN, Rows, State, StepGraph, TemporalLayer, summaries
from siafu.ops import sum_type
from siafu.partitioning import TimeBlock

GROUPS, LEAST_GROUP = 4, 1024
"""Of nodes, whose rows are redistributed one after another; smaller ones are no message worth."""

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


def _like(part: TemporalLayer) -> Tensor:
    return next(part.parameters(), torch.empty(0))


def exactly(block: TimeBlock) -> None:
    """Return that the rows of a block travel as they are."""


class AllToAll:
    """The paper's exchange: rows are dealt out by node, run along time, and collected again."""

    name = "all-to-all"

    def __init__(
        self,
        part: TemporalLayer,
        num_nodes: int,
        world: World,
        codings: tuple[CodingsOf, CodingsOf] | None = None,
        chunks: int = 0,
    ) -> None:
        """`codings` round rows on their way to their nodes, and back to their snapshots.

        `chunks`: groups of nodes that travel one after another, 0 for a few.
        """
        self.part, self.world, self._chunks = part, world, chunks
        self._codings = codings or (exactly, exactly)
        self._nodes = even_counts(num_nodes, world.size)
        self._is_by_node = all(
            state.dim() in (2, 3) and state.size(-2) == 3
            for state in part.begin(_like(part).new_zeros(3, part.in_width))
        )
        self._borders = Borders()
        self._out: list[Root] = []

    def reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        """Begin a pass."""
        self._borders = Borders(keep=keep, cuts=cuts)

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        """Return out_tNO; nothing worth reading unless it `returns`."""
        plan = Redistribution(block.steps, self._nodes)
        coding_in, coding_out = (codings(block) for codings in self._codings)
        groups = self._groups(coding_in, coding_out)
        if groups > 1:
            return self._forward_in_groups(rows_tND, block, groups, returns=returns)
        x_TnD = to_nodes(rows_tND, plan, self.world, coding_in)
        first = None if block.number else self.part.begin(x_TnD[0])
        out_TnO, state = self.part(x_TnD, self._borders.enter(block, first))
        self._borders.leave(block, state)
        if not returns:
            return rows_tND
        out_tNO = to_steps(out_TnO, plan, self.world, coding_out)
        self._out = [] if len(rows_tND) else tied(out_tNO)
        return out_tNO

    def _groups(self, *codings: MakeCodings | None) -> int:
        """Return how many groups of nodes travel one after another; rounded rows go together."""
        is_cut = self.world.size > 1 and self._is_by_node and codings == (None, None)
        fewest = min(self._nodes)
        most = min(self._chunks, fewest) if self._chunks else min(GROUPS, fewest // LEAST_GROUP)
        return max(1, most) if is_cut else 1

    def _forward_in_groups(
        self, rows_tND: Tensor, block: TimeBlock, groups: int, *, returns: bool
    ) -> Tensor:
        """Run one group of nodes along time while the next ones come and the last return.

        Ranks without snapshots or nodes of a group take part all the same; backward begins with the
        last group, and waits for none that is not on its way yet.
        """
        world, ranks = self.world, range(self.world.size)
        sizes_RG = [even_counts(count, groups) for count in self._nodes]
        plans = [Redistribution(block.steps, tuple(s[g] for s in sizes_RG)) for g in range(groups)]
        pieces = rows_tND.split([size for sizes in sizes_RG for size in sizes], dim=1)
        outward = [Dealing(plan, world, outward=True) for plan in plans]
        tokens = [
            outward[g].begin(*(pieces[rank * groups + g] for rank in ranks)) for g in range(groups)
        ]
        mine = list(sizes_RG[world.rank])
        known = [] if not block.number else self._borders.enter(block, None)
        before = [state.split(mine, dim=-2) for state in known]
        home, returning, after = [], [], []
        for g in range(groups):
            (x_TnD,) = outward[g].end(tokens[g])
            state = tuple(parts[g] for parts in before)
            out_TnO, state = self.part(x_TnD, state if block.number else self.part.begin(x_TnD[0]))
            after.append(state)
            if returns:
                home.append(Dealing(plans[g], world, outward=False))
                returning.append(home[g].begin(out_TnO))
        if not block.number:
            self._borders.enter(block, ())
        self._borders.leave(block, tuple(torch.cat(s, dim=-2) for s in zip(*after, strict=True)))
        if not returns:
            return rows_tND
        found = [home[g].end(returning[g]) for g in range(groups)]
        out_tNO = torch.cat([found[g][rank] for rank in ranks for g in range(groups)], dim=1)
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

    def __init__(
        self,
        part: EvolvingGCN,
        world: World,
        computing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`computing` is what work inside a snapshot runs in."""
        self.part, self.world, self._computing = part, world, computing
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
        with self._computing():
            made = [
                self.part.apply_weight(x, at.neighbours, q_DO, at.edge_sum_NF)
                for x, at, q_DO in triples
            ]
        return widened(made)

    def roots(self) -> list[Root]:
        """Return the last weight, and the summaries on a rank without snapshots."""
        return self._borders.roots() + self._gathered

    def settle(self) -> None:
        """Take the border's gradient."""
        self._borders.settle()
        self._gathered = []


def widened(rows: Sequence[Rows]) -> list[Rows]:
    """Return rows of snapshots in the type that they are summed and travel along time in."""
    return [x.to(sum_type(x.dtype)) if isinstance(x, Tensor) else x for x in rows]

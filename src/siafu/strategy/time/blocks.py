"""Running a dynamic model block by block: forward to learn the borders, backward block by block.

Only what crosses a border is kept between the two, so memory grows with a block and not with time.
Ranks own stretches of every block; what is exchanged inside a snapshot is its graph's business.

Shapes: t snapshots of mine, N nodes, O output width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from siafu.comm import World
from siafu.errors import ConfigError
from siafu.nn import (
    BandedMean,
    Draws,
    DynamicGNN,
    EvolvingGCN,
    LookingBack,
    Rows,
    StepGraph,
    TemporalLayer,
)
from siafu.nn.dynamic import run_spatial
from siafu.nn.precision import computing
from siafu.nn.sparse import dense
from siafu.partitioning import TimeBlock, TimePlan
from siafu.strategy.time.banded import BandedHalo
from siafu.strategy.time.cost import TYPICAL, Costs, choose_exchange, state_width
from siafu.strategy.time.exchanges import AllToAll, Evolution, widened
from siafu.strategy.time.rounding import RowIds, TimeRounding, check_rounding
from siafu.strategy.time.strategy import TimeExchange, TimeStrategy
from siafu.strategy.time.wavefront import Wavefront

LossOf = Callable[[TimeBlock, Tensor], Tensor]
"""This rank's share of the loss of a block, given the embeddings of its snapshots there."""

RowExchange = AllToAll | BandedHalo | Wavefront


class StepSource(Protocol):
    """Where a rank gets its snapshots from."""

    @property
    def num_nodes(self) -> int:
        """N, the nodes of this rank."""
        ...

    @property
    def node_ids(self) -> Tensor:
        """int64 [N]: their numbers in the whole graph."""
        ...

    @property
    def num_all_nodes(self) -> int:
        """Nodes of the whole graph."""
        ...

    @property
    def most_nodes(self) -> int:
        """Nodes of the rank that has most, by which all ranks decide alike."""
        ...

    @property
    def starts_transformed(self) -> bool:
        """True where the input is what the first part of the model would make of it."""
        ...

    @property
    def learns_input(self) -> bool:
        """True where input rows get gradients."""
        ...

    def read(self, steps: range) -> tuple[list[Rows], list[StepGraph]]:
        """Return the input rows and the graphs of some of this rank's snapshots."""
        ...


class TimeRunner:
    """A dynamic model over the ranks' snapshots."""

    def __init__(
        self,
        model: DynamicGNN,
        source: StepSource,
        plan: TimePlan,
        world: World,
        strategy: TimeStrategy,
        draws: Draws | None = None,
        costs: Costs = TYPICAL,
    ) -> None:
        """`draws` tell seed and epoch of what is rounded; `costs` are the same on all ranks."""
        self._costs = costs
        self.model, self.source, self.plan, self.world = model, source, plan, world
        self.strategy = strategy
        self._first = 1 if source.starts_transformed else 0
        check_rounding(model.parts[self._first :], strategy)
        row_ids = RowIds(source.node_ids, source.num_all_nodes)
        self.wire = TimeRounding(strategy, plan, world, draws or Draws(), row_ids)
        self._exchanges: dict[int, RowExchange | Evolution] = {}
        for number, part in enumerate(model.parts):
            if number < self._first:
                continue
            if isinstance(part, EvolvingGCN):
                self._exchanges[number] = Evolution(part, world, self._computing)
            elif isinstance(part, TemporalLayer):
                self._exchanges[number] = self._make_exchange(number, part)

    def _computing(self) -> AbstractContextManager[object]:
        """Return what work inside a snapshot runs in; along time all is of the weights' type."""
        return computing(self.strategy.rounding.precision, self.world.device)

    def take_up(self, exchanges: Sequence[str]) -> None:
        """Reach other ranks' snapshots as before; what is measured now may lead elsewhere."""
        if self.strategy.exchange != "auto" or len(exchanges) != len(self._exchanges):
            return
        for name, (number, known) in zip(exchanges, list(self._exchanges.items()), strict=True):
            part = self.model.parts[number]
            if name != known.name and isinstance(part, TemporalLayer):
                self.wire.forget(number)
                self._exchanges[number] = self._make_exchange(number, part, name)

    def _make_exchange(
        self, number: int, part: TemporalLayer, asked: str | None = None
    ) -> RowExchange:
        nodes, world = self.source.num_nodes, self.world
        asked = asked or self.strategy.exchange
        kind = self._chosen(part) if asked == "auto" else asked
        if kind == "all-to-all":
            dealt = self.wire.dealt(number, part)
            return AllToAll(part, nodes, world, dealt, self.strategy.chunks)
        if isinstance(part, LookingBack):
            raise ConfigError(
                "Recurrences that begin anew for every snapshot are dealt out by node.",
                seen=f"--time-exchange {kind} with --history {part.history}",
                fix="use auto or all-to-all, or leave --history out",
            )
        if kind == "banded":
            if not isinstance(part, BandedMean):
                raise _unfit(kind, part, "a recurrence reaches back to the first snapshot")
            return BandedHalo(part, world, self.wire.fetched(number, part))
        if isinstance(part, BandedMean):
            raise _unfit(kind, part, "an average over a band hands no state on")
        if state_width(part) is None:
            raise _unfit(kind, part, "its state has no row for each node")
        chunks = self.strategy.num_chunks(nodes, world.size)
        return Wavefront(part, number, nodes, chunks, world)

    def _chosen(self, part: TemporalLayer) -> TimeExchange:
        """Return the quickest exchange; all ranks choose alike, whatever nodes they have."""
        most = self.source.most_nodes
        chunks = self.strategy.num_chunks(most, self.world.size)
        bits, costs = self.strategy.mean_bits, self._costs
        return choose_exchange(part, self.plan, most, chunks, bits, costs)

    @property
    def exchanges(self) -> list[str]:
        """How each temporal part that is run reaches other ranks' snapshots."""
        if self.world.size == 1:
            return []
        return [exchange.name for exchange in self._exchanges.values()]

    def train(self, loss_of: LossOf) -> float:
        """Run forward and backward over the training blocks; return this rank's share of the loss.

        Gradients are added to those of the parameters; ranks' shares are not added up yet.
        """
        blocks = self.plan.blocks[: self.plan.num_train]
        self._reset(blocks, keep=True)
        with torch.no_grad():
            for block in blocks[:-1]:
                self._forward(block, for_borders=True)
        total = 0.0
        for block in reversed(blocks):
            rows_tNO = self._forward(block)
            loss = loss_of(block, rows_tNO)
            total += float(loss.detach())
            self._backward(loss, rows_tNO)
        self._wait_for_sends()
        self.wire.end()
        return total

    def train_in_order(self, loss_of: LossOf, after_block: Callable[[], None]) -> float:
        """Run the training blocks once, in order of time, each forward and backward.

        Gradients end at the border before a block, whose state earlier weights have made;
        `after_block` may take a step. Returns this rank's share of the losses of all blocks.
        """
        blocks = self.plan.blocks[: self.plan.num_train]
        self._reset(blocks, keep=False, cuts=True)
        total = 0.0
        for block in blocks:
            rows_tNO = self._forward(block)
            loss = loss_of(block, rows_tNO)
            total += float(loss.detach())
            self._backward(loss, rows_tNO)
            after_block()
        self._wait_for_sends()
        self.wire.end()
        return total

    @torch.no_grad()
    def evaluate(self) -> Iterator[tuple[TimeBlock, Tensor]]:
        """Yield the embeddings of this rank's snapshots, block after block, to the last one."""
        self._reset(self.plan.blocks, keep=False)
        for block in self.plan.blocks:
            yield block, self._forward(block)
        self._wait_for_sends()

    def _wait_for_sends(self) -> None:
        for exchange in self._exchanges.values():
            if isinstance(exchange, Wavefront):
                exchange.wait_for_sends()

    def _reset(self, blocks: Sequence[TimeBlock], *, keep: bool, cuts: bool = False) -> None:
        self.wire.begin(next(self.model.parameters()).dtype, training=keep or cuts)
        for exchange in self._exchanges.values():
            exchange.reset(blocks, keep=keep, cuts=cuts)

    def _backward(self, loss: Tensor, rows_tNO: Tensor) -> None:
        pairs = [root for exchange in self._exchanges.values() for root in exchange.roots()]
        if rows_tNO.requires_grad:
            # A rank whose snapshots have no targets takes part in exchanges all the same.
            pairs.append((rows_tNO, torch.zeros_like(rows_tNO)))
        if loss.requires_grad:
            pairs.append((loss, torch.ones_like(loss)))
        if pairs:
            heads, grads = zip(*pairs, strict=True)
            torch.autograd.backward(heads, grads)
        for exchange in self._exchanges.values():
            exchange.settle()

    def _forward(self, block: TimeBlock, *, for_borders: bool = False) -> Tensor:
        """Return rows_tNO of my snapshots; for the borders alone, stop where they are known."""
        rows: Sequence[Rows] = []
        graphs: Sequence[StepGraph] = []
        if not for_borders or self._is_read_after(-1):
            rows, graphs = self.source.read(block.owned(self.world.rank))
        for number, part in enumerate(self.model.parts):
            if number < self._first:
                continue
            returns = not for_borders or self._is_read_after(number)
            exchange = self._exchanges.get(number)
            if isinstance(exchange, Evolution):
                rows = exchange.forward(rows, graphs, block, returns=returns)
            elif exchange is not None and isinstance(part, TemporalLayer):
                stacked = self._stacked(rows, part.in_width, number)
                rows = exchange.forward(stacked, block, returns=returns).unbind()
            elif returns:
                with self._computing():
                    rows = [run_spatial(part, x, at) for x, at in zip(rows, graphs, strict=True)]
                rows = widened(rows)
        return self._stacked(rows, self.model.out_width, len(self.model.parts))

    def _is_read_after(self, number: int) -> bool:
        """Return True when the border of a later part depends on the rows that this one makes."""
        return any(
            later > number and not (isinstance(c, Evolution) and c.part.variant == "o")
            for later, c in self._exchanges.items()
        )

    def _stacked(self, rows: Sequence[Rows], width: int, number: int) -> Tensor:
        """Return the rows as one tensor, also when this rank has no snapshot in the block."""
        if rows:
            return torch.stack([dense(x) for x in rows])
        like = next(self.model.parameters())
        empty = like.new_empty(0, self.source.num_nodes, width)
        # As on ranks that have some: what parameters took part in making gets a gradient.
        makers = self.model.parts[self._first : number].parameters()
        is_made = self.source.learns_input or any(p.requires_grad for p in makers)
        is_made = is_made and torch.is_grad_enabled()
        return empty.requires_grad_(is_made)


def _unfit(kind: str, part: nn.Module, why: str) -> ConfigError:
    return ConfigError(
        "The temporal layer can't be exchanged that way.",
        seen=f"--time-exchange {kind} with {type(part).__name__}: {why}",
        fix="use auto or all-to-all",
    )

"""One process that rounds rows along time as ranks do, and rows to try that on.

Shapes: T snapshots of a block, N nodes, D columns.
"""

from typing import Any

import torch
from torch import Tensor

from siafu.comm import World, even_counts
from siafu.nn import Draws
from siafu.ops import WireLayout, decode, encode
from siafu.partitioning import TimeBlock, TimePlan
from siafu.strategy import Strategy, TimeStrategy
from siafu.strategy.time.exchanges import AllToAll
from siafu.strategy.time.rounding import RowIds, TimeRounding
from tests.dynamic.graphs import NUM_NODES

WIDTH, STEPS, NODES = 20, 9, 25
FIRST, DIRECTIONS = 1 << 60, 1 << 40
CPU = torch.device("cpu")


def wire_of(
    world: World, plan: TimePlan, bits: Any, draws: Draws, nodes: int = NODES
) -> TimeRounding:
    """Return what rounds rows of so many nodes."""
    rounding = Strategy(wire=bits, **({} if isinstance(bits, int) else {"wire_period": 3}))
    strategy = TimeStrategy(rounding=rounding)
    return TimeRounding(strategy, plan, world, draws, RowIds(torch.arange(nodes), nodes))


def numbers(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return rows of all snapshots and nodes, of scales far apart."""
    draw = torch.Generator().manual_seed(seed)
    scale = torch.randn(STEPS, NODES, 1, generator=draw, dtype=dtype).mul(2).exp()
    return scale * torch.randn(STEPS, NODES, WIDTH, generator=draw, dtype=dtype)


def rounded(x_TND: Tensor, bits: int, draws: Draws, purpose: int, first: int = 0) -> Tensor:
    """Return snapshots from `first` on as a receiver reads them; a row's id is step N + node."""
    flat, count = x_TND.detach().flatten(0, 1).contiguous(), x_TND.size(1)
    layout = WireLayout.build(torch.full((len(flat),), bits).byte(), flat.size(1), flat.dtype)
    ids = torch.arange(first * count, first * count + len(flat))
    return decode(encode(flat, None, layout, draws.key(purpose), ids).payload, layout).view_as(
        x_TND
    )


class NoisyDeal(torch.autograd.Function):
    """All rows as their readers have them: those that change ranks rounded, gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, moves_TN: Tensor, sender_TN: Tensor, how: tuple) -> Tensor:
        ctx.save_for_backward(moves_TN, sender_TN)
        ctx.how = how
        bits, draws, number, _, first, _ = how
        found = rounded(x_TND, bits, draws, FIRST + number * DIRECTIONS, first)
        return torch.where(moves_TN[..., None], found, x_TND)

    @staticmethod
    def backward(ctx: Any, grad_TND: Tensor) -> tuple[Any, ...]:
        (moves_TN, sender_TN), grad = ctx.saved_tensors, grad_TND.clone()
        bits, draws, number, block, first, size = ctx.how
        for rank in range(size):
            purpose = FIRST + number * DIRECTIONS + 1 + block * size + rank
            mine = (moves_TN & (sender_TN == rank))[..., None]
            grad = torch.where(mine, rounded(grad_TND, bits, draws, purpose, first), grad)
        return grad, None, None, None


class NoisyAllToAll(AllToAll):
    """One process that rounds what would change ranks."""

    def __init__(self, number: int, part: Any, plan: TimePlan, bits: int, draws: Draws) -> None:
        super().__init__(part, NUM_NODES, World())
        self.number, self.plan, self.bits, self.draws = number, plan, bits, draws

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        size, steps = self.plan.num_ranks, range(block.start, block.stop)
        step_T = torch.tensor([self.plan.owner(step) for step in steps])[:, None]
        counts = torch.tensor(even_counts(NUM_NODES, size))
        node_N = torch.arange(size).repeat_interleave(counts)[None]
        step_TN, node_TN = torch.broadcast_tensors(step_T, node_N)

        def moved(x: Tensor, which: int, sender_TN: Tensor) -> Tensor:
            if block.number >= self.plan.num_train or not self.draws.training:
                return x
            number = 2 * self.number + which
            how = (self.bits, self.draws, number, block.number, block.start, size)
            return NoisyDeal.apply(x, step_TN != node_TN, sender_TN, how)

        inputs = moved(rows_tND, 0, node_TN)
        out = super().forward(inputs, block, returns=returns)
        return moved(out, 1, step_TN) if returns else out

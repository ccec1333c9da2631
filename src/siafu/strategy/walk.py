"""Walking over a rank's blocks: rows come a stage at a time, gradients go home the same way.

Rows of the next stage travel while a block is worked on, and are freed before the stage after that
is asked for: at most two stages are held. There is no barrier; ranks drift apart as they need.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import PendingRows, World, add_returned, start_fetch, start_return
from siafu.strategy.blocks import Block, Reach

Rows = tuple[Tensor, ...]
"""Several tensors with a row for each column of a block."""

Use = Callable[[Block, Rows], None]


def visit(reach: Reach, rows: Rows, use: Use, *, purpose: str = "halo_forward") -> None:
    """Call `use` with each block and its rows: the owned rows, then what each stage fetches."""
    rows = tuple(tensor.contiguous() for tensor in rows)
    coming = _start(reach, 0, rows, purpose)
    use(reach.own, rows)
    for number, block in enumerate(reach.stages):
        arrived = tuple(pending.wait(reach.world, "fetching halo rows") for pending in coming)
        coming = _start(reach, number + 1, rows, purpose)
        use(block, arrived)
        del arrived  # before the next stage is waited for


def visit_again(reach: Reach, rows: Rows, use: Use, kept: list[Rows] | None) -> None:
    """Do as `visit` did in forward, from the rows it kept or by fetching them once more."""
    if kept is None:
        visit(reach, rows, use, purpose="halo_refetch")
        return
    use(reach.own, tuple(tensor.contiguous() for tensor in rows))
    held = kept.copy() if graph_is_kept() else kept
    for block in reach.stages:
        use(block, held.pop(0))


def _start(reach: Reach, number: int, rows: Rows, purpose: str) -> list[PendingRows]:
    if number >= len(reach.stages):
        return []
    plan = reach.stages[number].plan
    assert plan is not None, "a stage is of other ranks' rows"
    return [start_fetch(tensor, plan, reach.world, purpose) for tensor in rows]


def zeros_like(tensor: Tensor) -> Tensor:
    """Return zeros of the same shape, without gaps whatever the tensor's strides."""
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def graph_is_kept() -> bool:
    """True in a backward that may be run again (`retain_graph`), or where torch doesn't say."""
    says = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return bool(says())


class Homeward:
    """Gradients of halo rows on their way to their owners; one stage's travel at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._block: Block | None = None
        self._pending: list[PendingRows] = []

    def send(self, block: Block, grads: Rows, into: Rows) -> None:
        """Start sending a stage's gradients; those of the stage before are added to `into`."""
        self.settle(into)
        assert block.plan is not None, "owned rows stay"
        self._pending = [
            start_return(grad, block.plan, self._world, "halo_backward") for grad in grads
        ]
        self._block = block

    def settle(self, into: Rows) -> None:
        """Add what has come home to the owned rows' gradients."""
        if self._block is None:
            return
        assert self._block.plan is not None
        for pending, grad in zip(self._pending, into, strict=True):
            returned = pending.wait(self._world, "returning halo gradients")
            add_returned(returned, self._block.plan, grad)
        self._block, self._pending = None, []

"""Walking over a rank's blocks: rows come a stage at a time, gradients go home the same way.

Rows of the next stage travel while a block is worked on, and are freed before the stage after that
is asked for: at most two stages are held. There is no barrier; ranks drift apart as they need.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import (
    Coding,
    HaloPlan,
    PendingRows,
    add_returned,
    fetch_kept,
    start_fetch,
    start_return,
)
from siafu.ops import sum_type
from siafu.strategy.blocks import Block, Reach
from siafu.strategy.rounding import Exchange, mean_squares

Rows = tuple[Tensor, ...]
"""Several tensors with a row for each column of a block."""

Use = Callable[[Block, Rows], None]

_AGAIN = "halo_refetch"
"""The purpose of rows that are fetched a second time."""


def begin_exchange(
    reach: Reach, rows: Rows, squares_of: Callable[[Block], Tensor] | None = None
) -> Exchange | None:
    """Return how these rows are written for the wire; None where they travel as they are.

    `squares_of` tells how columns of a block count in the result: the sum of squared coefficients.
    Without it, as in a mean. Autograd functions are given the exchange, since they hide gradients.
    """
    if reach.rounding is None:
        return None
    stages = [(block.plan, block.columns_K) for block in reach.stages if block.plan is not None]

    def squares(number: int) -> Tensor:
        block = reach.stages[number]
        return squares_of(block) if squares_of else mean_squares(block.back, block.whole)

    return reach.rounding.begin(stages, rows, squares)


def start_stage(
    reach: Reach,
    number: int,
    rows: Rows,
    exchange: Exchange | None,
    purpose: str = "halo_forward",
) -> list[PendingRows]:
    """Start fetching the rows of a stage; nothing where there are no more."""
    if number >= len(reach.stages):
        return []
    plan = reach.stages[number].plan
    assert plan is not None, "a stage is of other ranks' rows"
    codings = [exchange.fetching(n, number) if exchange else None for n in range(len(rows))]
    return [
        _fetch(reach, tensor, plan, purpose, coding)
        for tensor, coding in zip(rows, codings, strict=True)
    ]


def visit(
    reach: Reach,
    rows: Rows,
    use: Use,
    exchange: Exchange | None,
    *,
    purpose: str = "halo_forward",
    begun: list[PendingRows] | None = None,
    kept: list[Rows] | None = None,
) -> None:
    """Call `use` with each block and its rows: the owned rows, then what each stage fetches.

    `begun` are the rows of the first stage, where they are on their way already. `kept` are those
    of the last stages, which are here: used first, and taken from the list.
    """
    rows = tuple(tensor.contiguous() for tensor in rows)
    held = kept or []
    fetched = reach.stages[: len(reach.stages) - len(held)]

    def start(number: int) -> list[PendingRows]:
        return start_stage(reach, number, rows, exchange, purpose) if number < len(fetched) else []

    def wait(coming: list[PendingRows]) -> Rows:
        return tuple(pending.wait(reach.world, "fetching halo rows") for pending in coming)

    coming = start(0) if begun is None else begun
    first = None if reach.overlap else wait(coming)
    here = reach.stages[len(fetched) :]
    for block in here[:1]:  # its gradients travel during the own block
        use(block, held.pop(0))
    use(reach.own, rows)
    for block in here[1:]:
        use(block, held.pop(0))
    for number, block in enumerate(fetched):
        arrived = wait(coming) if first is None else first
        coming = start(number + 1)
        first = None if reach.overlap else wait(coming)
        use(block, arrived)
        del arrived  # before the next stage is waited for


def _fetch(
    reach: Reach, rows: Tensor, plan: HaloPlan, purpose: str, coding: Coding | None
) -> PendingRows:
    if purpose == _AGAIN and coding is not None and coding.kept is not None:
        # They are here since the first time.
        return fetch_kept(rows.shape[1:], plan, reach.world, coding)
    return start_fetch(rows, plan, reach.world, purpose, coding)


def visit_again(
    reach: Reach, rows: Rows, use: Use, exchange: Exchange | None, kept: list[Rows]
) -> None:
    """Do as `visit` did in forward, from rows of the last stages that it kept; others come again.

    The first of those travel while kept rows are worked on.
    """
    held = kept.copy() if graph_is_kept() else kept
    visit(reach, rows, use, exchange, purpose=_AGAIN, kept=held)


def zeros_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return zeros of the same shape, without gaps whatever the tensor's strides."""
    return torch.zeros_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def wide_zeros(tensor: Tensor) -> Tensor:
    """Return zeros of the same shape, in the type that such tensors are summed in."""
    return zeros_like(tensor, sum_type(tensor.dtype))


def graph_is_kept() -> bool:
    """True in a backward that may be run again (`retain_graph`), or where torch doesn't say."""
    says = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return bool(says())


class Homeward:
    """Gradients of halo rows on their way to their owners; one stage's travel at a time."""

    def __init__(
        self, reach: Reach, exchange: Exchange | None, tensors: list[int] | None = None
    ) -> None:
        self._reach, self._exchange, self._tensors = reach, exchange, tensors
        self._block: Block | None = None
        self._pending: list[PendingRows] = []
        self._returned: Rows | None = None

    def send(self, block: Block, grads: Rows, into: Rows) -> None:
        """Start sending a stage's gradients; those of the stage before are added to `into`.

        They are of all tensors that were fetched, or of those that were named.
        """
        self.settle(into)
        assert block.plan is not None, "owned rows stay"
        tensors = range(len(grads)) if self._tensors is None else self._tensors
        number, exchange, world = self._reach.stages.index(block), self._exchange, self._reach.world
        codings = [exchange.returning(n, number) if exchange else None for n in tensors]
        self._pending = [
            start_return(grad, block.plan, world, "halo_backward", coding)
            for grad, coding in zip(grads, codings, strict=True)
        ]
        self._block = block
        if not self._reach.overlap:
            self._returned = tuple(self._wait(number) for number in range(len(grads)))

    def _wait(self, number: int) -> Tensor:
        return self._pending[number].wait(self._reach.world, "returning halo gradients")

    def settle(self, into: Rows) -> None:
        """Add what has come home to the owned rows' gradients."""
        if self._block is None:
            return
        assert self._block.plan is not None
        for number, grad in enumerate(into):
            rows = self._wait(number) if self._returned is None else self._returned[number]
            add_returned(rows, self._block.plan, grad)
        self._block, self._pending, self._returned = None, [], None

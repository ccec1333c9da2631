"""Dropout that comes with the departure of rows: those that others need are dropped first.

Draws are keyed by node, so rows may be dropped in any order. The tensor of dropped rows is there at
once, its rows are written when they depart.

Shapes: N owned rows, S some of them, D columns of a row.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.ops import DrawKey, HeldKey, dropout_grad, dropout_rows


@dataclass(frozen=True, eq=False)
class LateDropout:
    """What is to be dropped, and where the result is written."""

    x_ND: Tensor
    ids_N: Tensor
    key: DrawKey | HeldKey
    p: float
    relu: bool
    into_ND: Tensor

    @torch.no_grad()
    def write(self, rows_S: Tensor) -> Tensor:
        """Write some of the dropped rows, and return them."""
        x_SD, ids_S = (tensor.index_select(0, rows_S) for tensor in (self.x_ND, self.ids_N))
        dropped_SD = dropout_rows(x_SD, ids_S, self.key, self.p, relu=self.relu)
        self.into_ND.index_copy_(0, rows_S, dropped_SD)
        return dropped_SD

    @torch.no_grad()
    def finish(self) -> None:
        """Write all of them."""
        self.into_ND.copy_(dropout_rows(self.x_ND, self.ids_N, self.key, self.p, relu=self.relu))


class _DropLater(torch.autograd.Function):
    """Room for dropped rows, which are written before anything else reads them."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, out_ND: Tensor, late: LateDropout) -> Tensor:
        ctx.key, ctx.p, ctx.relu = late.key, late.p, late.relu
        ctx.mark_dirty(out_ND)
        ctx.save_for_backward(late.ids_N, out_ND if late.relu else None)
        return out_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None]:
        ids_N, dropped_ND = ctx.saved_tensors
        return dropout_grad(grad_ND, ids_N, ctx.key, ctx.p, dropped_ND), None, None


class Dropping:
    """The dropout that has been asked for and not been done, if any."""

    def __init__(self) -> None:
        self._late: LateDropout | None = None
        self._result: weakref.ref[Tensor] | None = None

    def begin(
        self, x_ND: Tensor, ids_N: Tensor, key: DrawKey | HeldKey, p: float, *, relu: bool
    ) -> Tensor:
        """Return a tensor for the dropped rows; whoever is given it next asks for `take`."""
        out_ND = torch.empty_like(x_ND, memory_format=torch.contiguous_format)
        # Apart from autograd, which would count what is written later as a change.
        late = LateDropout(x_ND.detach(), ids_N, key, p, relu, out_ND.data)
        dropped_ND: Tensor = _DropLater.apply(x_ND, out_ND, late)
        self._late, self._result = late, weakref.ref(dropped_ND)
        return dropped_ND

    def take(self, rows_ND: Tensor) -> LateDropout | None:
        """Return what is left to be done of these rows; None where they are ready."""
        late, result = self._late, self._result
        self._late = self._result = None
        if late is None or result is None:
            return None
        assert result() is rows_ND, "rows that are dropped late depart at once"
        return late

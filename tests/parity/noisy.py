"""One process that rounds what would cross between parts as ranks round it: the truth for them.

Shapes: N nodes, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from siafu.nn import Draws, Dropout, LocalNeighbours
from siafu.ops import Attention, WireLayout, decode, encode

FIRST, LEAST_WIDTH = 1 << 40, 10


def rounded(x_ND: Tensor, ids_N: Tensor, bits: int, draws: Draws, purpose: int) -> Tensor:
    """Return each row as its receiver would read it."""
    flat = x_ND.detach().flatten(1)
    layout = WireLayout.build(torch.full((len(flat),), bits).byte(), flat.size(1), flat.dtype)
    payload = encode(flat, None, layout, draws.key(purpose), ids_N).payload
    return decode(payload, layout).view_as(x_ND)


class _Crossing(torch.autograd.Function):
    """Rows as one part sees them: its own as they are, others rounded; gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, seen_ND: Tensor, is_own_N: Tensor, back: Any) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(is_own_N)
        return torch.where(_as_rows(is_own_N, x_ND), x_ND, seen_ND)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None, None]:
        (is_own_N,) = ctx.saved_tensors
        sent_ND = ctx.back(grad_ND.contiguous())
        return torch.where(_as_rows(is_own_N, grad_ND), grad_ND, sent_ND), None, None, None


def _as_rows(is_own_N: Tensor, x_ND: Tensor) -> Tensor:
    return is_own_N.view(-1, *(1,) * (x_ND.dim() - 1))


class NoisyNeighbours:
    """A whole graph whose edges between parts carry rounded rows."""

    def __init__(self, local: LocalNeighbours, part_N: Tensor, bits: int, draws: Draws) -> None:
        self._local, self._part_N, self._bits, self._draws = local, part_N, bits, draws
        self.num_vertices = local.num_vertices
        self.edge_attr = self.edge_type = None

    def _parts(self, use: Callable[..., Tensor], *sources: Tensor) -> Tensor:
        """Return the rows of each part, computed from what it sees of the sources."""
        purposes = [
            None if x_ND[0].numel() < LEAST_WIDTH else FIRST + (self._draws.take_exchange() << 21)
            for x_ND in sources
        ]
        out = None
        for part in range(int(self._part_N.max()) + 1):
            is_own_N = self._part_N == part
            seen = tuple(
                x_ND if purpose is None else self._seen(x_ND, is_own_N, purpose, part)
                for x_ND, purpose in zip(sources, purposes, strict=True)
            )
            made = use(*seen)
            kept = torch.where(_as_rows(is_own_N, made), made, 0)
            out = kept if out is None else out + kept
        assert out is not None
        return out

    def _seen(self, x_ND: Tensor, is_own_N: Tensor, purpose: int, part: int) -> Tensor:
        ids_N, bits, draws = self._local.ids_N, self._bits, self._draws
        there_ND = rounded(x_ND, ids_N, bits, draws, purpose)

        def back(grad_ND: Tensor) -> Tensor:
            return rounded(grad_ND, ids_N, bits, draws, purpose + 1 + part)

        return _Crossing.apply(x_ND, there_ND, is_own_N, back)

    def maps_first(self, in_width: int, out_width: int) -> bool:
        return self._local.maps_first(in_width, out_width)

    def own(self, x_ND: Tensor) -> Tensor:
        return x_ND

    def mean(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.mean, x_ND)

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.normalised_sum, x_ND)

    def max(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.max, x_ND)

    def attend(
        self,
        attention: Attention,
        sources: tuple[Tensor, ...],
        rows: tuple[Tensor, ...],
        shared: tuple[Tensor, ...] = (),
        **others: Any,
    ) -> Tensor:
        def use(*seen: Tensor) -> Tensor:
            return self._local.attend(attention, seen, rows, shared, **others)

        return self._parts(use, *sources)

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        return self._local.dropout(x_ND, dropout)

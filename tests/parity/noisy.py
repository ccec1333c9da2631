"""One process that rounds what would cross between parts as ranks round it: the truth for them.

Shapes: N nodes, D width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu.comm import Format
from siafu.nn import Draws, Dropout, LocalNeighbours, Reduce, Summing, mapped
from siafu.ops import Attention, DrawKey, WireLayout, decode, dropout_rows, encode, encode_changes
from siafu.strategy import Strategy
from siafu.strategy.rounding.exchange import LOT
from siafu.strategy.rounding.lot import is_drawn

FIRST, LEAST_WIDTH = 1 << 40, 10
_FULL, _RENEWED = 32, 8

Codes = dict[tuple[int, int, int, int], Tensor]
"""Formats that ranks have assigned, uint8 [N], by epoch, exchange, direction (0: out, 1: home) and
the part that reads the rows."""


_Slot = tuple[int, int, int]
"""An exchange, the part that returns gradients or -1 for rows on their way out, and who reads
these, where formats differ by that."""


class Reader:
    """What receivers read of rows, from epoch to epoch: rounded, changes, late or kept."""

    def __init__(
        self, strategy: Strategy, ids_N: Tensor, draws: Draws, assigned: Codes | None = None
    ) -> None:
        self._strategy, self._ids_N, self._draws = strategy, ids_N, draws
        self._assigned = assigned
        self._kept: dict[_Slot, Tensor] = {}
        self._late: dict[_Slot, Tensor] = {}

    def read(self, x_ND: Tensor, number: int, part: int = -1, *, reader: int = 0) -> Tensor:
        """Return each row as its receiver reads it; out to a reader, or home from a part."""
        strategy, slot, epoch = self._strategy, (number, part, reader), self._draws.epoch
        is_silent = strategy.wire == 0 and (epoch - 1) % strategy.wire_period != 0
        if is_silent and slot in self._kept:
            return self._kept[slot].view_as(x_ND).clone()
        fresh_ND = self._rounded(x_ND.detach().flatten(1), slot).view_as(x_ND)
        if (share := strategy.boundary) < 1:
            drawn_N = is_drawn(self._ids_N, self._draws.key(LOT), share)
            fresh_ND = torch.where(_as_rows(drawn_N, x_ND), fresh_ND / share, 0)
        if not strategy.staleness:
            return fresh_ND
        before_ND = self._late.get(slot)
        smooth = strategy.smoothing
        known = fresh_ND if before_ND is None else torch.lerp(fresh_ND, before_ND, smooth)
        self._late[slot] = known
        return fresh_ND if before_ND is None else before_ND

    def _codes(self, slot: _Slot, count: int, *, is_narrow: bool) -> Tensor:
        """Return the format of each row."""
        number, part, reader = slot
        if self._assigned is not None and not is_narrow:
            place = (0, reader) if part < 0 else (1, part)
            return self._assigned[self._draws.epoch, number, *place]
        bits = _FULL if is_narrow else self._strategy.wire or _RENEWED
        return Format.of_wire(bits).codes(count)

    def _rounded(self, x_ND: Tensor, slot: _Slot) -> Tensor:
        strategy, is_narrow = self._strategy, x_ND.size(1) < LEAST_WIDTH
        codes = self._codes(slot, len(x_ND), is_narrow=is_narrow)
        changes = strategy.changes and not is_narrow
        layout = WireLayout.build(codes, x_ND.size(1), x_ND.dtype, changes=changes)
        key = self._draws.key(FIRST + (slot[0] << 21) + 1 + slot[1])
        if changes:
            kept_ND = self._kept.setdefault(slot, torch.zeros_like(x_ND))
            encode_changes(x_ND, None, layout, key, self._ids_N, kept_ND)
            if strategy.kept_bits == 16:
                kept_ND.copy_(kept_ND.bfloat16())
            return kept_ND.clone()
        return decode(encode(x_ND, None, layout, key, self._ids_N).payload, layout)


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
    """A whole graph whose edges between parts carry rows as the strategy writes them."""

    def __init__(
        self,
        local: LocalNeighbours,
        part_N: Tensor,
        strategy: Strategy,
        draws: Draws,
        assigned: Codes | None = None,
    ) -> None:
        self._local, self._part_N, self._draws = local, part_N, draws
        self._strategy, self._by_reader = strategy, assigned is not None
        self._reader = Reader(strategy, local.ids_N, draws, assigned)
        self._dropped: tuple[Tensor, Tensor, DrawKey, float] | None = None
        self.num_nodes = local.num_nodes
        self.edge_attr, self.edge_type = local.edge_attr, local.edge_type

    def _parts(self, use: Callable[..., Tensor], *sources: Tensor) -> Tensor:
        """Return the rows of each part, computed from what it sees of the sources."""
        numbers = [
            self._draws.take_exchange()
            if x_ND[0].numel() >= LEAST_WIDTH
            or self._strategy.staleness
            or self._strategy.boundary < 1
            else None
            for x_ND in sources
        ]
        out, there = None, None
        for part in range(int(self._part_N.max()) + 1):
            is_own_N = self._part_N == part
            if there is None or self._by_reader:
                there = [
                    x_ND if number is None else self._there(x_ND, number, part)
                    for x_ND, number in zip(sources, numbers, strict=True)
                ]
            seen = tuple(
                x_ND if number is None else self._seen(x_ND, came_ND, is_own_N, (number, part))
                for x_ND, came_ND, number in zip(sources, there, numbers, strict=True)
            )
            made = use(*seen)
            kept = torch.where(_as_rows(is_own_N, made), made, 0)
            out = kept if out is None else out + kept
        assert out is not None
        return out

    def _there(self, x_ND: Tensor, number: int, reader: int) -> Tensor:
        """Return rows as others have them; dropped here, where they were dropped before."""
        if self._dropped is None or self._dropped[0] is not x_ND:
            return self._reader.read(x_ND, number, reader=reader)
        _, before_ND, key, p = self._dropped
        rows_ND = self._reader.read(before_ND, number, reader=reader)
        return dropout_rows(rows_ND, self._local.ids_N, key, p)

    def _seen(
        self, x_ND: Tensor, there_ND: Tensor, is_own_N: Tensor, place: tuple[int, int]
    ) -> Tensor:
        def back(grad_ND: Tensor) -> Tensor:
            return self._reader.read(grad_ND, *place)

        return _Crossing.apply(x_ND, there_ND, is_own_N, back)

    def maps_first(self, in_width: int, out_width: int) -> bool:
        keeps = self._strategy.keeps_rows
        return out_width < in_width if keeps else self._local.maps_first(in_width, out_width)

    def depart(self, x_ND: Tensor, weight_OD: Tensor | None, how: Summing) -> Tensor:
        """Return x W^T, or x: nothing travels ahead here."""
        return mapped(x_ND, weight_OD)

    def own(self, x_ND: Tensor) -> Tensor:
        return x_ND

    def mean(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.mean, x_ND)

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.normalised_sum, x_ND)

    def sum(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.sum, x_ND)

    def max(self, x_ND: Tensor) -> Tensor:
        return self._parts(self._local.max, x_ND)

    def relations(self, x_ND: Tensor, map_TDO: Tensor) -> Tensor:
        return self._parts(lambda seen: self._local.relations(seen, map_TDO), x_ND)

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

    def reduce(
        self,
        message: Callable[..., Any],
        x_src: Tensor | tuple[Tensor, ...],
        x_dst: Tensor | tuple[Tensor, ...] = (),
        edge_attr: Tensor | tuple[Tensor, ...] = (),
        *,
        reduce: Reduce = "sum",
    ) -> Tensor:
        taken = self._draws._sites_taken

        def use(*seen: Tensor) -> Tensor:
            self._draws._sites_taken = taken  # all parts draw alike
            return self._local.reduce(message, seen, x_dst, edge_attr, reduce=reduce)

        return self._parts(use, *((x_src,) if isinstance(x_src, Tensor) else x_src))

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        if dropout.relu:
            x_ND, dropout = torch.relu(x_ND), replace(dropout, relu=False)
        dropped_ND = self._local.dropout(x_ND, dropout)
        if self._strategy.keeps_rows:
            key = self._draws.key(dropout.site)
            self._dropped = dropped_ND, x_ND.detach(), key, dropout.p
        return dropped_ND

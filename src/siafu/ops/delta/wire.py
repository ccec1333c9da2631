"""A delta as bytes: places as gaps of mostly one byte, weights as small whole numbers.

All places lie end to end (born, gone, rows of the born, changed) and are kept as differences from
one to the next. The low 8, 16 or 32 bits of every difference are sent, and the few that do not fit
have the rest beside them. A running sum on the device gives the places back.

Shapes: A born, R gone, C changed edges, S = 2 A + R + C places, X of them with a rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.ops.delta.edges import EdgeDelta

_ALIGN = 16
_LOW_DTYPE = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
_GRAINS = (1.0, 0.5)
"""Counts, and counts of a graph made symmetric by halves."""


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """How the bytes of one delta are laid out; known on the host, never sent."""

    num_before: int
    num_after: int
    born: int
    gone: int
    changed: int
    bits: int
    """Bits of each difference that are always sent."""
    rests: int
    """X."""
    src_dtype: torch.dtype
    weight_dtype: torch.dtype | None
    num_weights: int
    grain: float | None
    """What weights are whole multiples of, where one byte holds each; None sends them as is."""
    rewrites: bool

    def sections(self) -> list[tuple[torch.dtype, int]]:
        """Return dtype and length of each part, widest dtype first so that all are aligned."""
        places = 2 * self.born + self.gone + self.changed
        weight = self.weight_dtype or torch.float32
        plain = 0 if self.grain is not None else self.num_weights
        wide = [(self.src_dtype, self.born), (weight, plain)]
        wide.sort(key=lambda part: -part[0].itemsize)
        small = self.num_weights if self.grain is not None else 0
        return [
            *wide,
            (torch.int32, self.rests),
            (torch.int32, self.rests),
            (_LOW_DTYPE[self.bits], places),
            (torch.uint8, small),
        ]

    @property
    def num_bytes(self) -> int:
        """Length of the encoded delta, padded so that the next one is aligned as well."""
        total = sum(dtype.itemsize * count for dtype, count in self.sections())
        return -(-total // _ALIGN) * _ALIGN


def encode_delta(delta: EdgeDelta) -> tuple[DeltaLayout, Tensor]:
    """Return the layout and the bytes of a delta on the CPU."""
    places = torch.cat([delta.born_at, delta.gone_at, delta.born_dst, delta.changed_at]).long()
    step = places.diff(prepend=places.new_zeros(1))
    bits = min(_LOW_DTYPE, key=lambda bits: _bytes_at(step, bits))
    low = step & ((1 << bits) - 1) if bits < 32 else step
    rest_at = (step != low).nonzero()[:, 0]
    grain = _grain(delta.weight)
    layout = DeltaLayout(
        num_before=delta.num_before,
        num_after=delta.num_after,
        born=len(delta.born_at),
        gone=len(delta.gone_at),
        changed=len(delta.changed_at),
        bits=bits,
        rests=len(rest_at),
        src_dtype=delta.born_src.dtype,
        weight_dtype=None if delta.weight is None else delta.weight.dtype,
        num_weights=0 if delta.weight is None else len(delta.weight),
        grain=grain,
        rewrites=delta.rewrites,
    )
    none = torch.empty(0, dtype=torch.float32)
    weight = none if delta.weight is None else delta.weight
    plain, small = (weight, none) if grain is None else (weight[:0], weight / grain)
    wide = sorted([delta.born_src, plain], key=lambda part: -part.dtype.itemsize)
    # int16 holds the low 16 bits with their sign bit; decoding takes it off again.
    parts = [*wide, rest_at, (step - low)[rest_at], low, small]
    payload = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    for view, part in zip(_views(layout, payload), parts, strict=True):
        view.copy_(part)
    return layout, payload


def decode_delta(layout: DeltaLayout, payload: Tensor) -> EdgeDelta:
    """Return the delta on the device that its bytes lie on; the host does not wait for it."""
    first, second, rest_at, rest, low, small = _views(layout, payload)
    src_is_first = layout.sections()[0] == (layout.src_dtype, layout.born)
    born_src, plain = (first, second) if src_is_first else (second, first)
    step = low.to(torch.int32)
    if layout.bits == 16:
        step &= 0xFFFF
    step.index_add_(0, rest_at, rest)
    places = step.cumsum(0, dtype=torch.int32)
    sizes = [layout.born, layout.gone, layout.born, layout.changed]
    born_at, gone_at, born_dst, changed_at = places.split(sizes)
    weight = None
    if layout.weight_dtype is not None:
        weight = plain if layout.grain is None else small.to(layout.weight_dtype) * layout.grain
    return EdgeDelta(
        num_before=layout.num_before,
        num_after=layout.num_after,
        born_at=born_at,
        born_dst=born_dst,
        born_src=born_src,
        gone_at=gone_at,
        changed_at=changed_at,
        weight=weight,
        rewrites=layout.rewrites,
    )


def _views(layout: DeltaLayout, payload: Tensor) -> list[Tensor]:
    views, start = [], 0
    for dtype, count in layout.sections():
        stop = start + dtype.itemsize * count
        views.append(payload[start:stop].view(dtype))
        start = stop
    return views


def _bytes_at(step: Tensor, bits: int) -> int:
    if bits == 32:
        return 4 * len(step)
    rests = int(((step < 0) | (step >= 1 << bits)).sum())
    return len(step) * bits // 8 + 8 * rests


def _grain(weight: Tensor | None) -> float | None:
    """Return what all weights are whole multiples of, at most 255 of it, or None."""
    if weight is None:
        return None
    for grain in _GRAINS:
        units = weight / grain
        if bool(((units >= 0) & (units <= 255) & (units == units.round())).all()):
            return grain
    return None

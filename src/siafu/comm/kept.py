"""Rows that both ends of a channel keep from exchange to exchange, as they were last read.

With changes, what travels leads from the kept row to the new one, and what rounding leaves over is
part of the next change. They may be kept in bfloat16, which is what both ends then read: rounded to
the nearest after every change, alike on both ends, and what that leaves over is part of the next
change too. Late rows are those of the exchange before: the newest travel meanwhile,
and are waited for when the exchange comes round again.

Shapes: S rows sent, R rows received, D width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from siafu.ops import DrawKey, Encoded, WireLayout, decode, decode_changes, encode_changes

ROWS_AT_ONCE = 1 << 12
"""Rows of bfloat16 that are widened together, so that what is wide is small."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What rows are kept for."""

    changes: bool = False
    """To send what differs from them."""
    late: bool = False
    """To be read while newer ones travel."""
    smoothing: float = 0.0
    """Share of what was read before in late rows."""
    narrow: bool = False
    """To send changes from rows of bfloat16."""


class KeptRows:
    """The kept rows of one channel, on both of its ends."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self.sent_SD: Tensor | None = None
        """What receivers have of the rows sent, where changes are sent."""
        self.received_RD: Tensor | None = None
        """What is read here; None until the first exchange."""
        self.coming: Callable[[], Any] | None = None
        """Waits for late rows that are on their way."""

    @property
    def rows(self) -> Tensor:
        """The rows received as they are kept, which the next exchange changes in place."""
        assert self.received_RD is not None, "a first exchange comes before"
        return self.received_RD

    def dtype(self, rows: torch.dtype) -> torch.dtype:
        """Return what rows of a type are kept in."""
        return torch.bfloat16 if self.keeping.narrow else rows

    def held(self) -> list[Tensor]:
        """Return what is kept here now, of both ends."""
        return [rows for rows in (self.sent_SD, self.received_RD) if rows is not None]

    @property
    def is_new(self) -> bool:
        """Whether nothing was received yet."""
        return self.received_RD is None

    def settle(self) -> None:
        """Take up late rows that are on their way."""
        if self.coming is not None:
            coming, self.coming = self.coming, None
            coming()

    def encode(
        self, x_ND: Tensor, rows_S: Tensor | None, layout: WireLayout, key: DrawKey, ids_S: Tensor
    ) -> Encoded:
        """Return what leads from the rows as receivers have them to x[rows_S]."""
        if self.sent_SD is None:
            self.sent_SD = self._zeros(layout, x_ND.device)
        if not self.keeping.narrow:
            return encode_changes(x_ND, rows_S, layout, key, ids_S, self.sent_SD)
        payload = x_ND.new_empty(layout.num_bytes, dtype=torch.uint8)
        ranges = [x_ND.new_empty(0, dtype=torch.float32)]
        for lo, hi, piece, span in _pieces(layout):
            some = slice(lo, hi) if rows_S is None else rows_S[lo:hi]
            wide = self.sent_SD[lo:hi].to(layout.dtype)
            encoded = encode_changes(x_ND[some], None, piece, key, ids_S[lo:hi], wide)
            payload[span] = encoded.payload
            ranges.append(encoded.range_S)
            self.sent_SD[lo:hi] = wide
        return Encoded(payload, torch.cat(ranges))

    def take(self, payload: Tensor, layout: WireLayout) -> None:
        """Take up a message."""
        if self.keeping.changes:
            if self.received_RD is None:
                self.received_RD = self._zeros(layout, payload.device)
            if not self.keeping.narrow:
                decode_changes(payload, layout, self.received_RD)
                return
            for lo, hi, piece, span in _pieces(layout):
                wide = self.received_RD[lo:hi].to(layout.dtype)
                decode_changes(payload[span], piece, wide)
                self.received_RD[lo:hi] = wide
            return
        rows_RD = decode(payload, layout)
        if self.keeping.smoothing and self.received_RD is not None:
            rows_RD = torch.lerp(rows_RD, self.received_RD, self.keeping.smoothing)
        self.received_RD = rows_RD

    def _zeros(self, layout: WireLayout, device: torch.device) -> Tensor:
        dtype = self.dtype(layout.dtype)
        return torch.zeros(layout.num_rows, layout.width, dtype=dtype, device=device)


def _pieces(layout: WireLayout) -> Iterator[tuple[int, int, WireLayout, slice]]:
    """Yield rows that are widened together: from, to, where they lie in their part of the message,
    and which part that is.
    """
    edges = [*range(0, layout.num_rows, ROWS_AT_ONCE), layout.num_rows]
    starts = layout.start_S[torch.tensor(edges, device=layout.start_S.device)].tolist()
    for lo, hi, first, end in zip(edges, edges[1:], starts, starts[1:], strict=False):
        start_S = layout.start_S[lo : hi + 1] - first
        bits_S = layout.bits_S[lo:hi].contiguous()
        piece = replace(layout, bits_S=bits_S, start_S=start_S, num_bytes=end - first)
        yield lo, hi, piece, slice(first, end)

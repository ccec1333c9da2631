"""Rows that both ends of a channel keep from exchange to exchange, as they were last read.

With changes, what travels leads from the kept row to the new one, and what rounding leaves over is
part of the next change. Late rows are those of the exchange before: the newest travel meanwhile,
and are waited for when the exchange comes round again.

Shapes: S rows sent, R rows received, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from siafu.ops import DrawKey, Encoded, WireLayout, decode, decode_changes, encode_changes


@dataclass(frozen=True, slots=True)
class Keeping:
    """What rows are kept for."""

    changes: bool = False
    """To send what differs from them."""
    late: bool = False
    """To be read while newer ones travel."""
    smoothing: float = 0.0
    """Share of what was read before in late rows."""


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
        """The rows received, which the next exchange changes in place."""
        assert self.received_RD is not None, "a first exchange comes before"
        return self.received_RD

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
            self.sent_SD = _zeros(layout, x_ND.device)
        return encode_changes(x_ND, rows_S, layout, key, ids_S, self.sent_SD)

    def take(self, payload: Tensor, layout: WireLayout) -> None:
        """Take up a message."""
        if self.keeping.changes:
            if self.received_RD is None:
                self.received_RD = _zeros(layout, payload.device)
            decode_changes(payload, layout, self.received_RD)
            return
        rows_RD = decode(payload, layout)
        if self.keeping.smoothing and self.received_RD is not None:
            rows_RD = torch.lerp(rows_RD, self.received_RD, self.keeping.smoothing)
        self.received_RD = rows_RD


def _zeros(layout: WireLayout, device: torch.device) -> Tensor:
    return torch.zeros(layout.num_rows, layout.width, dtype=layout.dtype, device=device)

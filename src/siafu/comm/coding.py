"""How the rows of one exchange are written for the wire; both ends know each row's width.

Shapes: S rows sent, R rows received.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.ops import DrawKey, Encoded, WireLayout, bad_row, decode, encode


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """Widths of what is sent and received, and the draws that round it."""

    sent: WireLayout
    received: WireLayout
    sent_bytes: tuple[int, ...]
    """Of the rows for each peer."""
    received_bytes: tuple[int, ...]
    ids_S: Tensor
    """int64: numbers in the whole graph of the rows sent."""
    key: DrawKey
    name_row: Callable[[int], str]
    """What to call a row that can't be sent, by its place in the message."""
    trace: Callable[[Tensor], None] | None = None
    """Told the range of each row sent."""

    def encode(self, x_ND: Tensor, rows_S: Tensor | None) -> Encoded:
        """Return rows x[rows_S] as a message."""
        encoded = encode(x_ND.flatten(1), rows_S, self.sent, self.key, self.ids_S, check=False)
        if self.trace is not None:
            self.trace(encoded.range_S)
        return encoded

    def decode(self, payload: Tensor, encoded: Encoded, shape: torch.Size) -> Tensor:
        """Return the rows received, once it is sure that those sent were finite."""
        if (bad := encoded.first_bad()) is not None:
            raise bad_row(self.name_row(bad))
        return decode(payload, self.received).view(-1, *shape)

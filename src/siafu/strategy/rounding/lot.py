"""Rows that are drawn by lot: some of a rank's boundary rows travel in an epoch, others are 0.

Each node is drawn with the same probability, once per epoch for all layers and both directions, by
a counter of its own; so both ends know which rows travel without being told. What travels is scaled
by 1 / probability: sums over in-neighbours are right on average, and so are their gradients.

Shapes: S rows sent, R rows received.
"""

from dataclasses import replace

import torch
from torch import Tensor

from siafu.comm import Coding, Lot
from siafu.ops import DrawKey, uniform_rows
from siafu.strategy.rounding.channel import RowChannel, RowFormats


def drawn_codings(
    there: RowChannel, back: RowChannel, keys: tuple[DrawKey, DrawKey], lot: DrawKey, share: float
) -> tuple[Coding, Coding]:
    """Return how the drawn rows of a stage are written, and how their gradients go home."""
    sent_S, received_R = (is_drawn(each.ids(), lot, share) for each in (there, back))
    out = _coding(there, keys[0], sent_S, received_R, share)
    return out, _coding(back, keys[1], received_R, sent_S, share)


def is_drawn(ids_N: Tensor, lot: DrawKey, share: float) -> Tensor:
    """Return which nodes are drawn."""
    return uniform_rows(lot, ids_N, 1).squeeze(1) < share


def _coding(
    channel: RowChannel, key: DrawKey, sent_S: Tensor, received_R: Tensor, share: float
) -> Coding:
    sent, received = (
        RowFormats(_counts(drawn, formats), channel.form)
        for drawn, formats in ((sent_S, channel.sent), (received_R, channel.received))
    )
    places = Lot(sent_S.nonzero()[:, 0], received_R.nonzero()[:, 0], len(received_R), 1 / share)
    return replace(
        channel.coding(key),
        sent=sent.layout(),
        received=received.layout(),
        sent_bytes=sent.bytes,
        received_bytes=received.bytes,
        lot=places,
    )


def _counts(drawn_S: Tensor, formats: RowFormats) -> dict[int, int]:
    """Return how many rows of each peer are drawn."""
    pieces = [piece.sum() for piece in drawn_S.split(list(formats.rows.values()))]
    counts = torch.stack(pieces).tolist() if pieces else []
    return dict(zip(formats.rows, counts, strict=True))

"""Input features at 8 bits: rounded once, right on average, a quarter of the bytes everywhere.

Shapes: N rows, F features, B bytes of a coded row, R rows read.
"""

import torch
from torch import Tensor

from siafu.comm import Format
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.ops import DrawKey, WireLayout, decode, encode
from siafu.shard import HeldRows, RowReader

_FORMAT = Format("rounded", 8)
_PURPOSE = ORDER_PURPOSE - 1
_ROWS_AT_ONCE = 1 << 16


class CodedRows:
    """Features as bytes; held ones are coded once, those of a file whenever they are read.

    Draws are keyed by vertex alone, so both give the same bytes in every epoch and on any rank.
    """

    def __init__(self, x: RowReader, ids_N: Tensor, seed: int) -> None:
        self._x, self._ids_N, self._key = x, ids_N, DrawKey(seed, 0, _PURPOSE)
        self.dtype = torch.uint8
        self.shape = (x.shape[0], _layout(1, x.shape[1]).num_bytes)
        self._held: HeldRows | None = None
        if isinstance(x, HeldRows):
            pieces = torch.arange(x.shape[0]).split(_ROWS_AT_ONCE)
            self._held = HeldRows(torch.cat([self._code(rows) for rows in pieces]))

    def read(self, rows_R: Tensor) -> Tensor:
        """Return the bytes of these rows."""
        return self._code(rows_R) if self._held is None else self._held.read(rows_R)

    def _code(self, rows_R: Tensor) -> Tensor:
        x_RF = self._x.read(rows_R)
        layout = _layout(len(rows_R), x_RF.size(1))
        coded = encode(x_RF, None, layout, self._key, self._ids_N[rows_R])
        return coded.payload.view(len(rows_R), self.shape[1])

    def error(self) -> float:
        """Return the root mean square of rounding over that of the features, of a sample."""
        count = min(self.shape[0], 10_000)
        rows = torch.arange(count) * (self.shape[0] // max(1, count))
        x_RF = self._x.read(rows)
        wrong = (decode_rows(self.read(rows), x_RF.size(1)) - x_RF).square().sum()
        return float((wrong / x_RF.square().sum().clamp(min=1e-30)).sqrt())


def decode_rows(bytes_RB: Tensor, width: int) -> Tensor:
    """Return x_RF of coded rows."""
    return decode(bytes_RB.contiguous().view(-1), _layout(len(bytes_RB), width))


def _layout(num_rows: int, width: int) -> WireLayout:
    return WireLayout.build(_FORMAT.codes(num_rows), width)

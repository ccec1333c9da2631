"""How rows change along time, each vertex by itself: averages over a band, LSTM, GRU.

Shapes: T snapshots in a row, N vertices, D input width, O output width, B snapshots of a band.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""What a temporal layer carries from one snapshot to the next."""


class TemporalLayer(nn.Module, ABC):
    """A map along time that treats each vertex alike and by itself; subclass it for one's own.

    Because vertices do not meet here, any of them may be computed anywhere, and a stretch of time
    may be computed from the state that the stretch before it left. A state whose tensors are all
    [N, any width] can be handed from rank to rank; of any other, vertices are dealt out instead.
    """

    in_width: int
    out_width: int

    @abstractmethod
    def begin(self, rows_ND: Tensor) -> State:
        """Return the state before the first snapshot, for as many vertices as `rows_ND` has."""

    @abstractmethod
    def forward(self, rows_TND: Tensor, state: State) -> tuple[Tensor, State]:
        """Return out_TNO and the state after the last of these snapshots."""


class BandedMean(TemporalLayer):
    """Malik et al., 2021 (TM-GCN): the M-transform, (M x)_t = mean of x_k, t - B < k <= t.

    M is lower triangular and banded, M_tk = 1 / min(B, t) counting t from 1. The state is the last
    B - 1 slices, fewer near the start. Windows are added up by halves, so that a result does not
    depend on where the sequence was cut.
    """

    def __init__(self, width: int, band: int) -> None:
        super().__init__()
        self.in_width, self.out_width, self.band = width, width, band

    def begin(self, rows_ND: Tensor) -> State:
        """Return no slices."""
        return (rows_ND.new_empty(0, *rows_ND.shape),)

    def forward(self, rows_TND: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the means and the last B - 1 slices."""
        slices = state[0]
        known = torch.cat([slices, rows_TND])
        kept = known[max(0, len(known) - self.band + 1) :]
        return banded_mean(known, len(slices), self.band), (kept,)


def banded_mean(known: Tensor, num_before: int, band: int) -> Tensor:
    """Return the mean of each slice after the first `num_before` with its `band` - 1 predecessors.

    `known` begins `band` - 1 slices before the first result or, where there are fewer, at time 0.
    """
    steps = len(known) - num_before
    missing = band - 1 - num_before
    padded = torch.cat([known.new_zeros(missing, *known.shape[1:]), known]) if missing else known
    total, power, offset, span = None, padded, 0, 1
    while span <= band:
        if band & span:
            piece = power[offset : offset + steps]
            total, offset = (piece if total is None else total + piece), offset + span
        span *= 2
        if span <= band:
            power = power[: len(power) - span // 2] + power[span // 2 :]
    assert total is not None
    count_T = torch.arange(num_before + 1, num_before + steps + 1, device=known.device)
    return total / count_T.clamp(max=band).to(known.dtype).view(-1, *[1] * (known.dim() - 1))


class VertexLSTM(TemporalLayer):
    """One LSTM shared by all vertices, run along time (Manessi et al., 2020); state (h, c)."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.in_width, self.out_width = in_width, out_width
        self.cell = nn.LSTM(in_width, out_width)

    def begin(self, rows_ND: Tensor) -> State:
        """Return zeros."""
        zero_NO = rows_ND.new_zeros(len(rows_ND), self.out_width)
        return zero_NO, zero_NO

    def forward(self, rows_TND: Tensor, state: State) -> tuple[Tensor, State]:
        """Return h of every snapshot, and (h, c) of the last."""
        if not len(rows_TND):
            return rows_TND.new_empty(0, rows_TND.size(1), self.out_width), state
        h_NO, c_NO = state
        out_TNO, (h, c) = self.cell(rows_TND, (h_NO[None], c_NO[None]))
        return out_TNO, (h[0], c[0])


class VertexGRU(TemporalLayer):
    """One GRU shared by all vertices, run along time; state (h)."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.in_width, self.out_width = in_width, out_width
        self.cell = nn.GRU(in_width, out_width)

    def begin(self, rows_ND: Tensor) -> State:
        """Return zeros."""
        return (rows_ND.new_zeros(len(rows_ND), self.out_width),)

    def forward(self, rows_TND: Tensor, state: State) -> tuple[Tensor, State]:
        """Return h of every snapshot, and that of the last."""
        if not len(rows_TND):
            return rows_TND.new_empty(0, rows_TND.size(1), self.out_width), state
        out_TNO, h = self.cell(rows_TND, state[0][None])
        return out_TNO, (h[0],)

"""How rows change along time, each node by itself (means over a band, LSTM, GRU), or weights do.

Shapes: T snapshots in a row, N nodes, D input width, O output width, B snapshots of a band, F
features of an edge.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from siafu.nn.neighbours import Neighbours
from siafu.nn.sparse import CachedRows, Rows, dense

_SLOPE = 0.2291666
"""Of RReLU at its mean, (1/8 + 1/3) / 2: what the published model uses outside training."""

State = tuple[Tensor, ...]
"""What a temporal layer carries from one snapshot to the next."""


class TemporalLayer(nn.Module, ABC):
    """A map along time that treats each node alike and by itself; subclass it for one's own.

    Because nodes do not meet here, any of them may be computed anywhere, and a stretch of time
    may be computed from the state that the stretch before it left. A state whose tensors are all
    [N, any width] can be handed from rank to rank; of any other, nodes are dealt out instead.
    """

    in_width: int
    out_width: int

    @abstractmethod
    def begin(self, rows_ND: Tensor) -> State:
        """Return the state before the first snapshot, for as many nodes as `rows_ND` has."""

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
    total = banded_sum(known, num_before, band)
    count_T = torch.arange(num_before + 1, len(known) + 1, device=known.device)
    return total / count_T.clamp(max=band).to(known.dtype).view(-1, *[1] * (known.dim() - 1))


def banded_sum(known: Tensor, num_before: int, band: int) -> Tensor:
    """Return the sums that `banded_mean` divides; slices before `known` count as 0."""
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
    return total


class NodeLSTM(TemporalLayer):
    """One LSTM shared by all nodes, run along time (Manessi et al., 2020); state (h, c)."""

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


class NodeGRU(TemporalLayer):
    """One GRU shared by all nodes, run along time; state (h)."""

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


class LookingBack(TemporalLayer):
    """A recurrence that begins anew `history` - 1 snapshots before each one, or at the first.

    So what it makes of a snapshot depends on the last `history` of them alone. The state is the
    last `history` - 1 slices, as that of a band.
    """

    def __init__(self, layer: TemporalLayer, history: int) -> None:
        super().__init__()
        self.in_width, self.out_width = layer.in_width, layer.out_width
        self.layer, self.history = layer, history

    def begin(self, rows_ND: Tensor) -> State:
        """Return no slices."""
        return (rows_ND.new_empty(0, *rows_ND.shape),)

    def forward(self, rows_TND: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the result of each snapshot's own run, and the last slices."""
        known, reach = torch.cat([state[0], rows_TND]), self.history
        kept = known[max(0, len(known) - reach + 1) :]
        if not len(rows_TND):
            return rows_TND.new_empty(0, rows_TND.size(1), self.out_width), (kept,)
        results = []
        num_before, count = len(state[0]), rows_TND.size(1)
        if num_before < reach - 1:  # near the first snapshot runs are one, as long as it goes
            early = known[: reach - 1]
            results.append(self.layer(early, self.layer.begin(early[0]))[0][num_before:])
        if len(known) >= reach:
            # Windows side by side, as if each had nodes of its own.
            windows = known.unfold(0, reach, 1).permute(3, 0, 1, 2)
            run = windows.reshape(reach, -1, known.size(2))
            last = self.layer(run, self.layer.begin(run[0]))[0][-1]
            results.append(last.view(-1, count, self.out_width))
        return torch.cat(results), (kept,)


def edge_map(edge_width: int, out_width: int) -> nn.Linear | None:
    """Return what a spatial layer maps the features of edges with; None for no features.

    All 0, and nothing is drawn for it: a layer begins as one that reads none of them.
    """
    if not edge_width:
        return None
    linear = nn.utils.skip_init(nn.Linear, edge_width, out_width, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def with_edges(out_NO: Tensor, edges: nn.Linear | None, edge_sum_NF: Tensor | None) -> Tensor:
    """Return out + S V^T, or out where the layer reads no features of edges."""
    if edges is None:
        return out_NO
    assert edge_sum_NF is not None, "a layer that reads features of edges is given their sums"
    return out_NO + edges(edge_sum_NF)


class EvolvingGCN(nn.Module):
    """Pareja et al., 2020 (EvolveGCN): H_t = act(A_t X_t Q_t), where Q_t is a GRU's state.

    z = s(W_z s_t + U_z Q + B_z), r = s(W_r s_t + U_r Q + B_r), c = tanh(W_h s_t + U_h (r Q) + B_h),
    Q_t = (1 - z) Q_{t-1} + z c, with products of r and z by element. The input s_t [D, O] is
    Q_{t-1} itself (`o`), or the O rows of X_t with the highest scores X_t p / |p|, each times the
    tanh of its score (`h`); nodes without edges have no score. The state is as large as a
    weight, however many nodes there are. With a `history` of k the weight of each snapshot evolves
    k times from the first one (`h`: over the last k snapshots, fewer at the start). With features
    of edges H_t = act(A_t X_t Q_t + S_t V), S_t being their sums; V does not evolve.
    """

    history: int = 0
    """0: the weight runs on from the first snapshot."""

    def __init__(
        self, in_width: int, out_width: int, variant: Literal["o", "h"], edge_width: int = 0
    ) -> None:
        super().__init__()
        self.in_width, self.out_width, self.variant = in_width, out_width, variant
        self.first = nn.Parameter(torch.empty(in_width, out_width))
        self.input_maps = nn.Parameter(torch.empty(3, in_width, in_width))
        self.state_maps = nn.Parameter(torch.empty(3, in_width, in_width))
        self.biases = nn.Parameter(torch.zeros(3, in_width, out_width))
        self.scorer = nn.Parameter(torch.empty(in_width)) if variant == "h" else None
        for matrix in (self.first, *self.input_maps, *self.state_maps):
            nn.init.xavier_uniform_(matrix)
        if self.scorer is not None:
            nn.init.uniform_(self.scorer, -(in_width**-0.5), in_width**-0.5)
        self.edges, self.reads_edges = edge_map(edge_width, out_width), edge_width > 0

    def nominate(self, x: Rows, active_N: Tensor) -> Tensor:
        """Return [O, 1 + D], the O nodes with the highest scores: score and row of each.

        `active_N` tells which nodes have edges; where there are fewer, scores are -inf.
        """
        assert self.scorer is not None, "only the variant h looks at nodes"
        x_ND = dense(x)
        score_N = x_ND @ self.scorer / self.scorer.norm()
        candidates = active_N.nonzero().squeeze(1)
        count = min(self.out_width, len(candidates))
        best = candidates[score_N[candidates].topk(count).indices]
        found = torch.cat([score_N[best].unsqueeze(1), x_ND[best]], dim=1)
        missing = found.new_zeros(self.out_width - count, 1 + self.in_width)
        missing[:, 0] = -torch.inf
        # Of all scores, so that backward passes here also where there is no candidate.
        return torch.cat([found, missing]) + 0 * score_N.sum()

    def summarise(self, nominated: Tensor) -> Tensor:
        """Return s_t [D, O] of one snapshot: the best of what was nominated, anywhere."""
        score, x = nominated[:, 0], nominated[:, 1:]
        best = score.argsort(descending=True, stable=True)[: self.out_width]
        best = best[score[best] > -torch.inf]
        if not len(best):
            return x.new_zeros(self.in_width, self.out_width) + x[:0].sum()
        best = torch.cat([best, best[-1:].expand(self.out_width - len(best))])
        return (x[best] * score[best].tanh().unsqueeze(1)).t()

    def begin(self) -> State:
        """Return the state before the first snapshot: a weight, or no summaries of a history."""
        if not self.history:
            return (self.first,)
        empty = self.first.new_empty(0, self.in_width, self.out_width)
        return (empty,) if self.variant == "h" else ()

    def evolve(
        self, summaries_TDO: Tensor | None, state: State, steps: int
    ) -> tuple[list[Tensor], State]:
        """Return Q of each of the next `steps` snapshots and the state after them."""
        if not self.history:
            found = self._evolved(summaries_TDO, state[0], steps)
            return found, (found[-1],)
        if summaries_TDO is None:  # nothing is read, so all snapshots have the same
            return self._evolved(None, self.first, self.history)[-1:] * steps, ()
        known, num_before = torch.cat([state[0], summaries_TDO]), len(state[0])
        found = []
        for stop in range(num_before + 1, num_before + steps + 1):
            seen = known[max(0, stop - self.history) : stop]
            found.append(self._evolved(seen, self.first, len(seen))[-1])
        return found, (known[max(0, len(known) - self.history + 1) :],)

    def _evolved(self, summaries_TDO: Tensor | None, q_DO: Tensor, steps: int) -> list[Tensor]:
        found: list[Tensor] = []
        for step in range(steps):
            q_DO = self._next(q_DO if summaries_TDO is None else summaries_TDO[step], q_DO)
            found.append(q_DO)
        return found

    def _next(self, summary_DO: Tensor, q_DO: Tensor) -> Tensor:
        inputs_3DO = self.input_maps @ summary_DO + self.biases
        gates = torch.sigmoid(inputs_3DO[:2] + self.state_maps[:2] @ q_DO)
        update, reset = gates.unbind()
        candidate = torch.tanh(inputs_3DO[2] + self.state_maps[2] @ (reset * q_DO))
        return (1 - update) * q_DO + update * candidate

    def apply_weight(
        self, x: Rows, neighbours: Neighbours, q_DO: Tensor, edge_sum_NF: Tensor | None = None
    ) -> Tensor:
        """Return out_NO of one snapshot."""
        if isinstance(x, CachedRows):
            out_NO = x.aggregate @ q_DO
        elif self.out_width <= self.in_width:
            out_NO = neighbours.normalised_sum(dense(x) @ q_DO)
        else:
            out_NO = neighbours.normalised_sum(dense(x)) @ q_DO
        return nn.functional.leaky_relu(with_edges(out_NO, self.edges, edge_sum_NF), _SLOPE)

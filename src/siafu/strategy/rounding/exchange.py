"""Rows on the wire while training: which exchange of the epoch they belong to, and its draws.

Exchanges are numbered since the epoch began, alike on all ranks. A row's noise depends on seed,
epoch, exchange and node, not on the stage or the time it is fetched at: a second fetch brings the
same row. Gradients that two ranks return for one row are rounded by draws of their own.

Shapes: N owned rows read, M rows written, K columns of a block, S rows sent.
"""

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from siafu.comm import UNCHANGED, Coding, Codings, HaloPlan, Keeping, start_return
from siafu.nn import Draws
from siafu.ops import CSR, DrawKey, dropout_rows, sum_into
from siafu.shard import Shard
from siafu.strategy.rounding.book import WidthBook
from siafu.strategy.rounding.channel import Channels, RowChannel, RowForm, RowFormats
from siafu.strategy.rounding.lot import drawn_codings
from siafu.strategy.view import View

_FIRST_PURPOSE = 1 << 40
"""Draws of exchanges, apart from those of layers."""
LOT = _FIRST_PURPOSE - 1
"""Draws of the rows that travel at all: the same in every exchange of an epoch."""
_DIRECTIONS = 1 << 21
"""Purposes of one exchange: the way out, and the way home from each rank."""
LEAST_WIDTH = 10
"""Narrower rows, such as scores of attention heads, travel whole: with their two scales they would
hardly be halved at 8 bits."""

Stage = tuple[HaloPlan, Tensor]
"""How rows are fetched, and columns_K: which columns of the view they are."""

Squares = Callable[[int], Tensor]
"""Return, for a stage, the sum of squared coefficients each of its K columns is used with."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One exchange of one epoch: codings by tensor and stage; None for a tensor that is sent whole.

    They are kept from forward to backward, whatever is assigned in between.
    """

    there: tuple[tuple[Coding, ...] | None, ...]
    back: tuple[tuple[Coding, ...] | None, ...]

    def fetching(self, tensor: int, stage: int) -> Coding | None:
        """Return how a tensor's rows are fetched in a stage, the first time and again."""
        codings = self.there[tensor]
        return None if codings is None else codings[stage]

    def returning(self, tensor: int, stage: int) -> Coding | None:
        """Return how the gradients of a tensor's rows go home."""
        codings = self.back[tensor]
        return None if codings is None else codings[stage]


@dataclass(frozen=True, slots=True, eq=False)
class _Dropped:
    """Rows that were dropped last, and what they were before."""

    rows: "weakref.ref[Tensor]"
    before: Tensor
    key: DrawKey
    p: float


class Rounding:
    """Rounds what one layer's neighbours exchange while training; evaluation is exact."""

    def __init__(self, shard: Shard, view: View, draws: Draws, book: WidthBook) -> None:
        self._shard, self._view, self._draws, self._book = shard, view, draws, book
        self._dropped: _Dropped | None = None

    def note_dropped(self, rows_ND: Tensor, before_ND: Tensor, key: DrawKey, p: float) -> None:
        """Have rows travel as they were before entries were dropped, and receivers drop them.

        Else what both ends keep would differ from the next rows by all that is dropped.
        """
        if self._book.strategy.keeps_rows:
            self._dropped = _Dropped(weakref.ref(rows_ND), before_ND.detach(), key, p)

    def begin(
        self, stages: list[Stage], rows: tuple[Tensor, ...], squares: Squares
    ) -> Exchange | None:
        """Return the codings of the next exchange; None where rows are not to be rounded.

        Every rank calls this together, outside of what autograd hides gradients from.
        """
        if not (self._draws.training and torch.is_grad_enabled()):
            return None
        self._book.begin_epoch(self._draws.epoch)
        there: list[tuple[Coding, ...] | None] = []
        back: list[tuple[Coding, ...] | None] = []
        for tensor in rows:
            form = self._form(tensor)
            if form is None:
                there.append(None)
                back.append(None)
                continue
            number = self._draws.take_exchange()
            channels = self._channels(number, stages, form, squares)
            out, home = self._key(number, 0), self._key(number, 1 + self._view.world.rank)
            if self._book.strategy.boundary < 1:
                pair = self._drawn(channels, out, home)
                there.append(pair[0])
                back.append(pair[1])
                continue
            is_silent = self._book.is_silent(self._draws.epoch)
            codings = [replace(at.coding(out), is_silent=is_silent) for at in channels.there]
            there.append(tuple(self._before_dropout(tensor, stages, codings)))
            homeward = (channel.coding(home) for channel in channels.back)
            back.append(tuple(replace(coding, is_silent=is_silent) for coding in homeward))
        return Exchange(tuple(there), tuple(back))

    def _drawn(
        self, channels: Channels, out: DrawKey, home: DrawKey
    ) -> tuple[tuple[Coding, ...], tuple[Coding, ...]]:
        """Return codings of the rows that are drawn by lot in this epoch, there and back."""
        share, lot = self._book.strategy.boundary, self._draws.key(LOT)
        pairs = [
            drawn_codings(one, other, (out, home), lot, share)
            for one, other in zip(channels.there, channels.back, strict=True)
        ]
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)

    def _form(self, rows: Tensor) -> RowForm | None:
        """Return how rows are written; None where they travel as they are."""
        strategy, width = self._book.strategy, math.prod(rows.shape[1:])
        is_narrow, late = width < LEAST_WIDTH, strategy.staleness > 0
        is_whole = is_narrow and not late and strategy.boundary == 1
        if not rows.is_floating_point() or is_whole:
            return None
        changes = strategy.changes and not is_narrow
        narrow = changes and strategy.kept_bits == 16
        keeping = Keeping(changes, late, strategy.smoothing, narrow) if changes or late else None
        return RowForm(
            width=width,
            dtype=rows.dtype,
            device=self._view.in_ids.device,
            format=UNCHANGED if is_narrow else self._book.first_format,
            assigned=strategy.assigns_widths and not is_narrow,
            keeping=keeping,
        )

    def _before_dropout(
        self, rows: Tensor, stages: list[Stage], codings: list[Coding]
    ) -> list[Coding]:
        """Return codings that send rows as they were before dropout, where they were dropped."""
        dropped = self._dropped
        if dropped is None or dropped.rows() is not rows:
            return codings
        key, p, ids = dropped.key, dropped.p, self._view.column_ids

        def drop(columns_K: Tensor, rows_KD: Tensor) -> Tensor:
            return dropout_rows(rows_KD, ids.index_select(0, columns_K), key, p)

        return [
            replace(coding, before=dropped.before, after=partial(drop, plan.first_hand(columns_K)))
            for coding, (plan, columns_K) in zip(codings, stages, strict=True)
        ]

    def codings_of_all(self, x_ND: Tensor, plan: HaloPlan) -> Codings | None:
        """Return the codings of an exchange that fetches all halo rows at once, by this plan."""
        view = self._view
        columns = torch.arange(view.num_read, view.csr.num_cols, device=x_ND.device)

        def squares(stage: int) -> Tensor:
            return mean_squares(view.csr.transpose(), view.csr)[view.num_read :]

        exchange = self.begin([(plan, columns)], (x_ND,), squares)
        if exchange is None or exchange.there[0] is None or exchange.back[0] is None:
            return None
        return exchange.there[0][0], exchange.back[0][0]

    def _key(self, number: int, direction: int) -> DrawKey:
        return self._draws.key(_FIRST_PURPOSE + number * _DIRECTIONS + direction)

    def _channels(
        self, number: int, stages: list[Stage], form: RowForm, squares: Squares
    ) -> Channels:
        plans = tuple(plan for plan, _ in stages)

        def make() -> Channels:
            pairs = [self._pair(stage, form, partial(squares, n)) for n, stage in enumerate(stages)]
            there, back = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
            layer = self._draws.layer
            name = "" if layer is None else f"layer {layer + 1}"
            return Channels(plans, form.width, form.dtype, there, back, name)

        return self._book.channels(number, (plans, form.width, form.dtype), make)

    def _pair(
        self, stage: Stage, form: RowForm, squares: Callable[[], Tensor]
    ) -> tuple[RowChannel, RowChannel]:
        """Return what leaves this rank in a stage: owned rows, and gradients of halo rows."""
        (plan, columns_K), view = stage, self._view
        squares_S = torch.empty(0)
        if form.assigned:
            pending = start_return(squares().float()[:, None], plan, view.world, "control")
            used_S1 = pending.wait(view.world, "telling how rows are used")
            squares_S = used_S1.squeeze(1).bfloat16()  # two bytes tell rows apart well enough
        view_ids, column_ids, columns_K = view.in_ids, view.column_ids, plan.first_hand(columns_K)
        there = RowChannel(
            form,
            RowFormats(plan.sends, form),
            RowFormats(plan.reads, form),
            ids=lambda: view_ids.index_select(0, plan.send_rows),
            squares=lambda: squares_S,
            name_row=lambda place: self._name(int(plan.send_rows[place])),
        )
        back = RowChannel(
            form,
            RowFormats(plan.reads, form),
            RowFormats(plan.sends, form),
            ids=lambda: column_ids.index_select(0, columns_K),
            squares=lambda: torch.ones(len(columns_K)),
            name_row=lambda place: (
                f"gradient of node {int(column_ids[columns_K[place]])} (its number in the store)"
            ),
        )
        return there, back

    def _name(self, row: int) -> str:
        """Return what the user calls an owned row."""
        read = self._view.read_rows_N
        place = row if read is None else int(read[row])
        (name,) = self._shard.ids.take(np.array([place])).to_arrow().to_pylist()
        return f"row of node {name}"


def square_sums(back: CSR, row_M: Tensor | None, col_K: Tensor | None) -> Tensor:
    """Return, for each column, the sum over its edges of (row scale x weight x column scale)^2.

    `back` is the transpose.
    """
    if back.weight is not None:
        back = back.with_weight(back.weight.square())
    like = row_M if row_M is not None else back.weight
    dtype = torch.float32 if like is None else like.dtype
    ones_M1 = torch.ones(back.num_cols, 1, dtype=dtype, device=back.device)
    out_K1 = ones_M1.new_empty(back.num_rows, 1)
    squared_M = None if row_M is None else row_M.square()
    squared_K = None if col_K is None else col_K.to(dtype).square()
    sum_into(back, ones_M1, out_K1, row_scale_M=squared_K, col_scale_C=squared_M)
    return out_K1.squeeze(1)


def mean_squares(back: CSR, whole: CSR) -> Tensor:
    """Return the same as if each row took the mean of its in-edges, as attention does at first."""
    bare = CSR(back.indptr, back.index, back.num_cols)
    return square_sums(bare, 1.0 / whole.degree().clamp(min=1).float(), None)

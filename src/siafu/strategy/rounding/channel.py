"""Rows that travel one way in one stage of an exchange, and the formats they are written in.

A channel has one format for all of its rows, or, where formats are assigned, one for each message:
a row, or a group of neighbouring rows. What is traced and assigned is kept from epoch to epoch.

Shapes: S rows sent, K messages, rows or groups of rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from siafu.comm import FORMATS, Coding, Format, HaloPlan, Keeping, KeptRows
from siafu.ops import DrawKey, WireLayout
from siafu.strategy.rounding.assignment import Array, sensitivity


@dataclass(frozen=True, kw_only=True, slots=True)
class RowForm:
    """What rows of an exchange are like."""

    width: int
    """D."""
    dtype: torch.dtype
    device: torch.device
    format: Format
    """Of every row, to begin with."""
    assigned: bool
    """Whether messages get formats of their own later."""
    keeping: Keeping | None = None
    """What both ends keep of the rows; None: nothing."""

    def row_sizes(self) -> Tensor:
        """Return the bytes of a row by the code of its format."""
        return _row_sizes(self.width, self.dtype.itemsize, self.device)


@lru_cache(maxsize=64)
def _row_sizes(width: int, item_bytes: int, device: torch.device) -> Tensor:
    """Return the same for every message: to bring them to a device has the host wait for it."""
    sizes = [0] * (max(each.code for each in FORMATS) + 1)
    for each in FORMATS:
        sizes[each.code] = each.row_bytes(width, item_bytes)
    return torch.tensor(sizes, device=device)


class RowFormats:
    """The formats of rows that go one way, peer after peer, and where they lie in the message.

    Only peers that have any rows are known: in most stages of many ranks that is one.
    """

    __slots__ = ("_form", "bytes", "codes_K", "counts", "rows", "rows_K")

    def __init__(
        self, rows: Mapping[int, int], form: RowForm, groups: Mapping[int, Tensor] | None = None
    ) -> None:
        """`rows` go to each peer; `groups` has, for each peer, how many of them share a format.

        Without groups each row has its own.
        """
        self._form, self.rows = form, rows
        self.rows_K: Tensor | None = None
        """Rows of each message; None: one."""
        self.counts: Mapping[int, int] = rows if form.assigned else {}
        """Messages for each peer; none where all rows have one format."""
        if groups is not None:
            groups = groups if form.assigned else {}
            self.counts = {peer: len(rows_K) for peer, rows_K in groups.items()}
            none = torch.empty(0, dtype=torch.int64)
            self.rows_K = torch.cat([none, *groups.values()]).to(form.device)
        self.set_codes(form.format.codes(sum(self.counts.values()), form.device))

    def set_codes(self, codes_K: Tensor) -> None:
        """Give each message a format, by its code."""
        form, self.codes_K = self._form, codes_K
        if form.assigned:
            size_K = form.row_sizes()[codes_K.long()]
            size_K = size_K if self.rows_K is None else size_K * self.rows_K
            sums = [part.sum() for part in size_K.split(list(self.counts.values()))]
            told = torch.stack(sums).tolist() if sums else []
            self.bytes = dict(zip(self.counts, told, strict=True))
        else:
            each = form.format.row_bytes(form.width, form.dtype.itemsize)
            self.bytes = {peer: rows * each for peer, rows in self.rows.items()}

    def layout(self) -> Callable[[], WireLayout]:
        """Return what finds where each row lies in a message in the formats of now.

        It is found anew for every message: 9 bytes per row that nobody has to hold.
        """
        return partial(self._find_layout, self.codes_K, sum(self.bytes.values()))

    def _find_layout(self, codes_S: Tensor, num_bytes: int) -> WireLayout:
        form, count = self._form, sum(self.rows.values())
        if not form.assigned:
            codes_S = form.format.codes(count, form.device)
        elif self.rows_K is not None:
            codes_S = codes_S.repeat_interleave(self.rows_K, output_size=count)
        # The total is known, so the device need not wait for it as in `WireLayout.build`.
        start_S = torch.zeros(count + 1, dtype=torch.int64, device=form.device)
        torch.cumsum(form.row_sizes()[codes_S.long()], 0, out=start_S[1:])
        floats = None if form.assigned or not form.format.is_cast else form.format.code
        return WireLayout(codes_S, start_S, form.width, form.dtype, num_bytes, floats)


class RowChannel:
    """Rows this rank sends and rows it receives, one way, in one stage of an exchange."""

    def __init__(
        self,
        form: RowForm,
        sent: RowFormats,
        received: RowFormats,
        *,
        ids: Callable[[], Tensor],
        squares: Callable[[], Tensor],
        name_row: Callable[[int], str],
    ) -> None:
        """`ids` returns the numbers in the whole graph of the rows sent.

        `squares` returns, for each message, the sum of squared coefficients that its receivers use
        a row with; it is asked where formats are assigned.
        """
        self.form, self.sent, self.received = form, sent, received
        self.ids, self._squares, self._name_row = ids, squares, name_row
        self.kept = None if form.keeping is None else KeptRows(form.keeping)
        """What both ends have of the rows, where they keep anything."""
        self.times = 0
        """Exchanges traced."""
        count = len(sent.codes_K)
        self.ranges_K = torch.zeros(count, device=form.device)
        """The range of each message's rows: root of the mean square of the exchanges traced."""
        self.next_codes_K: Tensor | None = None
        """Formats that are assigned, but not in use yet."""

    @property
    def codes_K(self) -> Tensor:
        """The formats of the messages sent."""
        return self.sent.codes_K

    def rows_K(self) -> Tensor:
        """Return the rows of each message sent."""
        rows_K = self.sent.rows_K
        return torch.ones_like(self.codes_K, dtype=torch.int64) if rows_K is None else rows_K

    def set_codes(self, sent_K: Tensor, received_K: Tensor) -> None:
        """Give each message a format from now on."""
        self.sent.set_codes(sent_K)
        self.received.set_codes(received_K)

    def coding(self, key: DrawKey) -> Coding:
        """Return how rows are written now."""
        return Coding(
            self.sent.layout(),
            self.received.layout(),
            self.sent.bytes,
            self.received.bytes,
            self.ids,
            key,
            self._name_row,
            self._trace if self.form.assigned else None,
            self.kept,
            dtype=self.form.dtype,
        )

    def _trace(self, range_S: Tensor) -> None:
        squared_K = range_S.double().square()
        if self.sent.rows_K is not None and len(range_S):
            # Not index_add_, whose order of sums on a GPU changes from run to run.
            squared_K = torch.segment_reduce(squared_K, "sum", lengths=self.sent.rows_K)
        if len(range_S):
            squared_K += self.times * self.ranges_K.double().square()
            self.ranges_K = (squared_K / (self.times + 1)).sqrt().float()
        self.times += 1

    def take_sensitivities(self) -> Array:
        """Return beta of the messages sent, over what was traced since the last time."""
        assert self.form.assigned, "only what is traced is assigned"
        root_K, self.ranges_K = self.ranges_K, torch.zeros_like(self.ranges_K)
        self.times = 0
        squares_K = self._squares().float().cpu().numpy()
        return sensitivity(squares_K, root_K.cpu().numpy(), self.form.width)


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """All stages of one tensor's exchange: rows on their way out, and their gradients back."""

    plans: tuple[HaloPlan, ...]
    width: int
    dtype: torch.dtype
    there: tuple[RowChannel, ...]
    back: tuple[RowChannel, ...]
    name: str = ""
    """Where in the model rows travel, if that is known."""

    def fits(self, plans: tuple[HaloPlan, ...], width: int, dtype: torch.dtype) -> bool:
        """Return whether rows of this width travel by these plans here."""
        same = len(plans) == len(self.plans) and self.width == width and self.dtype == dtype
        return same and all(a is b for a, b in zip(plans, self.plans, strict=True))

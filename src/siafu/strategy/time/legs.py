"""Rows that travel along time in one block, one way, and the widths they are rounded to.

All rows of all blocks of all snapshots travel once an epoch, T N of them, so nothing is kept for
each row: ids, widths and places in the message are made anew for every exchange. Where widths are
assigned, rows of one snapshot and neighbouring vertices share one, `GROUP_ROWS` of them, so that
what is kept of them from epoch to epoch is two bytes a row, however wide it is.

Shapes: S rows sent, K groups of rows, N vertices of this rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from siafu.comm import Coding
from siafu.comm.widths import Array, sensitivity
from siafu.ops import DrawKey, WireLayout, row_bytes

GROUP_ROWS = 16
"""Rows of a snapshot that share a width."""


@dataclass(frozen=True, slots=True, eq=False)
class RowIds:
    """The numbers in the whole graph of a rank's vertices: what draws depend on."""

    vertices_N: Tensor
    num_all: int
    """Vertices of the whole graph."""

    def of(self, patch: "Patch") -> Tensor:
        """Return an id for each row of a patch, no two of any snapshots or vertices alike."""
        steps_t = torch.tensor(patch.steps, dtype=torch.int64, device=self.vertices_N.device)
        vertices_n = self.vertices_N[patch.first : patch.first + patch.vertices]
        return (steps_t[:, None] * self.num_all + vertices_n).flatten()

    def name(self, row_id: int) -> str:
        """Return what to call a row with such an id."""
        step, vertex = divmod(row_id, self.num_all)
        return f"vertex {vertex} (its number in the store), snapshot {step}"


@dataclass(frozen=True, slots=True)
class Patch:
    """Rows between this rank and one other: some snapshots of some neighbouring vertices."""

    steps: tuple[int, ...] = ()
    first: int = 0
    """The first vertex, by its place on this rank."""
    vertices: int = 0
    squares: tuple[float, ...] = ()
    """Sums of squared coefficients that rows of each snapshot are used with; none: 1."""

    @property
    def num_rows(self) -> int:
        """Rows of the patch, snapshot after snapshot."""
        return len(self.steps) * self.vertices

    def groups(self) -> Tensor:
        """Return rows_K, how many rows share a width, snapshot after snapshot."""
        cuts = torch.arange(0, self.vertices + GROUP_ROWS, GROUP_ROWS).clamp(max=self.vertices)
        return cuts.diff().repeat(len(self.steps))

    def group_squares(self) -> Tensor:
        """Return for each group how its rows are used."""
        each = torch.tensor(self.squares or (1.0,) * len(self.steps), dtype=torch.float64)
        return each.repeat_interleave(-(-self.vertices // GROUP_ROWS))


@dataclass(frozen=True, kw_only=True, slots=True)
class RowForm:
    """What rows of an exchange are like."""

    width: int
    dtype: torch.dtype
    device: torch.device
    bits: int
    """To begin with."""
    assigned: bool
    """Whether groups get widths of their own later."""


class _Side:
    """What goes one way, for each peer: in groups where widths are assigned."""

    def __init__(self, patches: Sequence[Patch], form: RowForm) -> None:
        self.form, self._rows = form, [patch.num_rows for patch in patches]
        groups = [patch.groups() for patch in patches if form.assigned]
        self.counts = tuple(len(rows_K) for rows_K in groups)
        self.rows_K = torch.cat([torch.empty(0, dtype=torch.int64), *groups]).to(form.device)
        self.set_bits(torch.full_like(self.rows_K, form.bits, dtype=torch.uint8))

    def set_bits(self, bits_K: Tensor) -> None:
        """Give each group a width."""
        form, self.bits_K = self.form, bits_K
        if form.assigned:
            bytes_K = self._sizes()[bits_K.long()] * self.rows_K
            self.bytes = tuple(int(part.sum()) for part in bytes_K.split(self.counts))
        else:
            each = row_bytes(form.bits, form.width, form.dtype.itemsize)
            self.bytes = tuple(rows * each for rows in self._rows)

    def _sizes(self) -> Tensor:
        """Return the bytes of a row at each width that can be assigned."""
        sizes = [0] * 9
        for bits in (2, 4, 8):
            sizes[bits] = row_bytes(bits, self.form.width)
        return torch.tensor(sizes, device=self.form.device)

    def layout(self) -> WireLayout:
        """Return where each row lies in the message."""
        form, count = self.form, sum(self._rows)
        if form.assigned:
            bits_S = self.bits_K.repeat_interleave(self.rows_K, output_size=count)
            size_S = self._sizes()[bits_S.long()]
        else:
            bits_S = torch.full((count,), form.bits, dtype=torch.uint8, device=form.device)
            each = row_bytes(form.bits, form.width, form.dtype.itemsize)
            size_S = torch.full((count,), each, device=form.device)
        start_S = torch.zeros(count + 1, dtype=torch.int64, device=form.device)
        torch.cumsum(size_S, 0, out=start_S[1:])
        return WireLayout(bits_S, start_S, form.width, form.dtype, sum(self.bytes))


class TimeLeg:
    """Rows of one block that this rank sends and receives, a patch for each rank."""

    def __init__(
        self, sent: Sequence[Patch], received: Sequence[Patch], form: RowForm, ids: RowIds
    ) -> None:
        self._patches, self._form, self._ids = tuple(sent), form, ids
        self._sent, self._received = _Side(sent, form), _Side(received, form)
        self.times = 0
        """Exchanges traced."""
        self.ranges_S = torch.zeros(len(self.bits_S), dtype=torch.float64, device=form.device)
        """Squared ranges of a group's rows, summed over the exchanges traced."""
        self.next_bits_S: Tensor | None = None
        """Widths that are assigned, but not in use yet."""

    @property
    def width(self) -> int:
        """D."""
        return self._form.width

    @property
    def bits_S(self) -> Tensor:
        """The width of each group sent."""
        return self._sent.bits_K

    @property
    def rows_S(self) -> Tensor:
        """The rows of each group sent."""
        return self._sent.rows_K

    @property
    def message_counts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Groups to each rank, and from each."""
        return self._sent.counts, self._received.counts

    def set_widths(self, sent_S: Tensor, received_R: Tensor) -> None:
        """Give each group a width from now on."""
        self._sent.set_bits(sent_S)
        self._received.set_bits(received_R)

    def coding(self, key: DrawKey, what: str) -> Coding:
        """Return how rows are written now; `what` they are, for errors."""
        ids_S = torch.cat([self._ids.of(patch) for patch in self._patches])
        return Coding(
            self._sent.layout(),
            self._received.layout(),
            self._sent.bytes,
            self._received.bytes,
            ids_S,
            key,
            partial(self._name, what, ids_S),
            self._trace if self._form.assigned else None,
        )

    def _name(self, what: str, ids_S: Tensor, place: int) -> str:
        return f"{what} of {self._ids.name(int(ids_S[place]))}"

    def _trace(self, range_S: Tensor) -> None:
        self.times += 1
        if len(range_S):
            # Not index_add_, whose order of sums on a GPU changes from run to run.
            squared_S = range_S.double().square()
            self.ranges_S += torch.segment_reduce(squared_S, "sum", lengths=self.rows_S)

    def take_sensitivities(self) -> Array:
        """Return beta of the groups sent, over what was traced since the last time."""
        root_S = (self.ranges_S / max(1, self.times)).sqrt()
        self.ranges_S.zero_()
        self.times = 0
        squares_S = torch.cat([patch.group_squares() for patch in self._patches])
        return sensitivity(squares_S.numpy(), root_S.cpu().numpy(), self.width)

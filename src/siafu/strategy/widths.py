"""The widths at which rows travel, for every exchange of an epoch, and their reassignment.

While training, the range of each row sent is noted. After a period of epochs every rank assigns
widths to the rows it sends, by `comm.widths`, in a thread beside training; two epochs later, the
same on all ranks, receivers are told and the new widths apply. Variances of different exchanges
(activations, gradients) have no common unit, so each exchange counts relative to its own: the sum
of its sensitivities is scaled to 1. Rows begin at 8 bits, and the first period is short: every
epoch at 8 bits costs two at 4.

Shapes: S rows sent, R rows received, K rows sent in all exchanges.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from siafu.comm import Coding, HaloPlan, World, start_exchange
from siafu.comm.widths import (
    Array,
    Messages,
    assign_bytes,
    mean_bits_budget,
    random_assignment,
    sensitivity,
)
from siafu.errors import StoreError
from siafu.ops import DrawKey, WireLayout
from siafu.strategy.strategy import Strategy

LAG_EPOCHS = 2
"""Epochs between the end of a period and the use of what it taught."""
FIRST_BITS = 8
FIRST_PERIOD = 5
"""Epochs until widths are assigned for the first time."""
_DIRECTIONS = ("there", "back")


class Traced(Protocol):
    """What the book knows of a leg: messages, of one row or several, that have a width each."""

    times: int
    next_bits_S: Tensor | None

    @property
    def width(self) -> int:
        """D."""
        ...

    @property
    def bits_S(self) -> Tensor:
        """uint8: the widths in use, of what this rank sends."""
        ...

    @property
    def ranges_S(self) -> Tensor:
        """float64: what was traced of each message."""
        ...

    @property
    def rows_S(self) -> Tensor | None:
        """Rows of each message; None: one."""
        ...

    @property
    def message_counts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Messages to each rank, and from each."""
        ...

    def set_widths(self, sent_S: Tensor, received_R: Tensor) -> None:
        """Give each message a width from now on."""
        ...

    def take_sensitivities(self) -> Array:
        """Return beta of what is sent, over what was traced since the last time."""
        ...


LegT = TypeVar("LegT", bound=Traced)


@dataclass(eq=False, kw_only=True)
class Leg:
    """One stage of an exchange in one direction: rows this rank sends and rows it receives."""

    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]
    ids_S: Tensor
    width: int
    dtype: torch.dtype
    name_row: Callable[[int], str]
    bits: int
    """Of every row, to begin with."""
    squares_S: Tensor | None = None
    """Sums of squared coefficients that receivers use a row with; None: nothing is traced."""
    ranges_S: Tensor = field(init=False)
    """float64: squared ranges, summed over the exchanges traced."""
    times: int = 0
    """Exchanges traced."""
    next_bits_S: Tensor | None = None
    """Widths that are assigned, but not in use yet."""
    rows_S: None = None

    def __post_init__(self) -> None:
        count, device = sum(self.recv_counts), self.ids_S.device
        self.ranges_S = torch.zeros(len(self.ids_S), dtype=torch.float64, device=device)
        sent_S = torch.full((len(self.ids_S),), self.bits, dtype=torch.uint8, device=device)
        self.set_widths(sent_S, sent_S.new_full((count,), self.bits))

    def set_widths(self, sent_S: Tensor, received_R: Tensor) -> None:
        """Give each row a width from now on."""
        self.sent = WireLayout.build(sent_S, self.width, self.dtype)
        self.received = WireLayout.build(received_R, self.width, self.dtype)
        self._sent_bytes = tuple(self.sent.split_bytes(self.send_counts))
        self._received_bytes = tuple(self.received.split_bytes(self.recv_counts))

    @property
    def bits_S(self) -> Tensor:
        """The widths of the rows sent."""
        return self.sent.bits_S

    @property
    def message_counts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows to each rank, and from each."""
        return self.send_counts, self.recv_counts

    def coding(self, key: DrawKey) -> Coding:
        """Return how rows are written now."""
        return Coding(
            self.sent,
            self.received,
            self._sent_bytes,
            self._received_bytes,
            self.ids_S,
            key,
            self.name_row,
            None if self.squares_S is None else self._trace,
        )

    def _trace(self, range_S: Tensor) -> None:
        self.ranges_S += range_S.double().square()
        self.times += 1

    def take_sensitivities(self) -> Array:
        """Return beta of the rows sent, over what was traced since the last time."""
        assert self.squares_S is not None, "only what is traced is assigned"
        root_S = (self.ranges_S / max(1, self.times)).sqrt()
        self.ranges_S.zero_()
        self.times = 0
        return sensitivity(self.squares_S.cpu().numpy(), root_S.cpu().numpy(), self.width)


@dataclass(frozen=True, slots=True, eq=False)
class Exchange(Generic[LegT]):
    """All stages of one tensor's exchange."""

    plans: tuple[HaloPlan, ...]
    width: int
    dtype: torch.dtype
    there: tuple[LegT, ...]
    back: tuple[LegT, ...]

    def fits(self, plans: tuple[HaloPlan, ...], width: int, dtype: torch.dtype) -> bool:
        """Return whether rows of this width travel by these plans here."""
        same = len(plans) == len(self.plans) and self.width == width and self.dtype == dtype
        return same and all(a is b for a, b in zip(plans, self.plans, strict=True))


@dataclass(frozen=True, slots=True)
class Widths:
    """How many rows this rank sends at each width in one exchange, from an epoch on."""

    epoch: int
    exchange: int
    direction: str
    rows: dict[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What a checkpoint tells of a leg."""

    times: int
    has_next: bool
    rows: Tensor


class WidthBook:
    """The widths of all exchanges of a run; one a rank, shared by all layers."""

    def __init__(self, strategy: Strategy, world: World, seed: int) -> None:
        self.strategy, self._world, self._seed = strategy, world, seed
        self._exchanges: dict[int, Exchange[Any]] = {}
        self._epoch: int | None = None
        self._coming: tuple[list[Traced], Future[Array]] | None = None
        self._saved: dict[tuple[int, int, int], _Known] = {}
        """What a resumed run knew of its legs, until they are made."""
        self.history: list[Widths] = []
        """Every assignment that was applied, in order."""

    @property
    def bits(self) -> int:
        """What rows begin with."""
        return FIRST_BITS if self.strategy.assigns_widths else int(self.strategy.wire)

    def exchange(
        self,
        number: int,
        rows: tuple[tuple[HaloPlan, ...], int, torch.dtype],
        make: Callable[[], Exchange[LegT]],
    ) -> Exchange[LegT]:
        """Return the exchange of that number, made anew where other rows travel than before."""
        known = self._exchanges.get(number)
        if known is None or not known.fits(*rows):
            known = self._exchanges[number] = make()
            self._take_up(number, known)
            self._apply_if_due()
        return known

    def turn_to(self, epoch: int) -> None:
        """Begin or apply an assignment where this epoch is due; all ranks call this together."""
        if not self.strategy.assigns_widths or epoch == self._epoch:
            return
        self._epoch = epoch
        self.end_epoch(epoch - 1)
        self._apply_if_due()

    def end_epoch(self, epoch: int) -> None:
        """Begin an assignment where a period ends; again does nothing."""
        is_last = self.strategy.assigns_widths and self._ends_period(epoch)
        if is_last and any(leg.times for _, legs in self._legs() for leg in legs):
            self._start(epoch)

    def _ends_period(self, epoch: int) -> bool:
        period = self.strategy.wire_period
        # One assignment is in use before the next begins.
        first = FIRST_PERIOD if period > FIRST_PERIOD + LAG_EPOCHS else period
        return epoch == first or epoch % period == 0

    def _legs(self) -> Iterator[tuple[tuple[int, int], tuple[Traced, ...]]]:
        """Yield the legs of each exchange and direction (0: there, 1: back), in one order."""
        for number, exchange in sorted(self._exchanges.items()):
            for direction, legs in enumerate((exchange.there, exchange.back)):
                yield (number, direction), legs

    def _start(self, epoch: int) -> None:
        legs: list[Traced] = []
        betas, sizes, rows = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for _, group in self._legs():
            if not any(leg.times for leg in group):
                continue  # nothing ever returns to a constant input
            found = np.concatenate([leg.take_sensitivities() for leg in group])
            betas.append(found / max(found.sum(), np.finfo(np.float64).tiny))
            sizes.append(np.full(len(found), group[0].width))
            rows.extend(_rows_of(leg).cpu().numpy() for leg in group)
            legs.extend(group)
        beta_K, width_K = np.concatenate(betas), np.concatenate(sizes)
        messages = Messages(beta_K, width_K, np.concatenate(rows))
        # The thread ends with its one task.
        beside = ThreadPoolExecutor(1, thread_name_prefix="siafu-widths")
        self._coming = legs, beside.submit(self._assign, messages, self._seed + epoch)
        beside.shutdown(wait=False)

    def _assign(self, messages: Messages, seed: int) -> Array:
        budget = mean_bits_budget(messages, self.strategy.wire_bits)
        if self.strategy.wire == "random":
            return random_assignment(messages, budget, seed).bits_K
        return assign_bytes(messages, budget).bits_K

    def _settle(self) -> None:
        """Wait for the assignment that is under way, if any."""
        if self._coming is None:
            return
        legs, future = self._coming
        self._coming = None
        bits_K = torch.from_numpy(future.result()).to(self._world.device)
        counts = [len(leg.bits_S) for leg in legs]
        for leg, bits_S in zip(legs, bits_K.split(counts), strict=True):
            leg.next_bits_S = bits_S

    def _apply_if_due(self) -> None:
        """In the epoch for it, tell receivers the widths that were assigned, and use them."""
        epoch = self._epoch
        if epoch is None or not self._ends_period(epoch - 1 - LAG_EPOCHS):
            return
        self._settle()
        due = [leg for _, legs in self._legs() for leg in legs if leg.next_bits_S is not None]
        self._tell([(leg, leg.next_bits_S) for leg in due if leg.next_bits_S is not None])
        for (number, direction), legs in self._legs():
            if any(leg in due for leg in legs):
                rows = _rows_by_width(legs)
                self.history.append(Widths(epoch, number, _DIRECTIONS[direction], rows))
        for leg in due:
            leg.next_bits_S = None

    def _tell(self, widths: list[tuple[Traced, Tensor]]) -> None:
        told = []
        for leg, bits_S in widths:
            told.append(start_exchange(bits_S, *leg.message_counts, self._world, "control"))
        for (leg, bits_S), pending in zip(widths, told, strict=True):
            leg.set_widths(bits_S, pending.wait(self._world, "telling widths"))

    def state(self) -> tuple[Tensor, Tensor]:
        """Return what later widths depend on: a row a leg, and a row for each row that is sent.

        The first has exchange, direction, stage, rows, times traced, and whether other widths are
        assigned already; the second the bits, those to come, and what was traced. All float64.
        """
        self._settle()
        heads: list[list[float]] = []
        rows = [torch.empty(0, 3, dtype=torch.float64, device=self._world.device)]
        for (number, direction), legs in self._legs():
            for stage, leg in enumerate(legs):
                bits_S, has_next = leg.bits_S.double(), leg.next_bits_S is not None
                next_S = bits_S if leg.next_bits_S is None else leg.next_bits_S.double()
                heads.append([number, direction, stage, len(bits_S), leg.times, has_next])
                rows.append(torch.stack([bits_S, next_S, leg.ranges_S], dim=1))
        table = torch.tensor(heads, dtype=torch.float64, device=self._world.device)
        return table.view(-1, 6), torch.cat(rows)

    def restore(self, heads: Tensor, rows: Tensor) -> None:
        """Take up what `state` returned, as soon as the exchanges are made."""
        parts = rows.to(self._world.device).split(heads[:, 3].long().tolist())
        for head, part in zip(heads.long().tolist(), parts, strict=True):
            number, direction, stage, _, times, has_next = head
            self._saved[number, direction, stage] = _Known(times, bool(has_next), part)

    def _take_up(self, number: int, exchange: Exchange[Any]) -> None:
        """Set an exchange to what a resumed run knew of it; all ranks know it or none."""
        widths = []
        for direction, legs in enumerate((exchange.there, exchange.back)):
            for stage, leg in enumerate(legs):
                if (known := self._saved.pop((number, direction, stage), None)) is not None:
                    _check_rows(known, leg)
                    leg.times = known.times
                    leg.ranges_S.copy_(known.rows[:, 2])
                    widths.append((leg, known.rows[:, 0].to(torch.uint8)))
                    if known.has_next:
                        leg.next_bits_S = known.rows[:, 1].to(torch.uint8)
        self._tell(widths)


def _check_rows(known: "_Known", leg: Traced) -> None:
    if len(known.rows) != len(leg.bits_S):
        raise StoreError(
            "The widths of messages in the checkpoint are of other messages.",
            seen=f"{len(known.rows)} rows in it, {len(leg.bits_S)} are sent",
            fix="resume with the data, ranks and settings of the run",
        )


def _rows_of(leg: Traced) -> Tensor:
    """Return the rows of each message."""
    return torch.ones_like(leg.bits_S, dtype=torch.int64) if leg.rows_S is None else leg.rows_S


def _rows_by_width(legs: Sequence[Traced]) -> dict[int, int]:
    """Return how many of the rows sent have each width."""
    bits = torch.cat([leg.bits_S for leg in legs])
    rows = torch.cat([_rows_of(leg) for leg in legs])
    return {int(width): int(rows[bits == width].sum()) for width in bits.unique()}

"""The formats in which rows travel, for every exchange of an epoch, and their reassignment.

While training, the range of each row sent is noted. After a period of epochs every rank assigns
formats to the rows it sends, in a thread beside training; two epochs later, the same on all ranks,
receivers are told and the new formats apply. Variances of different exchanges (activations,
gradients) have no common unit, so each exchange counts relative to its own: the sum of its
sensitivities is scaled to 1. Rows begin at 8 bits, and the first period is short: every
epoch at 8 bits costs two at 4.

Shapes: K messages sent, of one channel or of all exchanges.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siafu.comm import Format, HaloPlan, World, start_exchange
from siafu.errors import StoreError
from siafu.strategy.rounding.assignment import (
    CHANGE_CHOICES,
    CHOICES,
    Array,
    Messages,
    assign_bytes,
    mean_bits_budget,
    random_assignment,
)
from siafu.strategy.rounding.channel import Channels, RowChannel
from siafu.strategy.strategy import Strategy

LAG_EPOCHS = 2
"""Epochs between the end of a period and the use of what it taught."""
FIRST_FORMAT = Format("rounded", 8)
FIRST_PERIOD = 5
"""Epochs until formats are assigned for the first time."""
_DIRECTIONS = ("there", "back")
_HEAD = ("exchange", "direction", "stage", "messages", "times", "has_next")
"""What a checkpoint tells of a channel, beside what it has of its rows."""


@dataclass(frozen=True, slots=True)
class Widths:
    """How many rows this rank sends in each format in one exchange, from an epoch on."""

    epoch: int
    exchange: int
    direction: str
    rows: dict[Format, int]
    name: str
    """Where in the model rows travel, if that is known."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What a checkpoint has of a channel."""

    times: int
    has_next: bool
    codes_K2: Tensor
    ranges_K: Tensor
    kept_RD: Tensor | None


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that a rank keeps of one exchange: as it sent them and as it received them."""

    exchange: int
    direction: str
    rows: int
    num_bytes: int
    name: str


class WidthBook:
    """The formats of all exchanges of a run; one per rank, shared by all layers."""

    def __init__(self, strategy: Strategy, world: World, seed: int) -> None:
        self.strategy, self._world, self._seed = strategy, world, seed
        self._channels: dict[int, Channels] = {}
        self._epoch: int | None = None
        self._coming: tuple[list[RowChannel], Future[Array]] | None = None
        self._saved: dict[tuple[int, int, int], _Known] = {}
        """What a resumed run knew of its channels, until they are made."""
        self.history: list[Widths] = []
        """Every assignment that was applied, in order."""

    @property
    def first_format(self) -> Format:
        """What rows begin with."""
        wire = self.strategy.wire
        # Where most epochs send nothing, one that does sends what lasts.
        return FIRST_FORMAT if self.strategy.assigns_widths or wire == 0 else Format.of_wire(wire)

    @property
    def choices(self) -> tuple[Format, ...]:
        """What rows may be given."""
        return CHANGE_CHOICES if self.strategy.wire_bits < 2 else CHOICES

    def is_silent(self, epoch: int) -> bool:
        """Return whether rows that are kept are read in an epoch, and none travel."""
        return self.strategy.wire == 0 and (epoch - 1) % self.strategy.wire_period != 0

    def channels(
        self,
        number: int,
        rows: tuple[tuple[HaloPlan, ...], int, torch.dtype],
        make: Callable[[], Channels],
    ) -> Channels:
        """Return an exchange's channels, made anew where other rows travel than before."""
        known = self._channels.get(number)
        if known is None or not known.fits(*rows):
            known = self._channels[number] = make()
            self._take_up(number, known)
            self._apply_if_due()
        return known

    def begin_epoch(self, epoch: int) -> None:
        """Begin or apply an assignment where this epoch is due; all ranks call this together."""
        if not self.strategy.assigns_widths or epoch == self._epoch:
            return
        self._epoch = epoch
        self.end_epoch(epoch - 1)
        self._apply_if_due()

    def end_epoch(self, epoch: int) -> None:
        """Begin an assignment where a period ends; again does nothing."""
        is_last = self.strategy.assigns_widths and self._ends_period(epoch)
        if is_last and any(channel.times for _, channels in self._all() for channel in channels):
            self._start(epoch)

    def _ends_period(self, epoch: int) -> bool:
        period = self.strategy.wire_period
        # One assignment is in use before the next begins.
        first = FIRST_PERIOD if period > FIRST_PERIOD + LAG_EPOCHS else period
        return epoch == first or epoch % period == 0

    def _all(self) -> Iterator[tuple[tuple[int, int], tuple[RowChannel, ...]]]:
        """Yield the channels of each exchange and direction (0: there, 1: back), in one order."""
        for number, channels in sorted(self._channels.items()):
            for direction, group in enumerate((channels.there, channels.back)):
                yield (number, direction), group

    def _start(self, epoch: int) -> None:
        channels: list[RowChannel] = []
        betas, sizes, rows = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for _, group in self._all():
            if not any(channel.times for channel in group):
                continue  # nothing ever returns to a constant input
            found = np.concatenate([channel.take_sensitivities() for channel in group])
            betas.append(found / max(found.sum(), np.finfo(np.float64).tiny))
            sizes.append(np.full(len(found), group[0].form.width))
            rows.extend(channel.rows_K().cpu().numpy() for channel in group)
            channels.extend(group)
        beta_K, width_K = np.concatenate(betas), np.concatenate(sizes)
        messages = Messages(beta_K, width_K, np.concatenate(rows))
        # The thread ends with its one task.
        beside = ThreadPoolExecutor(1, thread_name_prefix="siafu-widths")
        self._coming = channels, beside.submit(self._assign, messages, self._seed + epoch)
        beside.shutdown(wait=False)

    def _assign(self, messages: Messages, seed: int) -> Array:
        budget = mean_bits_budget(messages, self.strategy.wire_bits)
        if self.strategy.wire == "random":
            return random_assignment(messages, budget, seed, self.choices).codes_K
        return assign_bytes(messages, budget, self.choices).codes_K

    def _settle(self) -> None:
        """Wait for the assignment that is under way, if any."""
        if self._coming is None:
            return
        channels, future = self._coming
        self._coming = None
        assigned_K = torch.from_numpy(future.result()).to(self._world.device)
        counts = [len(channel.codes_K) for channel in channels]
        for channel, codes_K in zip(channels, assigned_K.split(counts), strict=True):
            channel.next_codes_K = codes_K

    def _apply_if_due(self) -> None:
        """In the epoch for it, tell receivers the formats that were assigned, and use them."""
        epoch = self._epoch
        if epoch is None or not self._ends_period(epoch - 1 - LAG_EPOCHS):
            return
        self._settle()
        members = [channel for _, group in self._all() for channel in group]
        due = {each: codes for each in members if (codes := each.next_codes_K) is not None}
        self._apply(due)
        for (number, direction), group in self._all():
            if any(channel in due for channel in group):
                rows = _rows_by_format(group)
                name = self._channels[number].name
                self.history.append(Widths(epoch, number, _DIRECTIONS[direction], rows, name))
        for channel in due:
            channel.next_codes_K = None

    def _apply(self, formats: dict[RowChannel, Tensor]) -> None:
        """Tell receivers the formats of what is sent, and use them; all ranks call this."""
        coming = []
        for channel, codes_K in formats.items():
            counts = channel.sent.counts, channel.received.counts
            coming.append(start_exchange(codes_K, *counts, self._world, "control"))
        for (channel, codes_K), pending in zip(formats.items(), coming, strict=True):
            channel.set_codes(codes_K, pending.wait(self._world, "telling widths"))

    def rest(self) -> None:
        """Wait for late rows that are on their way; every rank calls this together."""
        for _, group in self._all():
            for channel in group:
                if channel.kept is not None:
                    channel.kept.settle()

    def kept(self) -> list[Kept]:
        """Return what this rank keeps from epoch to epoch, by exchange and direction."""
        found = []
        for (number, direction), group in self._all():
            ends = [end for one in group if one.kept is not None for end in one.kept.held()]
            if ends:
                rows, size = sum(map(len, ends)), sum(end.nbytes for end in ends)
                name = self._channels[number].name
                found.append(Kept(number, _DIRECTIONS[direction], rows, size, name))
        return found

    def kept_tensors(self) -> list[Tensor]:
        """Return the same as tensors."""
        channels = (one for _, group in self._all() for one in group if one.kept is not None)
        return [end for one in channels if one.kept is not None for end in one.kept.held()]

    def state(self) -> dict[str, Tensor]:
        """Return what later messages of this rank depend on.

        `channels` has a row for each: exchange, direction, stage, messages, times traced, and
        whether other formats are assigned already; `codes` the format of each message sent and that
        to come, `ranges` what was traced of it; `kept-A-B-C` rows as they were last received.
        """
        self._settle()
        self.rest()
        heads: list[list[int]] = []
        device = self._world.device
        codes = [torch.empty(0, 2, dtype=torch.uint8, device=device)]
        ranges = [torch.empty(0, device=device)]
        found: dict[str, Tensor] = {}
        for (number, direction), channels in self._all():
            for stage, channel in enumerate(channels):
                now_K, has_next = channel.codes_K, channel.next_codes_K is not None
                next_K = now_K if channel.next_codes_K is None else channel.next_codes_K
                heads.append([number, direction, stage, len(now_K), channel.times, has_next])
                codes.append(torch.stack([now_K, next_K], dim=1))
                ranges.append(channel.ranges_K)
                if channel.kept is not None and not channel.kept.is_new:
                    found[f"kept-{number}-{direction}-{stage}"] = channel.kept.rows
        table = torch.tensor(heads, dtype=torch.int64).view(-1, len(_HEAD))
        return {"channels": table, "codes": torch.cat(codes), "ranges": torch.cat(ranges), **found}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` returned, as soon as the exchanges are made."""
        counts = state["channels"][:, 3].tolist()
        codes, ranges = state["codes"].split(counts), state["ranges"].split(counts)
        for head, codes_K2, ranges_K in zip(state["channels"].tolist(), codes, ranges, strict=True):
            number, direction, stage, _, times, has_next = head
            kept_RD = state.get(f"kept-{number}-{direction}-{stage}")
            known = _Known(times, bool(has_next), codes_K2, ranges_K, kept_RD)
            self._saved[number, direction, stage] = known

    def _take_up(self, number: int, channels: Channels) -> None:
        """Set an exchange to what a resumed run knew of it; all ranks know it or none."""
        formats, device = {}, self._world.device
        for direction, group in enumerate((channels.there, channels.back)):
            for stage, channel in enumerate(group):
                if (known := self._saved.pop((number, direction, stage), None)) is not None:
                    _check_rows(known, channel)
                    channel.times = known.times
                    channel.ranges_K = known.ranges_K.to(device)
                    formats[channel] = known.codes_K2[:, 0].contiguous().to(device)
                    if known.has_next:
                        channel.next_codes_K = known.codes_K2[:, 1].contiguous().to(device)
                    if known.kept_RD is not None:
                        self._keep(channel, known.kept_RD.to(device))
        self._apply({at: codes for at, codes in formats.items() if at.form.assigned})

    def _keep(self, channel: RowChannel, rows_RD: Tensor) -> None:
        """Have both ends keep what was last received here."""
        kept = channel.kept
        assert kept is not None
        kept.received_RD = rows_RD
        if kept.keeping.changes:
            counts = channel.received.rows, channel.sent.rows
            pending = start_exchange(rows_RD, *counts, self._world, "control")
            kept.sent_SD = pending.wait(self._world, "telling what is kept")


def _check_rows(known: _Known, channel: RowChannel) -> None:
    rows, kept = len(known.codes_K2), known.kept_RD
    wanted = sum(channel.received.rows.values()), channel.form.width
    is_kept = kept is None or (
        channel.kept is not None
        and (kept.shape, kept.dtype) == (wanted, channel.kept.dtype(channel.form.dtype))
    )
    if rows != len(channel.codes_K) or not is_kept:
        told = "" if kept is None else f", {tuple(kept.shape)} kept"
        raise StoreError(
            "What the checkpoint has of messages is of other messages.",
            seen=f"{rows} rows{told} in it, {len(channel.codes_K)} sent, {wanted} received",
            fix="resume with the data, ranks and settings of the run",
        )


def _rows_by_format(channels: Sequence[RowChannel]) -> dict[Format, int]:
    """Return how many of the rows sent have each format."""
    codes = torch.cat([channel.codes_K for channel in channels])
    rows = torch.cat([channel.rows_K() for channel in channels])
    return {Format.of_code(int(c)): int(rows[codes == c].sum()) for c in codes.unique()}

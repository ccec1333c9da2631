"""Bringing halo rows to a rank, and their gradients home: point to point, non-blocking, counted.

Shapes: N owned rows, R halo rows (grouped by owning rank), S rows sent (grouped by receiving
rank; a row that several ranks need stands several times), D columns. Where ranks of a host share
rows: F of the halo rows come first hand, V second hand.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from siafu.comm.bad_rows import looks_later
from siafu.comm.coding import Coding
from siafu.comm.peers import Message, Operation, post
from siafu.comm.staging import room_on_host, to_device, to_host
from siafu.comm.world import World
from siafu.ops import CSR, sum_into

Codings = tuple[Coding, Coding]
"""Of rows on their way out, and of their gradients on the way home."""
Counts = Sequence[int] | Mapping[int, int]
"""Rows for each rank, or for those that have any, in order."""
WITHIN_HOST = "host"
"""The purpose of rows and gradients that ranks of one host give each other."""
Span = tuple[int, int, int]
"""A rank, and where its rows begin and end."""
_ALIGN = 16


@dataclass(frozen=True)
class HaloPlan:
    """Which owned rows each peer needs, and how many rows come from each peer."""

    send_rows: Tensor
    sends: dict[int, int]
    """How many rows go to each rank that needs any: a plan of one stage has one or two."""
    reads: dict[int, int]
    """The same of rows that come."""
    num_ranks: int
    num_owned: int
    scatter: CSR
    """T x S: adds the rows that come back to the owned rows they were sent from."""
    rows_T: Tensor | None
    """int64: which owned rows these are; None: all of them, where most are sent."""
    is_once: bool = False
    """Whether every row is sent to one rank alone, as in a stage of one peer."""
    sharing: "Sharing | None" = None
    """How ranks of this host share rows; None: all come from their owners. All else is about those
    that do."""

    @classmethod
    def build(
        cls, send_rows: Tensor, send_counts: list[int], recv_counts: list[int], num_owned: int
    ) -> "HaloPlan":
        """Return the plan for these lists; `scatter` is derived."""
        sorted_S, order = torch.sort(send_rows, stable=True)
        rows_T, counts = sorted_S.unique_consecutive(return_counts=True)
        is_once = len(rows_T) == len(send_rows)
        if 2 * len(rows_T) > num_owned:
            rows_T, counts = None, torch.bincount(send_rows, minlength=num_owned)
        indptr = torch.zeros(len(counts) + 1, dtype=torch.int64, device=send_rows.device)
        indptr[1:] = counts.cumsum(0)
        scatter = CSR(indptr=indptr, index=order.to(torch.int32), num_cols=send_rows.numel())
        sends = {peer: count for peer, count in enumerate(send_counts) if count}
        reads = {peer: count for peer, count in enumerate(recv_counts) if count}
        ranks = len(send_counts)
        return cls(send_rows, sends, reads, ranks, num_owned, scatter, rows_T, is_once)

    @property
    def send_counts(self) -> tuple[int, ...]:
        """Rows that go to each rank."""
        return self._of_all(self.sends)

    @property
    def recv_counts(self) -> tuple[int, ...]:
        """Rows that come from each rank."""
        return self._of_all(self.reads)

    def _of_all(self, some: dict[int, int]) -> tuple[int, ...]:
        counts = [0] * self.num_ranks
        for peer, count in some.items():
            counts[peer] = count
        return tuple(counts)

    @property
    def num_halo(self) -> int:
        """R, or F where rows are shared."""
        return sum(self.reads.values())

    def first_hand(self, rows_R: Tensor) -> Tensor:
        """Return those of the halo rows that come from their owners."""
        return rows_R if self.sharing is None else rows_R.index_select(0, self.sharing.first_F)

    def narrowed(self, needed_S: Tensor, used_R: Tensor) -> "HaloPlan":
        """Return the plan of some halo rows; `needed_S` tells which of the rows sent they are."""
        send_counts = counts_by_peer(needed_S, self.send_counts)
        recv_counts = counts_by_peer(used_R, self.recv_counts)
        send_rows = self.send_rows[needed_S]
        return HaloPlan.build(send_rows, send_counts, recv_counts, self.num_owned)

    def rows_by_peer(self) -> tuple[Tensor, ...]:
        """Return the owned rows that each rank needs."""
        return self.send_rows.split(list(self.send_counts))


@dataclass(frozen=True, eq=False)
class Sharing:
    """Halo rows that one rank of a host receives, and gives to those beside it that need them too.

    So a row crosses the network once per host, and so does its gradient, added up before.
    """

    first_F: Tensor
    """int64: where rows that come from their owners stand among the halo rows."""
    second_V: Tensor
    """int64: where rows that come from ranks of this host stand, grouped by these."""
    within: HaloPlan
    """How rows go on from ranks that have them first hand, which takes these as owned."""

    def spread(self, pending: "PendingRows", world: World) -> "PendingRows":
        """Have `wait` return all halo rows, once those of the owners have come."""

        def share(rows_FD: Tensor) -> Tensor:
            coming = start_fetch(rows_FD, self.within, world, WITHIN_HOST)
            count = len(self.first_F) + len(self.second_V)
            rows_RD = rows_FD.new_empty(count, *rows_FD.shape[1:])
            rows_RD.index_copy_(0, self.first_F, rows_FD)
            second_VD = coming.wait(world, "sharing halo rows in a host")
            return rows_RD.index_copy_(0, self.second_V, second_VD)

        return pending.decoded_by(share)

    def add_up(self, grad_RD: Tensor, world: World) -> Tensor:
        """Return gradients of the rows had first hand, those of the ranks beside this added."""
        second_VD = grad_RD.index_select(0, self.second_V)
        coming = start_return(second_VD, self.within, world, WITHIN_HOST)
        grad_FD = grad_RD.index_select(0, self.first_F)
        add_returned(coming.wait(world, "adding up gradients in a host"), self.within, grad_FD)
        return grad_FD


def counts_by_peer(is_used: Tensor, counts: tuple[int, ...]) -> list[int]:
    """Return how many of each peer's rows are used."""
    return [int(piece.sum()) for piece in is_used.split(list(counts))]


class PendingRows:
    """Rows on their way; `wait` returns them. Send buffers live until then."""

    def __init__(self, rows: Tensor, messages: list[Message], held: Tensor) -> None:
        self._rows, self._messages, self._held = rows, messages, held
        self._started = time.perf_counter()
        self._decode: Callable[[Tensor], Tensor] | None = None

    def wait(self, world: World, operation: str) -> Tensor:
        """Return the rows once all have come and all of ours have left."""
        for message in self._messages:
            message.wait(world, operation)
            _note_travel(world, operation, message.peer, self._started)
        rows = to_device(self._rows, world.device) if world.stages_through_host else self._rows
        # Whoever still holds this must not hold the buffers too.
        self._messages, self._held, self._rows = [], rows[:0], rows[:0]
        return rows if self._decode is None else self._decode(rows)

    def decoded_by(self, decode: Callable[[Tensor], Tensor]) -> "PendingRows":
        """Have `wait` return what `decode` makes of the rows, after what was asked for before."""
        before = self._decode
        self._decode = decode if before is None else lambda rows: decode(before(rows))
        return self


def _note_travel(world: World, operation: str, peer: int, started: float) -> None:
    """Keep how long rows from or to a rank were on their way, where spans are kept."""
    if (trace := world.spans) is not None:
        seconds = time.perf_counter() - started
        lane = f"link with rank {world.group_rank(peer)}"
        trace.add(operation, "link", lane, start=trace.now() - seconds, seconds=seconds)


def start_exchange(
    rows_SD: Tensor,
    send_counts: Counts,
    recv_counts: Counts,
    world: World,
    purpose: str,
) -> PendingRows:
    """Send each peer its slice of `rows_SD`, start receiving theirs; skip empty slices."""
    rows_SD, through_host = rows_SD.contiguous(), world.stages_through_host
    comes, goes = _spans(recv_counts), _spans(send_counts)
    num_received = comes[-1][2] if comes else 0
    if through_host:
        rows_SD, received = to_host(rows_SD), room_on_host(rows_SD, num_received)
    else:
        received = rows_SD.new_empty(num_received, *rows_SD.shape[1:])
    if world.size == 1:
        return PendingRows(received, [], rows_SD)
    tag = world.next_tag(f"{purpose} {rows_SD.dtype} {tuple(rows_SD.shape[1:])}")
    for peer, lo, hi in goes:
        world.meter.count(purpose, rows_SD[lo:hi].nbytes, 1, world.group_rank(peer))
    if world.backend == "nccl" and rows_SD.dtype == torch.uint8:
        return _start_aligned(rows_SD, goes, received, comes, tag, world, purpose)
    operations: list[Operation] = []
    operations += [(peer, dist.irecv, received[lo:hi]) for peer, lo, hi in comes]
    operations += [(peer, dist.isend, rows_SD[lo:hi]) for peer, lo, hi in goes]
    return PendingRows(received, post(operations, tag, world, purpose), rows_SD)


def _start_aligned(
    sent: Tensor,
    goes: list[Span],
    received: Tensor,
    comes: list[Span],
    tag: int,
    world: World,
    purpose: str,
) -> PendingRows:
    """Start an exchange of bytes, each peer's from an address that NCCL moves quickly from."""
    room, leaving = _aligned(received, comes), _aligned(sent, goes)
    for (_, lo, hi), piece in zip(goes, leaving, strict=True):
        piece.copy_(sent[lo:hi])
    operations: list[Operation] = []
    operations += [(peer, dist.irecv, at) for (peer, _, _), at in zip(comes, room, strict=True)]
    operations += [(peer, dist.isend, at) for (peer, _, _), at in zip(goes, leaving, strict=True)]
    pending = PendingRows(received, post(operations, tag, world, purpose), sent)

    def joined(nothing: Tensor) -> Tensor:
        return torch.cat(room) if room else nothing

    return pending.decoded_by(joined)


def _aligned(like: Tensor, spans: list[Span]) -> list[Tensor]:
    """Return room for each span of bytes, every one from a multiple of so many bytes on."""
    sizes = [-(-(hi - lo) * like[:1].nbytes // _ALIGN) * _ALIGN for _, lo, hi in spans]
    whole = torch.empty(sum(sizes), dtype=torch.uint8, device=like.device)
    starts = accumulate(sizes, initial=0)
    return [
        whole[start : start + (hi - lo) * like[:1].nbytes].view(hi - lo, *like.shape[1:])
        for start, (_, lo, hi) in zip(starts, spans, strict=False)
    ]


def _spans(counts: Counts) -> list[Span]:
    """Return the ranks that have any rows, and where these begin and end."""
    pairs = counts.items() if isinstance(counts, Mapping) else enumerate(counts)
    some = [(peer, count) for peer, count in pairs if count]
    ends = accumulate((count for _, count in some), initial=0)
    return [(peer, lo, hi) for (peer, _), (lo, hi) in zip(some, pairwise(ends), strict=True)]


def start_fetch(
    x_ND: Tensor, plan: HaloPlan, world: World, purpose: str, coding: Coding | None = None
) -> PendingRows:
    """Start bringing halo_RD, the rows of others that this rank needs."""
    if coding is not None:
        pending = start_coded(x_ND, plan.send_rows, world, purpose, coding)
    else:
        rows_SD = x_ND.index_select(0, plan.send_rows)
        pending = start_exchange(rows_SD, plan.sends, plan.reads, world, purpose)
    return pending if plan.sharing is None else plan.sharing.spread(pending, world)


def start_return(
    grad_RD: Tensor, plan: HaloPlan, world: World, purpose: str, coding: Coding | None = None
) -> PendingRows:
    """Start sending halo rows' gradients home; `add_returned` adds what arrives."""
    if plan.sharing is not None:
        grad_RD = plan.sharing.add_up(grad_RD, world)
    if coding is not None:
        return start_coded(grad_RD, None, world, purpose, coding)
    return start_exchange(grad_RD, plan.reads, plan.sends, world, purpose)


def start_coded(
    x_ND: Tensor, rows_S: Tensor | None, world: World, purpose: str, coding: Coding
) -> PendingRows:
    """Start sending rows x[rows_S] (all of x for None) as `coding` writes them, for each peer."""
    kept, shape = coding.kept, x_ND.shape[1:]
    if kept is not None and coding.is_silent and not kept.is_new:
        return _read_kept(coding, shape)
    is_late = kept is not None and kept.keeping.late and not kept.is_new
    encoded = coding.encode(x_ND, rows_S)
    if looks_later(encoded):
        world.bad_rows.note(encoded, coding.name_sent)
    counts = coding.sent_bytes, coding.received_bytes
    pending = start_exchange(encoded.payload, *counts, world, purpose)
    if kept is None or not is_late:
        return pending.decoded_by(partial(coding.decode, encoded=encoded, shape=shape))
    pending = pending.decoded_by(partial(coding.take, encoded=encoded))
    # What came round before is read now; this is waited for when the exchange comes round again.
    before, kept.coming = kept.coming, partial(pending.wait, world, f"late rows, {purpose}")
    return _read_kept(coding, shape, before)


def fetch_kept(shape: torch.Size, plan: HaloPlan, world: World, coding: Coding) -> PendingRows:
    """Return halo rows that both ends keep, and that came in this epoch already."""
    pending = _read_kept(coding, shape)
    return pending if plan.sharing is None else plan.sharing.spread(pending, world)


def _read_kept(
    coding: Coding, shape: torch.Size, before: Callable[[], Any] | None = None
) -> PendingRows:
    """Return rows that are here, once `before` has been waited for."""

    def read(nothing: Tensor) -> Tensor:
        if before is not None:
            before()
        return coding.read(shape)

    nothing = torch.empty(0)
    return PendingRows(nothing, [], nothing).decoded_by(read)


def add_returned(grad_SD: Tensor, plan: HaloPlan, grad_ND: Tensor) -> None:
    """Add each returned gradient to the owned row it belongs to, in place."""
    width = math.prod(grad_ND.shape[1:])  # named, since -1 is ambiguous for no rows
    flat_ND = grad_ND.view(grad_ND.size(0), width)
    if plan.is_once:
        part_SD = flat_ND.index_select(0, plan.send_rows).add_(grad_SD.reshape(-1, width))
        flat_ND.index_copy_(0, plan.send_rows, part_SD)
        return
    rows_T = plan.rows_T
    part_TD = flat_ND if rows_T is None else flat_ND.index_select(0, rows_T)
    sum_into(plan.scatter, grad_SD.reshape(-1, width), part_TD, accumulate=True)
    if rows_T is not None:
        flat_ND.index_copy_(0, rows_T, part_TD)


class _ExchangeHalo(torch.autograd.Function):
    """Linear map from owned rows to halo rows, and its transpose.

    forward   halo_RD = rows of others, fetched
    backward  dx_ND[send_rows] += dhalo_RD, returned; a row sent to two ranks gets two gradients
    """

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, plan: HaloPlan, world: World, codings: Codings | None
    ) -> Tensor:
        ctx.plan, ctx.world, ctx.shape = plan, world, x_ND.shape
        there, ctx.back = codings or (None, None)
        pending = start_fetch(x_ND, plan, world, "halo_forward", there)
        return pending.wait(world, "fetching halo rows")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None, None, None]:
        pending = start_return(grad_RD, ctx.plan, ctx.world, "halo_backward", ctx.back)
        grad_ND = grad_RD.new_zeros(ctx.shape)
        add_returned(pending.wait(ctx.world, "returning halo gradients"), ctx.plan, grad_ND)
        return grad_ND, None, None, None


def exchange_halo(
    x_ND: Tensor, plan: HaloPlan, world: World, codings: Codings | None = None
) -> Tensor:
    """Return halo_RD, differentiably. Every rank of `world` must call this in the same order."""
    return _ExchangeHalo.apply(x_ND, plan, world, codings)


class _SumOverRanks(torch.autograd.Function):
    """y = sum of x over the ranks; every rank's loss depends on y, so gradients sum likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, purpose: str) -> Tensor:
        ctx.world, ctx.purpose = world, purpose
        return world.sum_in_place(x.clone(), purpose)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.world.sum_in_place(grad.clone(), ctx.purpose), None, None


def sum_over_ranks(x: Tensor, world: World, purpose: str) -> Tensor:
    """Return the sum over the ranks, differentiably."""
    return x if world.size == 1 else _SumOverRanks.apply(x, world, purpose)

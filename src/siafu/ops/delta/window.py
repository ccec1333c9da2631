"""Means over a band of snapshots on a device, where only what counts changes travels.

The mean at t is of the last b snapshots, each D^-1/2 (A + I) D^-1/2. Its values change in every
place at every step, but they follow from counts. So the device keeps, for every edge of the
window, its count in the snapshot that joined last (t) and in the one that leaves next (t - b + 1),
and the sum of its normalised values: a step takes those of the leaving snapshot off and adds those
of the joining one. Deltas of edges and of both counts are all that is sent.

Sums are exact (`sums_are_exact`), so that they do not drift however often a walk goes there and
back, and equal the host's to the bit.

Shapes: N nodes, K edges of a window, b snapshots of a band.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.csr.matrix import CSR
from siafu.ops.csr.sum import neighbour_sum
from siafu.ops.delta.contract import Changes, Slid
from siafu.ops.delta.edges import EdgeDelta, edge_delta
from siafu.ops.delta.stream import Transpose
from siafu.ops.delta.walk import Encoder, Walk
from siafu.ops.kernels import delta_kernels

GRAIN = 0.5
"""Weights are whole multiples of it: counts, and counts of a graph made symmetric by halves."""
_TRIED_BYTES = 1 << 26
_QUICK_COPIES = 36e9
"""Bytes per second. An H200 (46e9) takes 144 ms for an epoch over 16 M edges with counts, and 127
with values, of which 6.9 times as many bytes travel; a slot of PCIe 4 has 26e9 at best."""
_MOST_DEGREE = 1 << 22
"""Sums of a row's weights are exact in float32, and roots of all degrees fit a table of 64 MB."""


@cache
def copies_are_slow(device: torch.device) -> bool:
    """Return whether counts are worth it: values take longer to arrive than to be made there."""
    if device.type != "cuda":
        return True
    sent = torch.empty(_TRIED_BYTES, dtype=torch.uint8, pin_memory=True)
    arrived = torch.empty_like(sent, device=device)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(3):
        begun.record()
        arrived.copy_(sent, non_blocking=True)
        ended.record()
        ended.synchronize()
        seconds.append(begun.elapsed_time(ended) / 1e3)
    return _TRIED_BYTES / min(seconds) < _QUICK_COPIES


def sums_are_exact(least: float, most: float, degree: float, band: int) -> bool:
    """Return whether float64 holds every sum of a band's float32 values without rounding.

    `least` and `most` bound positive weights, all multiples of `GRAIN`; `degree` the weighted sum
    of a row with its loop. A value w / sqrt(d d') is at least least / degree, so it is a multiple
    of 2^-23 times the power of two below; since w <= d, it is at most sqrt(most / GRAIN).
    """
    if degree > _MOST_DEGREE or least <= 0:
        return False
    unit = 2.0 ** (math.floor(math.log2(min(least, 1.0) / degree)) - 23)
    return (band + 1) * 2 * math.sqrt(max(most, 1.0) / GRAIN) <= 2.0**53 * unit


def with_loops(csr: CSR) -> CSR:
    """Return a sorted matrix with a loop of weight 1 in each row that has none, on the CPU."""
    assert csr.weight is not None, "snapshots of a window have weights"
    bare = torch.ones(csr.num_rows, dtype=torch.bool)
    rows = csr.rows()
    bare[rows[csr.index == rows]] = False
    loops = bare.nonzero()[:, 0]
    places = torch.searchsorted(rows * csr.num_cols + csr.index, loops * (csr.num_cols + 1))
    born_at = (places + torch.arange(len(loops))).int()
    none = born_at[:0]
    indptr, (index, weight) = delta_kernels(csr.device).move(
        csr.indptr,
        (csr.index, csr.weight),
        (loops.to(csr.index.dtype), torch.ones(len(loops), dtype=csr.weight.dtype)),
        Changes(born_at, loops.int(), none, none),
        csr.num_edges + len(loops),
    )
    return CSR(indptr, index, csr.num_cols, weight)


class RootTable:
    """d^-1/2 of every degree met so far, 0 of 0; made by the host, so that all devices have its."""

    def __init__(self) -> None:
        self.table = torch.zeros(1, dtype=torch.float64)

    def note(self, csr: CSR) -> None:
        """Have the degrees of this matrix, which lies on the CPU."""
        most = int(_units(csr).max()) if csr.num_rows else 0
        if most >= len(self.table):
            degree = np.arange(most + most // 4 + 1) * GRAIN
            # as `graph.normalised` has it, to the bit
            self.table = torch.from_numpy(np.where(degree > 0, degree, np.inf) ** -0.5)

    def to(self, device: torch.device) -> "RootTable":
        """Return the table on a device."""
        moved = RootTable()
        moved.table = self.table.to(device)
        return moved

    def of(self, csr: CSR) -> Tensor:
        """Return float64 [N]: the root of each row's degree."""
        return self.table[_units(csr)]


def _units(csr: CSR) -> Tensor:
    assert csr.weight is not None, "snapshots of a window have weights"
    ones_N1 = torch.ones(csr.num_cols, 1, device=csr.device)
    return (neighbour_sum(csr, ones_N1)[:, 0] / GRAIN).long()


@dataclass(frozen=True, slots=True)
class Window:
    """The edges of the last b snapshots where one place holds them; replaced, never changed."""

    indptr: Tensor
    index: Tensor
    joined: Tensor
    """float32 [K]: weights in the latest snapshot, 0 where that lacks an edge."""
    oldest: Tensor
    """float32 [K]: weights in the first snapshot, 0 while the window still grows."""
    sums: Tensor
    """float64 [K]: normalised values of all its snapshots together."""
    mean: Tensor
    """float32 [K]."""

    def tensors(self) -> list[Tensor]:
        """Return all of them."""
        return [getattr(self, field.name) for field in fields(self)]

    def to(self, device: torch.device) -> "Window":
        """Return the window on a device."""
        return Window(*(tensor.to(device) for tensor in self.tensors()))

    def side(self, longest: int | None, *, latest: bool) -> CSR:
        """Return the latest snapshot or the first one, with zeros for edges it lacks."""
        num_nodes, column = len(self.indptr) - 1, self.joined if latest else self.oldest
        return CSR(self.indptr, self.index, num_nodes, column, longest=longest)

    def with_side(self, roots: Tensor, *, latest: bool, sign: int, steps: int = 0) -> "Window":
        """Return it with a side's values added or taken off, and the mean where steps are given."""
        column = self.joined if latest else self.oldest
        add = delta_kernels(self.index.device).add_normalised
        sums, mean = add((self.indptr, self.index, column), roots, self.sums, sign, steps)
        return replace(self, sums=sums, mean=self.mean if mean is None else mean)

    def after(self, edges: EdgeDelta, oldest: EdgeDelta) -> "Window":
        """Return the window of other edges, with counts of their time and sums as they were."""
        born, deltas = len(edges.born_at), (edges, oldest)
        columns, fresh = [self.index, self.sums], [edges.born_src, self.sums.new_zeros(born)]
        for delta, column in zip(deltas, (self.joined, self.oldest), strict=True):
            if not delta.rewrites:
                columns.append(column)
                fresh.append(_weights(delta)[:born])
        places = Changes(edges.born_at, edges.born_dst, edges.gone_at, edges.changed_at)
        move = delta_kernels(self.index.device).move
        indptr, (index, sums, *moved) = move(
            self.indptr, tuple(columns), tuple(fresh), places, edges.num_after
        )
        sides = []
        for delta in deltas:
            weight = _weights(delta)
            if not delta.rewrites:
                weight = moved.pop(0).index_copy_(0, delta.changed_at.long(), weight[born:])
            sides.append(weight)
        joined, first = sides
        return Window(indptr, index, joined, first, sums, self.mean)


Windows = tuple[Window, ...]
"""A window, and that of the transposes where those are sent."""


def _weights(delta: EdgeDelta) -> Tensor:
    assert delta.weight is not None, "snapshots of a window have weights"
    return delta.weight


def _advanced(
    held: Windows,
    deltas: list[EdgeDelta],
    roots: Callable[[Window, bool], Tensor],
    *,
    ahead: bool,
    steps: int,
) -> Windows:
    """Return the windows one step later, or earlier: one snapshot leaves them, another joins.

    `roots` gives those of a window's latest snapshot, or of its first one.
    """
    # A transpose has the roots of the rows it was made from.
    leaving = roots(held[0], not ahead)
    pairs = zip(deltas[::2], deltas[1::2], strict=True)
    left = (window.with_side(leaving, latest=not ahead, sign=-1) for window in held)
    moved = tuple(window.after(*pair) for window, pair in zip(left, pairs, strict=True))
    joining = roots(moved[0], ahead)
    return tuple(w.with_side(joining, latest=ahead, sign=1, steps=steps) for w in moved)


class _Slides:
    """A window's edges and counts on the host, moved on by one snapshot after another."""

    def __init__(self, band: int, now: int) -> None:
        self._recent: deque[CSR] = deque(maxlen=band)
        self._band, self._next = band, now
        self._window: Slid | None = None

    def add(self, csr: CSR) -> Slid:
        """Return the window with this snapshot, the next in time."""
        self._recent.append(csr)
        window = self._window or _nothing(csr)
        first = self._recent[0]
        is_full = len(self._recent) == self._band
        self._window = delta_kernels(csr.device).slide(
            window,
            (csr.indptr, csr.index, csr.weight),
            (first.indptr, first.index, first.weight) if is_full else None,
            self._next - self._band + 1,
            self._next,
        )
        self._next += 1
        return self._window


def _nothing(csr: CSR) -> Slid:
    zeros = torch.zeros(0)
    return Slid(torch.zeros_like(csr.indptr), csr.index[:0], zeros.int(), zeros, zeros)


def _deltas(now: Slid, then: Slid) -> list[EdgeDelta]:
    """Return the delta of edges and latest counts, and that of the oldest: its counts alone."""
    num_nodes = len(now.indptr) - 1
    edges, oldest = (
        edge_delta(
            CSR(now.indptr, now.columns, num_nodes, before),
            CSR(then.indptr, then.columns, num_nodes, after),
        )
        for before, after in ((now.joined, then.joined), (now.oldest, then.oldest))
    )
    none = edges.born_at[:0]
    src = edges.born_src[:0]
    alone = replace(oldest, born_at=none, born_dst=none, born_src=src, gone_at=none)
    return [edges, alone]


class _Means:
    """Windows with their sums on the host, step by step."""

    def __init__(self, band: int) -> None:
        self.roots = RootTable()
        self.held: Windows = ()
        self._band, self._count = band, 0
        self._now: list[Slid] = []

    def add(self, latest: CSR, slid: list[Slid]) -> None:
        """Go on to the next snapshot's windows."""
        self.roots.note(latest)
        self._count += 1
        steps = min(self._count, self._band)
        if self.held:
            pairs = zip(self._now, slid, strict=True)
            deltas = [delta for pair in pairs for delta in _deltas(*pair)]
            self.held = _advanced(self.held, deltas, self._roots_of, ahead=True, steps=steps)
        else:
            roots = self.roots.of(latest)
            for indptr, index, _, joined, oldest in slid:
                sums = torch.zeros(len(index), dtype=torch.float64)
                one = Window(indptr, index, joined, oldest, sums, joined)
                self.held += (one.with_side(roots, latest=True, sign=1, steps=steps),)
        self._now = slid

    def _roots_of(self, window: Window, latest: bool) -> Tensor:
        return self.roots.of(window.side(None, latest=latest))


def window_means(snapshots: Iterable[CSR], band: int) -> Iterator[CSR]:
    """Yield for each snapshot the mean of the last `band`, fewer at first, all on the CPU.

    They are as `WindowStream` takes them.
    """
    slides, means = _Slides(band, 0), _Means(band)
    for csr in snapshots:
        means.add(csr, [slides.add(csr)])
        (now,) = means.held
        yield CSR(now.indptr, now.index, csr.num_cols, now.mean)


class WindowStream(Walk[Windows]):
    """Means over the last `band` snapshots at times `first` on, on one device."""

    has_loops = True
    """As `DeltaStream` has it."""

    def __init__(
        self,
        snapshots: Iterable[CSR],
        *,
        band: int,
        device: torch.device | str = "cpu",
        transpose: Transpose = "none",
        first: int = 0,
    ) -> None:
        """Encode deltas in one pass over the snapshots, which lie on the CPU, sorted and square.

        They start `band` - 1 before `first`, or at 0; each row has its loop (`with_loops`), and
        weights are positive multiples of `GRAIN` for which `sums_are_exact`.
        """
        super().__init__(device, first)
        if band < 2:
            raise PlanError(
                "A window holds at least two snapshots.", seen=f"{band}", fix="use DeltaStream"
            )
        self._band, self._transpose = band, transpose
        self._longest = [0, 0]
        """Most edges of a row of any mean, and of any transpose."""
        self._roots = RootTable()
        self._base: Windows = ()
        self._buffer = self._encode(snapshots, max(0, first - band + 1))

    @property
    def base_bytes(self) -> int:
        """Bytes of the first window, which travels whole."""
        return sum(tensor.nbytes for window in self._base for tensor in window.tensors())

    def _encode(self, snapshots: Iterable[CSR], start: int) -> Tensor:
        encoder, means = Encoder(), _Means(self._band)
        chains = [_Slides(self._band, start) for _ in range(1 + (self._transpose == "sent"))]
        now: list[Slid] = []
        for time, csr in enumerate(snapshots, start):
            sides = [csr, csr.transpose()] if len(chains) > 1 else [csr]
            then = [chain.add(side) for chain, side in zip(chains, sides, strict=True)]
            if time <= self.first:
                means.add(csr, then)
            else:
                means.roots.note(csr)
                pairs = list(zip(now, then, strict=True))
                self._ahead.append(
                    encoder.add([d for one, two in pairs for d in _deltas(one, two)])
                )
                self._back.append(encoder.add([d for one, two in pairs for d in _deltas(two, one)]))
            if time >= self.first:
                longest = [int(slid.indptr.diff().max()) if csr.num_rows else 0 for slid in then]
                self._longest = [max(pair) for pair in zip(longest, self._longest, strict=False)]
            now = then
        if not now or time < self.first:
            raise PlanError(
                "A stream needs a snapshot.", seen="none", fix="give the snapshots in order"
            )
        self._base, self._roots = means.held, means.roots.to(self.device)
        if self._on_cuda:
            pinned = ([t.pin_memory() for t in window.tensors()] for window in self._base)
            self._base = tuple(Window(*tensors) for tensors in pinned)
        return encoder.join(pinned=self._on_cuda)

    def _sent_base(self) -> Windows:
        return tuple(window.to(self.device) for window in self._base)

    def _made(self, held: Windows, time: int, deltas: list[EdgeDelta]) -> Windows:
        steps = min(time + 1, self._band)
        return _advanced(held, deltas, self._roots_of, ahead=time > self._time, steps=steps)

    def _roots_of(self, window: Window, latest: bool) -> Tensor:
        return self._roots.of(window.side(self._longest[0], latest=latest))

    def _shown(self, held: Windows) -> CSR:
        csr, *turned = (
            CSR(now.indptr, now.index, len(now.indptr) - 1, now.mean, longest=longest)
            for now, longest in zip(held, self._longest, strict=False)
        )
        if self._transpose == "none":
            return csr
        return csr.with_transpose(turned[0] if turned else csr)

    def _tensors(self, held: Windows) -> list[Tensor]:
        return [tensor for now in held for tensor in (now.indptr, now.index, now.mean)]

"""Snapshots on a device, one after another, where only what changes travels.

The deltas of all steps lie encoded in one pinned buffer. While one snapshot is used the next
delta is copied, and the next sorted index made of it, on a stream of the device's own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.csr.matrix import CSR
from siafu.ops.delta.edges import apply_delta, edge_delta
from siafu.ops.delta.wire import DeltaLayout, decode_delta, encode_delta

Transpose = Literal["none", "same", "sent"]
"""How a snapshot gets its transpose, which gradients of sums need: made when asked for (a sort),
the snapshot itself (symmetric graphs), or kept beside it by deltas of its own."""

Matrices = tuple[CSR, ...]
"""A snapshot, and its transpose where that is sent."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Where the bytes of one step lie in the buffer, and how: one layout a matrix."""

    start: int
    layouts: tuple[DeltaLayout, ...]

    @property
    def stop(self) -> int:
        return self.start + sum(layout.num_bytes for layout in self.layouts)


class _Encoder:
    """Gathers encoded steps until all are there and can lie in one buffer."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._length = 0

    def add(self, now: Matrices, then: Matrices) -> _Step:
        pairs = zip(now, then, strict=True)
        encoded = [encode_delta(edge_delta(*pair)) for pair in pairs]
        self._pieces += [payload for _, payload in encoded]
        step = _Step(self._length, tuple(layout for layout, _ in encoded))
        self._length = step.stop
        return step

    def join(self, *, pinned: bool) -> Tensor:
        buffer = torch.empty(self._length, dtype=torch.uint8, pin_memory=pinned)
        if self._pieces:
            torch.cat(self._pieces, out=buffer)
        return buffer


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A snapshot that is being made, its time, and what tells that it is there."""

    matrices: Matrices
    time: int
    made: torch.cuda.Event | None


class DeltaStream:
    """Snapshots `first` to `first + T - 1` of a dynamic graph on one device.

    On the CPU nothing is copied, and all else is the same.
    """

    def __init__(
        self,
        snapshots: Iterable[CSR],
        *,
        device: torch.device | str = "cpu",
        transpose: Transpose = "none",
        first: int = 0,
        both_ways: bool = True,
    ) -> None:
        """Encode the deltas between the snapshots, which lie on the CPU, in one pass over them.

        With `both_ways` a walk may also go back in time, for twice the pinned memory.
        """
        self.device, self.first = torch.device(device), first
        self.sent_bytes = 0
        """Bytes handed over to the device so far, whole snapshots included."""
        self.sent_deltas = 0
        self.has_loops = False
        """Whether an edge of any snapshot starts and ends at one node; see `gcn_scales`."""
        self._longest = [0, 0]
        """Most edges of a row of any snapshot, and of any transpose."""
        self._transpose = transpose
        self._copies = torch.cuda.Stream(self.device) if self._on_cuda else None
        self._ahead: list[_Step] = []
        self._back: list[_Step] = []
        self._base, self._buffer = self._encode(snapshots, both_ways)
        self._now: Matrices = ()
        self._time = first

    @property
    def num_snapshots(self) -> int:
        """T."""
        return len(self._ahead) + 1

    @property
    def base_bytes(self) -> int:
        """Bytes of the first snapshot, which travels whole."""
        return sum(tensor.nbytes for csr in self._base for tensor in _tensors(csr))

    def step_bytes(self) -> list[int]:
        """Return how many bytes travel for each step forward."""
        return [step.stop - step.start for step in self._ahead]

    def payloads(self, times: Sequence[int]) -> list[Tensor]:
        """Return the bytes that travel on such a walk, as they lie in the host's memory."""
        steps = [self._step(now, then) for now, then in pairwise(times)]
        return [self._buffer[step.start : step.stop] for step in steps]

    def walk(self, times: Sequence[int]) -> Iterator[CSR]:
        """Yield the snapshots of these times, neighbours in time, on the device.

        Each next delta travels while the caller uses a snapshot. The first is reached from where
        the last walk ended or from the base, by fewer bytes.
        """
        if not len(times):
            return
        self._seek(times[0])
        for upcoming in times[1:]:
            arrival = self._start(upcoming)
            yield self._snapshot()
            self._finish(arrival)
        yield self._snapshot()

    def read(self, times: range) -> Iterator[tuple[int, CSR]]:
        """Yield each of these times with its snapshot, from the end of them that is nearer.

        Backward goes over blocks of time from the last one on, so it comes upon their ends. Which
        end that is follows from the times alone: ranks with unlike deltas go the same way.
        """
        is_known = bool(self._now) and bool(self._back) and len(times) > 0
        if is_known and abs(times[-1] - self._time) < abs(times[0] - self._time):
            times = times[::-1]
        return zip(times, self.walk(times), strict=True)

    def _way(self, time: int) -> tuple[int, bool]:
        """Return the bytes that lead to this time, and whether they start with the base."""
        from_base = self.base_bytes + _length(self._ahead[: time - self.first])
        now, then = self._time - self.first, time - self.first
        if not self._now or (then < now and not self._back):
            return from_base, True
        steps = self._ahead[now:then] if then >= now else self._back[then:now]
        from_here = _length(steps)
        return min((from_here, False), (from_base, True))

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def _encode(self, snapshots: Iterable[CSR], both_ways: bool) -> tuple[Matrices, Tensor]:
        """Return the matrices of the first snapshot, and the buffer of all steps."""
        encoder = _Encoder()
        base: Matrices = ()
        now: Matrices = ()
        for csr in snapshots:
            then = (csr, csr.transpose()) if self._transpose == "sent" else (csr,)
            if now:
                self._ahead.append(encoder.add(now, then))
            if now and both_ways:
                self._back.append(encoder.add(then, now))
            for place, matrix in enumerate(then):
                most = int(matrix.degree().max()) if matrix.num_rows else 0
                self._longest[place] = max(self._longest[place], most)
            base, now = base or then, then
            self.has_loops = self.has_loops or bool((csr.index == csr.rows()).any())
        if not base:
            raise PlanError(
                "A stream needs a snapshot.", seen="none", fix="give the snapshots in order"
            )
        if self._on_cuda:
            base = tuple(_pinned(csr) for csr in base)
        return base, encoder.join(pinned=self._on_cuda)

    def _seek(self, time: int) -> None:
        last = self.first + self.num_snapshots - 1
        if not self.first <= time <= last:
            raise PlanError(
                "The stream does not hold this snapshot.",
                seen=f"snapshot {time}",
                fix=f"it holds {self.first} to {last}",
            )
        if self._way(time)[1]:
            self._send_base()
        direction = 1 if time > self._time else -1
        while self._time != time:
            self._finish(self._start(self._time + direction))

    def _send_base(self) -> None:
        self.sent_bytes += self.base_bytes
        with self._making() as made:
            matrices = tuple(csr.to(self.device) for csr in self._base)
        self._finish(_Arrival(matrices, self.first, made))

    def _start(self, time: int) -> _Arrival:
        """Start making the snapshot before or after the present one."""
        step = self._step(self._time, time)
        payload = self._buffer[step.start : step.stop]
        self.sent_bytes += payload.nbytes
        self.sent_deltas += 1
        following, start = [], 0
        with self._making() as made:
            payload = payload.to(self.device, non_blocking=True)
            for csr, layout in zip(self._now, step.layouts, strict=True):
                piece = payload[start : start + layout.num_bytes]
                following.append(apply_delta(csr, decode_delta(layout, piece)))
                start += layout.num_bytes
        return _Arrival(tuple(following), time, made)

    @contextmanager
    def _making(self) -> Iterator[torch.cuda.Event | None]:
        """Have what is inside done beside the work of the present stream, where there are any."""
        if self._copies is None:
            yield None
            return
        made = torch.cuda.Event()
        with torch.cuda.stream(self._copies):
            yield made
            made.record(self._copies)

    def _step(self, now: int, then: int) -> _Step:
        if then == now + 1:
            return self._ahead[now - self.first]
        if then == now - 1 and self._back:
            return self._back[then - self.first]
        raise PlanError(
            "A walk goes from a snapshot to the next one or the one before.",
            seen=f"from {now} to {then}",
            fix="walk over a range with step 1 or -1; back in time needs both_ways=True",
        )

    def _finish(self, arrival: _Arrival) -> None:
        if arrival.made is not None:
            users = torch.cuda.current_stream(self.device)
            users.wait_event(arrival.made)
            # Their memory belongs to the stream that made them, which must not reuse it too early.
            for csr in arrival.matrices:
                for tensor in _tensors(csr):
                    tensor.record_stream(users)
        self._now, self._time = arrival.matrices, arrival.time

    def _snapshot(self) -> CSR:
        known = zip(self._now, self._longest, strict=False)
        csr, *turned = (replace(matrix, longest=longest) for matrix, longest in known)
        if self._transpose == "none":
            return csr
        return csr.with_transpose(turned[0] if turned else csr)


def _length(steps: list[_Step]) -> int:
    return sum(step.stop - step.start for step in steps)


def _tensors(csr: CSR) -> list[Tensor]:
    return [csr.indptr, csr.index, *([] if csr.weight is None else [csr.weight])]


def _pinned(csr: CSR) -> CSR:
    weight = None if csr.weight is None else csr.weight.pin_memory()
    return CSR(csr.indptr.pin_memory(), csr.index.pin_memory(), csr.num_cols, weight)

"""A walk over states on a device that follow one another in time, where only deltas travel.

The deltas of all steps lie encoded in one pinned buffer. While one state is used the next delta is
copied, and the next state made of it, on a stream of the device's own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.csr.matrix import CSR
from siafu.ops.delta.edges import EdgeDelta
from siafu.ops.delta.wire import DeltaLayout, decode_delta, encode_delta

Held = TypeVar("Held")
"""What a walk holds of one time on the device."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where the bytes of one step lie in the buffer, and how: one layout a delta."""

    start: int
    layouts: tuple[DeltaLayout, ...]

    @property
    def stop(self) -> int:
        """Where they end."""
        return self.start + sum(layout.num_bytes for layout in self.layouts)


class Encoder:
    """Gathers encoded steps until all are there and can lie in one buffer."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._length = 0

    def add(self, deltas: Sequence[EdgeDelta]) -> Step:
        """Return the step that these deltas make together."""
        encoded = [encode_delta(delta) for delta in deltas]
        self._pieces += [payload for _, payload in encoded]
        step = Step(self._length, tuple(layout for layout, _ in encoded))
        self._length = step.stop
        return step

    def join(self, *, pinned: bool) -> Tensor:
        """Return the buffer of all steps."""
        buffer = torch.empty(self._length, dtype=torch.uint8, pin_memory=pinned)
        if self._pieces:
            torch.cat(self._pieces, out=buffer)
        return buffer


@dataclass(frozen=True, slots=True)
class _Arrival(Generic[Held]):
    """A state that is being made, its time, and what tells that it is there."""

    held: Held
    time: int
    made: torch.cuda.Event | None


class Walk(ABC, Generic[Held]):
    """States of times `first` to `first + T - 1` on one device; what they are, subclasses say.

    On the CPU nothing is copied, and all else is the same.
    """

    def __init__(self, device: torch.device | str, first: int) -> None:
        self.device, self.first = torch.device(device), first
        self.sent_bytes = 0
        """Bytes handed over to the device so far, whole snapshots included."""
        self.sent_deltas = 0
        self._copies = torch.cuda.Stream(self.device) if self._on_cuda else None
        self._ahead: list[Step] = []
        self._back: list[Step] = []
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._now: Held | None = None
        self._time = first

    @property
    @abstractmethod
    def base_bytes(self) -> int:
        """Bytes of the first state, which travels whole."""

    @abstractmethod
    def _sent_base(self) -> Held:
        """Return the first state on the device."""

    @abstractmethod
    def _made(self, held: Held, time: int, deltas: list[EdgeDelta]) -> Held:
        """Return the state of this time from the one held, its neighbour; that one stays as is."""

    @abstractmethod
    def _shown(self, held: Held) -> CSR:
        """Return the snapshot that callers see."""

    @abstractmethod
    def _tensors(self, held: Held) -> list[Tensor]:
        """Return what callers read of a state."""

    @property
    def num_snapshots(self) -> int:
        """T."""
        return len(self._ahead) + 1

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
            yield self._shown(self._present())
            self._finish(arrival)
        yield self._shown(self._present())

    def read(self, times: range) -> Iterator[tuple[int, CSR]]:
        """Yield each of these times with its snapshot, from the end of them that is nearer.

        Backward goes over blocks of time from the last one on, so it comes upon their ends. Which
        end that is follows from the times alone: ranks with unlike deltas go the same way.
        """
        is_known = self._now is not None and bool(self._back) and len(times) > 0
        if is_known and abs(times[-1] - self._time) < abs(times[0] - self._time):
            times = times[::-1]
        return zip(times, self.walk(times), strict=True)

    def _way(self, time: int) -> tuple[int, bool]:
        """Return the bytes that lead to this time, and whether they start with the base."""
        from_base = self.base_bytes + _length(self._ahead[: time - self.first])
        now, then = self._time - self.first, time - self.first
        if self._now is None or (then < now and not self._back):
            return from_base, True
        steps = self._ahead[now:then] if then >= now else self._back[then:now]
        from_here = _length(steps)
        return min((from_here, False), (from_base, True))

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

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

    def _present(self) -> Held:
        assert self._now is not None, "a walk seeks first"
        return self._now

    def _send_base(self) -> None:
        self.sent_bytes += self.base_bytes
        with self._making() as made:
            held = self._sent_base()
        self._finish(_Arrival(held, self.first, made))

    def _start(self, time: int) -> _Arrival[Held]:
        """Start making the state before or after the present one."""
        step = self._step(self._time, time)
        payload = self._buffer[step.start : step.stop]
        self.sent_bytes += payload.nbytes
        self.sent_deltas += 1
        deltas, start = [], 0
        with self._making() as made:
            payload = payload.to(self.device, non_blocking=True)
            for layout in step.layouts:
                deltas.append(decode_delta(layout, payload[start : start + layout.num_bytes]))
                start += layout.num_bytes
            held = self._made(self._present(), time, deltas)
        return _Arrival(held, time, made)

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

    def _step(self, now: int, then: int) -> Step:
        if then == now + 1:
            return self._ahead[now - self.first]
        if then == now - 1 and self._back:
            return self._back[then - self.first]
        raise PlanError(
            "A walk goes from a snapshot to the next one or the one before.",
            seen=f"from {now} to {then}",
            fix="walk over a range with step 1 or -1; back in time needs both_ways=True",
        )

    def _finish(self, arrival: _Arrival[Held]) -> None:
        if arrival.made is not None:
            users = torch.cuda.current_stream(self.device)
            users.wait_event(arrival.made)
            # Their memory belongs to the stream that made them, which must not reuse it too early.
            for tensor in self._tensors(arrival.held):
                tensor.record_stream(users)
        self._now, self._time = arrival.held, arrival.time


def _length(steps: list[Step]) -> int:
    return sum(step.stop - step.start for step in steps)

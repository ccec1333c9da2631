"""Counters of everything that leaves this rank, and of how long it waits for others."""

import threading
from dataclasses import dataclass, field

PURPOSES = {
    "halo_forward": "rows of nodes",
    "halo_refetch": "rows fetched again",
    "halo_backward": "gradients of rows",
    "host": "rows shared within hosts",
    "column_forward": "columns of rows",
    "column_backward": "gradients of columns",
    "time_forward": "rows along time",
    "time_backward": "gradients along time",
    "feature": "features",
    "sample": "samples",
    "gradient": "gradients of weights",
    "norm": "statistics of norms",
    "metric": "scores",
    "control": "coordination",
    "file": "files",
}
"""What bytes between ranks were sent for, in words."""
_SUMMED = "gradient"
"""The purpose of sums over all ranks, which may be sent in pieces from rank to rank."""


@dataclass(slots=True)
class Meter:
    """Bytes and messages this rank has sent, by purpose.

    A reduction over P ranks counts as a ring: 2 (P - 1) / P times its size leaves each rank.
    """

    bytes_sent: dict[str, int] = field(default_factory=dict)
    messages_sent: dict[str, int] = field(default_factory=dict)
    bytes_to: dict[int, int] = field(default_factory=dict)
    """Of them, those that went to one rank alone: rows, not sums over all."""
    wait_seconds: dict[str, float] = field(default_factory=dict)
    """How long the thread that trains has waited, by what for."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Training and what is fetched ahead of it count at the same time."""

    def count(
        self, purpose: str, num_bytes: int, num_messages: int = 1, peer: int | None = None
    ) -> None:
        """Add to the counters of a purpose, and of the one rank it goes to."""
        with self._lock:
            self.bytes_sent[purpose] = self.bytes_sent.get(purpose, 0) + num_bytes
            self.messages_sent[purpose] = self.messages_sent.get(purpose, 0) + num_messages
            if peer is not None and purpose != _SUMMED:
                self.bytes_to[peer] = self.bytes_to.get(peer, 0) + num_bytes

    def waited(self, operation: str, seconds: float) -> None:
        """Add the time of a wait; those of threads that work ahead hold nothing up."""
        if is_training_thread():
            self.wait_seconds[operation] = self.wait_seconds.get(operation, 0.0) + seconds

    @property
    def seconds_waited(self) -> float:
        """All waits of the thread that trains."""
        return sum(self.wait_seconds.values())


def is_training_thread() -> bool:
    """Return whether this is the thread that trains, not one that works ahead of it."""
    return threading.current_thread() is threading.main_thread()

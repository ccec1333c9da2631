"""Counters of everything that leaves this rank."""

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class Meter:
    """Bytes and messages this rank has sent, by purpose.

    A reduction over P ranks counts as a ring: 2 (P - 1) / P times its size leaves each rank.
    """

    bytes_sent: dict[str, int] = field(default_factory=dict)
    messages_sent: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Training and what is fetched ahead of it count at the same time."""

    def count(self, purpose: str, num_bytes: int, num_messages: int = 1) -> None:
        """Add to the counters of a purpose."""
        with self._lock:
            self.bytes_sent[purpose] = self.bytes_sent.get(purpose, 0) + num_bytes
            self.messages_sent[purpose] = self.messages_sent.get(purpose, 0) + num_messages

"""What a rank did last, where others can read it while it stands still.

A page of memory that is a file: writing it is no system call, and it is there after the process
was killed.
"""

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_BYTES = 512
_HEAD = struct.Struct("<d?H")
"""Seconds since 1970, whether it waits, and the length of what follows."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What a rank does since some moment."""

    since: float
    """Seconds since 1970."""
    waits: bool
    what: str
    """Which wait it is in, or was in last."""

    def told(self, now: float) -> str:
        """Return it in words."""
        seconds = f"for {max(0.0, now - self.since):.0f} s"
        doing = f"waits {seconds}" if self.waits else f"works {seconds}, having waited"
        return f"{doing} {self.what}"


class Doing:
    """Where a rank notes what it does."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_BYTES)
            self._page = mmap.mmap(file.fileno(), _BYTES)

    def note(self, what: str, *, waits: bool) -> None:
        """Note that a wait begins, or that it has ended."""
        text = what.encode()[: _BYTES - _HEAD.size]
        head = _HEAD.pack(time.time(), waits, len(text))
        self._page[: _HEAD.size + len(text)] = head + text


def read_deed(path: Path) -> Deed | None:
    """Return what a rank did last; None where it has noted nothing."""
    try:
        raw = path.read_bytes()
        since, waits, length = _HEAD.unpack_from(raw)
    except (OSError, struct.error):
        return None
    text = raw[_HEAD.size : _HEAD.size + length].decode(errors="replace")
    return Deed(since, waits, text) if text else None

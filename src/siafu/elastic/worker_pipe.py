"""Messages between a pool and a worker: JSON behind its length, descriptors beside it."""

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from siafu.errors import TaskError

Message = dict[str, Any]

MOST_DESCRIPTORS = 64
"""Of one message; the kernel would take 253."""
_LENGTH = struct.Struct("<I")


class WorkerPipe:
    """One end of a socket pair. Used by one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message; the receiver gets descriptors of its own for the same memory."""
        if len(descriptors) > MOST_DESCRIPTORS:
            raise TaskError(
                "A task has too many bundles.",
                seen=f"{len(descriptors)} that are new to the worker",
                fix=f"use {MOST_DESCRIPTORS} at most",
            )
        body = json.dumps(message).encode()
        length = _LENGTH.pack(len(body))
        # Descriptors go with the first bytes they are sent with.
        done = socket.send_fds(self._socket, [length], descriptors) if descriptors else 0
        self._socket.sendall(length[done:] + body)

    def receive(self, seconds: float | None) -> tuple[Message, list[int]]:
        """Return the next message and its descriptors, which the caller closes.

        Raises EOFError when the other end is gone, TimeoutError when nothing comes in time. Only a
        worker, which has nothing else to do, waits without a limit: its end closes with its owner.
        """
        self._socket.settimeout(seconds)
        size = _LENGTH.size
        start, descriptors, _, _ = socket.recv_fds(self._socket, size, MOST_DESCRIPTORS)
        if not start:
            raise EOFError
        try:
            (length,) = _LENGTH.unpack(start + self._exactly(size - len(start)))
            return json.loads(self._exactly(length)), list(descriptors)
        except BaseException:
            close_all(descriptors)
            raise

    def _exactly(self, num_bytes: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < num_bytes:
            piece = self._socket.recv(num_bytes - len(pieces))
            if not piece:
                raise EOFError
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        """Close this end; the other sees the end of the file."""
        self._socket.close()


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)

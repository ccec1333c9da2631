"""What a pool and its worker processes share: blocks of memory without a name, and a pipe.

Such memory is known by its descriptors and mappings alone, so the kernel frees it with the last of
them: nothing is left behind, however a process ends. Messages are JSON behind its length, with
descriptors beside it.
"""

import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu.elastic.messages import LocalMessage, read_local
from siafu.elastic.task import Bundle, Tensors
from siafu.elastic.tensors import Entry, decode_block, encode_block, spans
from siafu.errors import TaskError

_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
MOST_DESCRIPTORS = 64
"""Of one message; the kernel would take 253."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class SharedBlock:
    """Tensors that were written to shared memory, by this process's descriptor of it."""

    descriptor: int
    layout: tuple[Entry, ...]
    num_bytes: int
    """Of the tensors."""

    def close(self) -> None:
        """Let go of the descriptor; mappings of it stay."""
        os.close(self.descriptor)


def write_block(tensors: Tensors) -> SharedBlock:
    """Return a new block that holds copies of the tensors.

    Writing, unlike storing through a mapping, ends in an error where memory runs out, not in a
    signal that kills the process.
    """
    layout, parts = encode_block(tensors)
    places = spans(layout)
    descriptor = _unnamed_memory()
    try:
        for part, place in zip(parts, places, strict=True):
            _write(descriptor, part, place.start)
        # A mapping needs a byte at least.
        os.ftruncate(descriptor, max(1, places[-1].stop if places else 0))
    except BaseException:
        os.close(descriptor)
        raise
    return SharedBlock(descriptor, layout, sum(tensor.nbytes for tensor in tensors.values()))


def map_block(descriptor: int, layout: Sequence[Entry]) -> Tensors:
    """Return the tensors of a block, without a copy; the descriptor may be closed afterwards.

    The mapping is private and ends with the last of the tensors: whoever writes to them gets a copy
    of those pages, and no other process sees it.
    """
    size = os.fstat(descriptor).st_size
    path = f"{_DESCRIPTORS}/{descriptor}"
    bytes_B = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
    return decode_block(layout, [bytes_B[place] for place in spans(layout)])


def _write(descriptor: int, part: Tensor, start: int) -> None:
    rest = part.numpy().data
    while rest:
        # One call takes 2 GiB at most.
        done = os.pwrite(descriptor, rest, start)
        start, rest = start + done, rest[done:]


def _unnamed_memory() -> int:
    if sys.platform == "linux":
        return os.memfd_create("siafu-block", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # its name is gone as soon as it is open
        return os.dup(file.fileno())


@dataclass(slots=True)
class _Entry:
    uses: int = 0
    """Attempts that wait or run and name it."""
    is_forgotten: bool = False
    block: SharedBlock | None = None
    writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_free(self) -> bool:
        return self.is_forgotten and self.uses == 0


class KeptBlocks:
    """Blocks by bundle key. One descriptor stays open for each, to hand to workers that come later.

    A forgotten bundle goes when the last attempt that names it is answered: the second attempt at a
    task may still wait when the first has long been used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def hold(self, bundles: Iterable[Bundle]) -> None:
        """Keep the bundles for one more attempt."""
        with self._lock:
            for bundle in _outliving(bundles):
                self._entries.setdefault(bundle.key, _Entry()).uses += 1

    def block(self, bundle: Bundle) -> SharedBlock:
        """Return the block of a held bundle; the first that asks has it written."""
        with self._lock:
            entry = self._entries[bundle.key]
        with entry.writing:
            if entry.block is None:
                entry.block = write_block(bundle.tensors)
            return entry.block

    def release(self, bundles: Iterable[Bundle]) -> list[str]:
        """End what `hold` began, and return the keys that are now free."""
        with self._lock:
            keys = [bundle.key for bundle in _outliving(bundles)]
            for key in keys:
                self._entries[key].uses -= 1
            return [key for key in keys if self._free(key)]

    def forget(self, key: str) -> bool:
        """Let go of a bundle as soon as nobody needs it; True where that is now."""
        with self._lock:
            if key not in self._entries:
                return False
            self._entries[key].is_forgotten = True
            return self._free(key)

    def close(self) -> None:
        """Free all."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                entry.uses, entry.is_forgotten = 0, True
                self._free(key)

    def _free(self, key: str) -> bool:
        if not self._entries[key].is_free:
            return False
        block = self._entries.pop(key).block
        if block is not None:
            block.close()
        return True


def _outliving(bundles: Iterable[Bundle]) -> Iterable[Bundle]:
    return (bundle for bundle in bundles if bundle.lifetime != "once")


class WorkerPipe:
    """One end of a socket pair. Used by one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, body: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message; the receiver gets descriptors of its own for the same memory."""
        if len(descriptors) > MOST_DESCRIPTORS:
            raise TaskError(
                "A task has too many bundles.",
                seen=f"{len(descriptors)} that are new to the worker",
                fix=f"use {MOST_DESCRIPTORS} at most",
            )
        length = _LENGTH.pack(len(body))
        # Descriptors go with the first bytes they are sent with.
        done = socket.send_fds(self._socket, [length], descriptors) if descriptors else 0
        self._socket.sendall(length[done:] + body)

    def receive(self, seconds: float | None) -> tuple[LocalMessage, list[int]]:
        """Return the next message and its descriptors, which the caller closes.

        Raises EOFError when the other end is gone, TimeoutError when nothing comes in time, and
        TaskError for what is no message. Only a worker, which has nothing else to do, waits
        without a limit: its end closes with its owner.
        """
        self._socket.settimeout(seconds)
        size = _LENGTH.size
        start, descriptors, _, _ = socket.recv_fds(self._socket, size, MOST_DESCRIPTORS)
        if not start:
            raise EOFError
        try:
            (length,) = _LENGTH.unpack(start + self._exactly(size - len(start)))
            return read_local(self._exactly(length)), list(descriptors)
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

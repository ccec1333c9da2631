"""Rows that forward keeps for backward, waiting in the host's memory where a GPU has no room.

The first layers' rows are needed last, so these leave: storages as forward saves them, until so
many bytes have left. A stream of its own copies them into pinned memory, and back before backward
needs them. On the device stay the storage that is on its way, and in backward the one in use and
the one that is needed next. Bits are copied, so nothing else changes.

A storage leaves whole and once, whatever views of it are saved.
"""

import math
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from siafu.nn import CachedRows, SparseRows
from siafu.ops import CSR
from siafu.shard import Shard
from siafu.strategy.strategy import Strategy

IN_HAND = 2
"""Storages that have left, or will, and are on the device all the same."""
_LEAST_BYTES = 1 << 20
"""Of a storage that is worth a copy."""
_CHUNK_BYTES = 1 << 24
"""Of a piece of pinned memory; torch takes the next power of two for any."""
_present = threading.local()


class Copier(Protocol):
    """Who copies between a device and pinned memory of the host, in order, beside other work."""

    def room(self, nbytes: int) -> Tensor:
        """Return memory of the host."""
        ...

    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> Any:
        """Begin to copy (from, to), after all that was begun; return what to wait for."""
        ...

    def wait(self, ticket: Any) -> None:
        """Have what is computed next wait for copies."""
        ...


class HostCopier:
    """Copies within the host's memory, at once: what a CPU has."""

    def room(self, nbytes: int) -> Tensor:
        """Return memory."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> Any:
        """Copy."""
        for source, target in pairs:
            target.copy_(source)

    def wait(self, ticket: Any) -> None:
        """Wait for nothing."""


class StreamCopier:
    """Copies on a stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def room(self, nbytes: int) -> Tensor:
        """Return pinned memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> torch.cuda.Event:
        """Begin to copy what the stream of computations has made by now, into what it has left."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def wait(self, ticket: torch.cuda.Event) -> None:
        """Have the stream of computations wait; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(ticket)


class Pool:
    """Pinned memory in pieces of one size, which is used again in every step."""

    def __init__(self, copier: Copier, chunk_bytes: int) -> None:
        self.chunk_bytes, self._copier, self._free = chunk_bytes, copier, list[Tensor]()
        self.nbytes = 0

    def take(self, nbytes: int) -> list[Tensor]:
        """Return pieces for so many bytes."""
        count = math.ceil(nbytes / self.chunk_bytes)
        while len(self._free) < count:
            self._free.append(self._copier.room(self.chunk_bytes))
            self.nbytes += self.chunk_bytes
        return [self._free.pop() for _ in range(count)]

    def give_back(self, chunks: list[Tensor]) -> None:
        """Take pieces back. Copies from them may be on their way: later ones come after those."""
        self._free += chunks


class Away:
    """A storage that is in the host's memory, and on the device only when it is needed."""

    def __init__(self, flat: Tensor, copier: Copier, pool: Pool) -> None:
        self._copier, self._pool, self._device = copier, pool, flat.device
        self._flat: Tensor | None = flat
        self.nbytes, self._chunks, self._is_waited = flat.numel(), list[Tensor](), True
        self._chunks = pool.take(self.nbytes)
        self._ticket = copier.copy(self._pairs(flat))
        self._is_waited = False

    def _pairs(self, flat: Tensor, *, home: bool = False) -> list[tuple[Tensor, Tensor]]:
        pieces = flat.split(self._pool.chunk_bytes)
        pairs = [(one, all_[: len(one)]) for one, all_ in zip(pieces, self._chunks, strict=True)]
        return [(host, here) for here, host in pairs] if home else pairs

    def leave(self) -> None:
        """Give the device's memory up; what is computed next waits until it has been copied."""
        self._wait()
        self._flat = None

    def fetch(self) -> None:
        """Begin to bring it back, where it is not on the device."""
        if self._flat is None:
            self._flat = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
            self._ticket = self._copier.copy(self._pairs(self._flat, home=True))
            self._is_waited = False

    def here(self) -> Tensor:
        """Return it on the device."""
        self.fetch()
        self._wait()
        assert self._flat is not None, "it was fetched"
        return self._flat

    def _wait(self) -> None:
        if not self._is_waited:
            self._copier.wait(self._ticket)
        self._is_waited = True

    def __del__(self) -> None:
        # Where nobody read it: else its memory would be used again under a copy.
        if self._flat is not None:
            self._wait()
        self._pool.give_back(self._chunks)


class Left(NamedTuple):
    """A tensor whose storage is away."""

    offload: "Offload"
    away: Away
    before: "weakref.ref[Away] | None"
    """What left just before it, and so is needed next."""
    like: tuple[torch.dtype, int, torch.Size, tuple[int, ...]]


class _Seen(NamedTuple):
    storage: StorageWeakRef
    """Which keeps the number of the storage from being used again."""
    version: int
    away: "weakref.ref[Away]"
    before: "weakref.ref[Away] | None"


class Offload:
    """What one rank's steps have in the host's memory; entered around each forward pass."""

    def __init__(
        self,
        nbytes: int,
        device: torch.device,
        stays: Sequence[Tensor] = (),
        *,
        copier: Copier | None = None,
        least_bytes: int = _LEAST_BYTES,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        """`nbytes` is what may leave in a step, `stays` what is on the device between steps."""
        on_gpu = device.type == "cuda"
        if on_gpu and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._copier = copier or (StreamCopier(device) if on_gpu else HostCopier())
        self._pool = Pool(self._copier, chunk_bytes)
        self._most, self._least, self._device = nbytes, least_bytes, device
        self._stays = {tensor.untyped_storage()._cdata for tensor in stays}
        self._kept = list(stays)  # so that no other storage has their numbers
        self._latest: weakref.ref[Away] | None = None
        self._seen: dict[int, _Seen] = {}
        self._leaving: Away | None = None
        self._stack = ExitStack()
        self.step_bytes = 0
        """That left in the step that is the latest."""

    @property
    def pinned_bytes(self) -> int:
        """Of the host's memory."""
        return self._pool.nbytes

    def __enter__(self) -> "Offload":
        self._latest, self._seen, self._leaving, self.step_bytes = None, {}, None, 0
        hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        self._stack.enter_context(hooks)
        _present.offload = self
        return self

    def __exit__(self, *error: object) -> None:
        _present.offload = None
        self._stack.close()
        # The last to leave is the first that backward brings back, so it may as well stay.
        self._seen, self._leaving = {}, None

    def pack(self, tensor: Tensor) -> Tensor | Left:
        """Return what autograd keeps of a tensor."""
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        whole = 2 * tensor.numel() * tensor.itemsize >= size and tensor.device == self._device
        if size < self._least or key in self._stays or not (whole and _are_rows(tensor)):
            return tensor
        like = tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride()
        if (seen := self._seen.get(key)) is not None and seen.version == tensor._version:
            away = seen.away()
            if away is not None:
                return Left(self, away, seen.before, like)
        if self.step_bytes + size > self._most:
            return tensor
        flat = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        away, before = Away(flat, self._copier, self._pool), self._latest
        self.step_bytes += size
        if self._leaving is not None:
            self._leaving.leave()
        self._leaving = away
        self._latest = weakref.ref(away)
        self._seen[key] = _Seen(StorageWeakRef(storage), tensor._version, self._latest, before)
        return Left(self, away, before, like)

    def unpack(self, kept: Tensor | Left) -> Tensor:
        """Return the tensor, and begin to bring back what is needed next."""
        if isinstance(kept, Tensor):
            return kept
        flat, (dtype, offset, size, stride) = kept.away.here(), kept.like
        if kept.before is not None and (ahead := kept.before()) is not None:
            ahead.fetch()
        storage = flat.untyped_storage()
        return torch.empty(0, dtype=dtype, device=flat.device).set_(storage, offset, size, stride)


def offload_of(strategy: Strategy, shard: Shard, stays: list[Any]) -> Offload | None:
    """Return what has rows in the host's memory until backward; None where none are to be."""
    if not strategy.offload:
        return None
    constant: list[Tensor] = []
    for thing in [*stays, shard.csr, shard.edge_attr, shard.x]:
        if isinstance(thing, nn.Module):
            constant += [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, CachedRows):
            constant += [thing.rows, thing.aggregate]
        elif isinstance(thing, CSR | SparseRows):
            csr = thing.csr if isinstance(thing, SparseRows) else thing
            constant += [one for one in (csr.indptr, csr.index, csr.weight) if one is not None]
        elif thing is not None:
            constant.append(thing)
    return Offload(strategy.offload, shard.world.device, constant)


def leaving(offload: Offload | None) -> AbstractContextManager[object]:
    """Return what a forward pass runs in; where nothing is kept for backward, nothing leaves."""
    return offload if offload is not None and torch.is_grad_enabled() else nullcontext()


def _are_rows(tensor: Tensor) -> bool:
    """Return whether it is rows of nodes: not numbers of edges or nodes, which are there anyway."""
    return tensor.dim() > 1 and tensor.size(0) > tensor.size(1)


def kept(tensor: Tensor) -> Tensor | Left:
    """Return what an autograd function is to keep of rows that it does not save as others do."""
    offload: Offload | None = getattr(_present, "offload", None)
    return tensor if offload is None else offload.pack(tensor)


def again(kept: Tensor | Left) -> Tensor:
    """Return the rows."""
    return kept if isinstance(kept, Tensor) else kept.offload.unpack(kept)

"""Minibatches of a host on their way to the GPU that trains on them, one ahead of training.

A thread of its own picks the rows of the next minibatch and puts them in pinned memory, from where
they are copied on a stream of their own. So two minibatches are on the device at a time, and a
third where a macrobatch begins. On a CPU there is nothing to copy, and all else is the same.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu.minibatch.device_relay import to_device
from siafu.minibatch.side_stream import SideStream
from siafu.minibatch.subgraph import Subgraph

_THREAD = "siafu-copies"
Columns = dict[str, Tensor]
Pick = Callable[[Subgraph], Columns]
"""Returns the rows of a minibatch on the host."""


@dataclass(frozen=True, eq=False)
class Copied:
    """A minibatch where it is trained on."""

    graph: Subgraph
    columns: Columns
    made: Any
    """When its copies are done."""

    @property
    def tensors(self) -> list[Tensor]:
        """What was copied: addresses stay on the host."""
        found = [*self.graph.tensors, *self.columns.values()]
        return [tensor for tensor in found if tensor.is_cuda]


class Copier:
    """What copies the minibatches of one rank."""

    def __init__(self, device: torch.device, decoded: Callable[[Columns], Columns]) -> None:
        """`decoded` makes numbers of rows, on the host."""
        self._device, self._decoded = device, decoded
        self.side = SideStream(device)
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, graphs: list[Subgraph], pick: Pick) -> "MacrobatchCopies":
        """Return the copies of a macrobatch, the first of which is on its way."""
        return MacrobatchCopies(self, [graph for graph in graphs if graph.num_seeds], pick)

    def start(self, graph: Subgraph, pick: Pick) -> Future[Copied]:
        """Start copying a minibatch."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD)
        return self._thread.submit(self.side.run, self._copied, graph, pick)

    def _copied(self, graph: Subgraph, pick: Pick) -> Copied:
        move = partial(to_device, device=self._device)
        found = self._decoded(pick(graph))
        columns = {name: move(rows) for name, rows in found.items() if name != "coded"}
        return Copied(graph.moved(move), columns, self.side.mark())

    def close(self) -> None:
        """End the thread; what it works on now comes to its end."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None


class MacrobatchCopies:
    """The minibatches of a macrobatch, each copied while the one before it is trained on."""

    def __init__(self, copier: Copier, graphs: list[Subgraph], pick: Pick) -> None:
        self._copier, self._pick = copier, pick
        self._next = dict(zip((one.number for one in graphs), [*graphs[1:], None], strict=False))
        """What comes after each minibatch."""
        self._coming: dict[int, Future[Copied]] = {}
        if graphs:
            self._start(graphs[0])

    def _start(self, graph: Subgraph) -> Future[Copied]:
        if graph.number not in self._coming:
            self._coming[graph.number] = self._copier.start(graph, self._pick)
        return self._coming[graph.number]

    @property
    def tensors(self) -> list[Tensor]:
        """What is copied and not taken yet."""
        done = [one for one in list(self._coming.values()) if one.done() and not one.exception()]
        return [tensor for one in done for tensor in one.result().tensors]

    def take(self, graph: Subgraph) -> tuple[Subgraph, Columns]:
        """Return a minibatch for this thread's stream, and start copying the next."""
        coming = self._start(graph)
        del self._coming[graph.number]
        if (after := self._next.get(graph.number)) is not None:
            self._start(after)
        copied = self._copier.side.hand_over(coming.result())
        return copied.graph, copied.columns

"""Messages that come when they come: ranks that drift apart can't agree on one order of exchanges.

For each peer a thread sends what is queued for it, in order, and another receives. A message is a
header of fixed size and rows.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from siafu.comm.world import World
from siafu.errors import SiafuError

_SUBJECT = 5
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_GOODBYE = -1


@dataclass(frozen=True, eq=False, slots=True)
class Mail:
    """One message as it arrives."""

    sender: int
    subject: tuple[int, ...]
    """Up to five numbers of 0 or more that the ranks have a meaning for."""
    rows: Tensor
    """[rows, width]; none for a message that only has a subject."""


class Mailbox:
    """Sends mail to other ranks, and gives what arrives to `deliver`, from threads of its own.

    A failure to send or receive is given to `deliver` too, as the error it is. All ranks open and
    close their mailboxes together; all mail sent before `close` is delivered.
    """

    def __init__(self, world: World, deliver: Callable[[Mail | SiafuError], None]) -> None:
        self._world, self._deliver = world, deliver
        self._tag = world.tag_of("mail")
        self._outgoing: dict[int, queue.SimpleQueue[tuple[Tensor, Tensor]]] = {}
        self._threads: list[threading.Thread] = []
        for peer in range(world.size):
            if peer != world.rank:
                self._outgoing[peer] = queue.SimpleQueue()
                for work in (self._send_all, self._receive_all):
                    thread = threading.Thread(target=work, args=(peer,), daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def send(self, peer: int, subject: tuple[int, ...], rows: Tensor, purpose: str) -> None:
        """Queue a message; `rows` must not change afterwards."""
        assert rows.dim() == 2, "rows are a matrix"
        self._put(peer, subject, rows.contiguous())
        self._world.meter.count(purpose, rows.nbytes, 1, self._world.group_rank(peer))
        self._world.meter.count("control", (_SUBJECT + 3) * 8)

    def _put(self, peer: int, subject: tuple[int, ...], rows: Tensor) -> None:
        padded = [*subject, *(0,) * (_SUBJECT - len(subject))]
        form = [len(rows), rows.size(1), _DTYPES.index(rows.dtype)]
        header = torch.tensor([*padded, *form], dtype=torch.int64)
        self._outgoing[peer].put((header, rows))

    def close(self) -> None:
        """Wait until all mail has left and all of the others' has come."""
        for peer in self._outgoing:
            self._put(peer, (_GOODBYE,), torch.zeros(0, 0))
        for thread in self._threads:
            thread.join(self._world.deadline_seconds)
        self._threads = []

    def _send_all(self, peer: int) -> None:
        world = self._world
        try:
            while True:
                header, rows = self._outgoing[peer].get()
                with world.waiting("sending mail", peer):
                    for tensor in (header, rows) if rows.numel() else (header,):
                        work = dist.isend(tensor, group=world.group, group_dst=peer, tag=self._tag)
                        assert work is not None
                        work.wait(world.wait_timeout)
                if header[0] == _GOODBYE:
                    return
        except SiafuError as error:
            self._deliver(error)

    def _receive_all(self, peer: int) -> None:
        try:
            while True:
                header = self._receive(torch.empty(_SUBJECT + 3, dtype=torch.int64), peer)
                *subject, count, width, kind = header.tolist()
                if subject[0] == _GOODBYE:
                    return
                rows = torch.empty(count, width, dtype=_DTYPES[kind])
                if rows.numel():
                    self._receive(rows, peer)
                self._deliver(Mail(peer, tuple(subject), rows))
        except SiafuError as error:
            self._deliver(error)

    def _receive(self, into: Tensor, peer: int) -> Tensor:
        world = self._world
        with world.waiting("mail", peer):
            work = dist.irecv(into, group=world.group, group_src=peer, tag=self._tag)
            assert work is not None
            work.wait(world.wait_timeout)
        return into

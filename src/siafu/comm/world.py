"""The ranks of a run: who they are, how long they wait for each other, what they have sent."""

import hashlib
import os
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: see close
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from siafu.comm.bad_rows import BadRows
from siafu.comm.devices import choose_device, hosts_of, settle, told_local_rank
from siafu.comm.doing import Doing
from siafu.comm.meeting import GiveUp, in_time, lasting_store, meet
from siafu.comm.meter import Meter, is_training_thread
from siafu.comm.overdue import Overdue, translated
from siafu.comm.peers import Operation, post
from siafu.comm.staging import to_host
from siafu.errors import CommError
from siafu.record import TRAINING_LANE, Trace

DEFAULT_DEADLINE_SECONDS = 300.0
STORE_VARIABLE = "SIAFU_RENDEZVOUS_FILE"
"""Set by the local launcher: ranks of one machine meet in a file, so no port is opened for it."""
SOCKET_VARIABLE = "SIAFU_RENDEZVOUS_SOCKET"
"""Set by the Ray launcher: ranks meet at MASTER_ADDR and MASTER_PORT, where rank 0 has been given a
socket of that number; torch's own would listen on every address of the machine."""
HOST_VARIABLE = "SIAFU_HOST"
"""What a rank's machine is called, where its own name doesn't tell it from others."""
SHORTEST_SPAN_SECONDS = 2e-5
"""Of a wait in a trace: starting a message is none."""
_WATCHDOG_SLACK_SECONDS = 60.0
_TAG_BITS, _KIND_BITS, _MOST_LINES = 17, 10, 7
"""Of the 31 bits of a tag; so many second lines of one world may be open at a time."""


@dataclass(kw_only=True)
class World:
    """The group of ranks this process belongs to; a world of one needs no process group."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: dist.ProcessGroup | None = None
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    meter: Meter = field(default_factory=Meter)
    bad_rows: BadRows = field(default_factory=BadRows)
    """What could not be sent, where that is looked at once a step."""
    step: str = "start"
    """What the run is doing now; errors quote it."""
    trace: Trace | None = None
    """Where it is kept when this rank worked, waited and sent, if that was asked for."""
    doing: Doing | None = None
    """Where it is noted what this rank does, if somebody looks there."""
    hosts: tuple[str, ...] = ()
    """The machine of each rank, where they are on several."""
    apart: tuple[int, ...] = ()
    """Ranks that do not see the run's folder: what they write is brought to rank 0."""
    lasting: Store | None = None
    """Notes that are still there when torchrun starts the ranks again; None elsewhere."""
    overdue: Overdue | None = None
    """What watches over NCCL, where that carries rows."""
    _owns_group: bool = False
    _next_tag: int = 0
    _line: int = 0
    """0, or a number for a second line over the same group: their messages have other tags."""
    _lines_opened: int = 0
    _first_line: "World | None" = None
    """The world that a second line or a part belongs to; what that is doing, this is too."""
    _members: tuple[int, ...] | None = None
    """Of a part of a world: the rank in the group that each of its ranks is."""

    @classmethod
    def join(
        cls,
        *,
        device: str = "auto",
        backend: str = "auto",
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        give_up: GiveUp | None = None,
    ) -> "World":
        """Return the world that torchrun or siafu's launcher describes; else a world of one.

        Should torch wait past the deadline, `give_up` ends this process, after telling the error.
        `backend` is what carries rows: gloo, nccl, or what suits the devices of all ranks.
        """
        size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        if size == 1:
            chosen = choose_device(device, told_local_rank() or 0)
            return cls(device=chosen, deadline_seconds=deadline_seconds)
        file = os.environ.get(STORE_VARIABLE)
        timeout = timedelta(seconds=deadline_seconds)
        what = f"rank {rank} joining {size} ranks on {file or os.environ.get('MASTER_ADDR')}"
        with translated(what, deadline_seconds), in_time(what, deadline_seconds, give_up):
            store, lasting = _store(rank, size, timeout), None
            if store is None:
                lasting = lasting_store(rank, size, timeout)
                store = meet(lasting, rank, size, deadline_seconds)
            notes = PrefixStore("devices", store)
            chosen, local_rank, carrier = settle(notes, rank, size, device, backend)
            store.set(f"host/{rank}", os.environ.get(HOST_VARIABLE) or socket.gethostname())
            overdue = Overdue(deadline_seconds, give_up) if carrier == "nccl" else None
            if overdue is not None:  # torch's own watchdog tells less: it comes later
                timeout += timedelta(seconds=_WATCHDOG_SLACK_SECONDS)
            dist.init_process_group(
                carrier, store=store, rank=rank, world_size=size, timeout=timeout
            )
            hosts = () if file else hosts_of(store, size)
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            device=chosen,
            group=dist.group.WORLD,
            deadline_seconds=deadline_seconds,
            lasting=lasting,
            hosts=hosts,
            overdue=overdue,
            _owns_group=True,
        )

    @classmethod
    def over(cls, group: dist.ProcessGroup, *, deadline_seconds: float) -> "World":
        """Return the world of an existing process group that this process belongs to."""
        return cls(
            rank=dist.get_rank(group),
            size=dist.get_world_size(group),
            group=group,
            deadline_seconds=deadline_seconds,
        )

    def second_line(self) -> "World":
        """Return a world of the same ranks with messages of its own, from host to host.

        For a thread that works beside this world's: each line has one order of messages. Only rows
        and numbers go over it, no sums. Bytes are counted together. All ranks call this together.
        """
        number = 1 + self._lines_opened % _MOST_LINES
        self._lines_opened += 1
        group, is_new = self.group, self.backend == "nccl"
        if is_new:  # NCCL carries no rows of the host
            with self.waiting("opening a second line"):
                group = dist.new_group(timeout=self.wait_timeout, backend="gloo")
        return World(
            rank=self.rank,
            size=self.size,
            local_rank=self.local_rank,
            group=group,
            deadline_seconds=self.deadline_seconds,
            meter=self.meter,
            _first_line=self,
            _owns_group=is_new,
            _line=number,
        )

    def part(self, members: Sequence[int]) -> "World":
        """Return the world of some of these ranks, this one among them.

        It has messages of its own over the same connections; a sum goes from each rank to each, so
        it is meant for small tensors. Bytes are counted together. All ranks open as many parts, in
        the same order.
        """
        assert self._members is None, "a part of a part has no use yet"
        self._lines_opened += 1
        assert self._lines_opened <= _MOST_LINES, "tags tell no more lines apart"
        return World(
            rank=members.index(self.rank),
            size=len(members),
            local_rank=self.local_rank,
            device=self.device,
            group=self.group,
            deadline_seconds=self.deadline_seconds,
            meter=self.meter,
            bad_rows=self.bad_rows,
            _first_line=self,
            _line=self._lines_opened,
            _members=tuple(members),
        )

    def named(self, rank: int) -> str:
        """Return what a rank is called: with its machine, where there are several."""
        return f"rank {rank} on {self.hosts[rank]}" if self.hosts else f"rank {rank}"

    def beside(self) -> tuple[int, ...]:
        """Return the other ranks of this machine, where ranks are on several."""
        mine = self.hosts[self.rank] if self.hosts else None
        return tuple(r for r, host in enumerate(self.hosts) if host == mine and r != self.rank)

    @property
    def ranks_here(self) -> int:
        """Ranks on this machine, as the launcher tells; all of them where none did."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size))

    @property
    def has_hosts(self) -> bool:
        """True where ranks are on several machines, and on some of them several."""
        return 1 < len(set(self.hosts)) < len(self.hosts)

    def group_rank(self, rank: int) -> int:
        """Return the rank in the process group that a rank of this world is."""
        return rank if self._members is None else self._members[rank]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, if `join` made one, and end its threads.

        They end with the last reference to the group. torch.distributed.nn.functional takes the
        group as default argument when it is first imported (torch.optim does that), hence the
        import above, before there is one. A thread that outlives Python's own end aborts.
        """
        if self.overdue is not None:
            self.overdue.close()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self._owns_group, self.group = False, None

    @property
    def spans(self) -> Trace | None:
        """Where spans of this world are kept: with the world that it is a line or a part of."""
        return self.trace if self._first_line is None else self._first_line.trace

    @property
    def stages_through_host(self) -> bool:
        """True when device rows must be copied to the host to travel (Gloo with CUDA)."""
        return self.device.type == "cuda" and self.backend == "gloo"

    @property
    def backend(self) -> str:
        """The transport: gloo, nccl, or none for one rank."""
        return "none" if self.group is None else str(dist.get_backend(self.group))

    @property
    def store(self) -> Store:
        """Where ranks leave notes for each other without a collective."""
        return dist.distributed_c10d._get_default_store()

    @property
    def wait_timeout(self) -> timedelta:
        """The deadline in the form torch's waits take."""
        return timedelta(seconds=self.deadline_seconds)

    def next_tag(self, kind: str) -> int:
        """Return a number that ranks agree on while they exchange the same kinds in one order.

        Gloo matches messages by it, so ranks out of step wait (and are told so at the deadline)
        instead of taking each other's rows for something else.
        """
        self._next_tag = (self._next_tag + 1) % (1 << _TAG_BITS)
        kind_bits = zlib.crc32(kind.encode()) % (1 << _KIND_BITS)
        return self._next_tag | (kind_bits | self._line << _KIND_BITS) << _TAG_BITS

    def tag_of(self, kind: str) -> int:
        """Return the number of a message between two ranks that others know nothing of.

        Apart from those of `next_tag`; messages of one kind keep their order.
        """
        return (1 << 30) | zlib.crc32(kind.encode()) % (1 << 30)

    @contextmanager
    def waiting(self, operation: str, peer: int | None = None) -> Iterator[None]:
        """Turn a failed wait inside into an error that names rank, peer, operation and step."""
        first, (me, whom, what) = self._first, self._told(operation, peer)
        if first.doing is not None:
            first.doing.note(what, waits=True)
        started = time.perf_counter()
        with translated(f"{me} waiting {what}", self.deadline_seconds):
            yield
        seconds = time.perf_counter() - started
        if first.doing is not None:
            first.doing.note(what, waits=False)
        self.meter.waited(operation, seconds)
        if (trace := self.spans) is not None and seconds > SHORTEST_SPAN_SECONDS:
            lane = TRAINING_LANE if is_training_thread() else "ahead"
            start = trace.now() - seconds
            trace.add(operation, "wait", lane, start=start, seconds=seconds, peer=whom)

    @property
    def _first(self) -> "World":
        return self if self._first_line is None else self._first_line

    def _told(self, operation: str, peer: int | None) -> tuple[str, str, str]:
        """Return what this rank and those it waits for are called, and what the wait is."""
        first = self._first
        whom = "all ranks" if peer is None else first.named(self.group_rank(peer))
        me = first.named(self.group_rank(self.rank))
        return me, whom, f"for {whom} in {operation}, {first.step}"

    def watch(self, work: Any, operation: str, peer: int | None = None) -> None:
        """Have something that NCCL does end in time."""
        if (overdue := self._first.overdue) is not None:
            me, _, what = self._told(operation, peer)
            overdue.note(work, f"{me} waiting {what}")

    def sum_in_place(self, tensor: Tensor, purpose: str) -> Tensor:
        """Replace `tensor` on every rank by its sum over the ranks, and return it."""
        if self.size == 1:
            return tensor
        if self._members is not None:
            return self._sum_by_peers(tensor, purpose)
        assert not self._line, "sums of two threads over one group would mix"
        self.meter.count(purpose, 2 * (self.size - 1) * tensor.nbytes // self.size)
        operation = f"the sum of {purpose}"
        with self.waiting(operation):
            carrier = to_host(tensor) if self.stages_through_host else tensor
            work = dist.all_reduce(carrier, group=self.group, async_op=True)
            assert work is not None, "this rank is in the group"
            self.watch(work, operation)
            work.wait()
        return tensor.copy_(carrier) if carrier is not tensor else tensor

    def _sum_by_peers(self, tensor: Tensor, purpose: str) -> Tensor:
        """Add up in order of rank, so that all ranks have the same sum to the bit."""
        carrier = tensor.contiguous()
        carrier = to_host(carrier) if self.stages_through_host else carrier
        found = [carrier if r == self.rank else torch.empty_like(carrier) for r in range(self.size)]
        others = [rank for rank in range(self.size) if rank != self.rank]
        operations: list[Operation] = [(r, dist.irecv, found[r]) for r in others]
        operations += [(rank, dist.isend, carrier) for rank in others]
        for peer in others:
            self.meter.count(purpose, carrier.nbytes, 1, self.group_rank(peer))
        operation = f"the sum of {purpose}"
        for message in post(operations, self.next_tag(operation), self, operation):
            message.wait(self, operation)
        return tensor.copy_(torch.stack(found).sum(0))

    def gather_numbers(self, values: list[float], purpose: str = "control") -> list[list[float]]:
        """Return every rank's numbers, by rank; all ranks give the same count of them."""
        table = torch.zeros(self.size, len(values), dtype=torch.float64, device=self.device)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        return self.sum_in_place(table, purpose).tolist()

    def share_text(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        raw = text.encode() if self.rank == 0 else b""
        size = int(self.gather_numbers([float(len(raw))])[0][0])
        if not size:
            return ""
        letters = torch.zeros(size, dtype=torch.uint8, device=self.device)
        if self.rank == 0:
            letters.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
        return bytes(self.sum_in_place(letters, "control").tolist()).decode()

    def gather_texts(self, text: str) -> list[str]:
        """Return every rank's text, by rank."""
        raw = text.encode()
        sizes = [int(row[0]) for row in self.gather_numbers([float(len(raw))])]
        letters = torch.zeros(self.size, max(1, *sizes), dtype=torch.uint8, device=self.device)
        letters[self.rank, : len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
        rows = self.sum_in_place(letters, "control").cpu()
        return [bytes(row[:size].tolist()).decode() for row, size in zip(rows, sizes, strict=True)]

    def check_agreement(self, what: str, text: str) -> None:
        """Raise on every rank unless all ranks hold the same text."""
        digest = hashlib.sha256(text.encode()).digest()[:6]
        rows = self.gather_numbers([float(int.from_bytes(digest))])
        values = [row[0] for row in rows]
        if len(set(values)) > 1:
            odd = [rank for rank, value in enumerate(values) if value != values[0]]
            raise CommError(
                f"The ranks do not agree on the {what}.",
                seen=f"ranks {odd} differ from rank 0",
                fix=f"start every rank with the same {what}",
            )


def _store(rank: int, size: int, timeout: timedelta) -> Store | None:
    """Return where siafu's launcher has the ranks meet; None where it did not start them."""
    if file := os.environ.get(STORE_VARIABLE):
        return FileStore(file, size)
    if socket := os.environ.get(SOCKET_VARIABLE):
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            size,
            is_master=rank == 0,
            timeout=timeout,
            master_listen_fd=int(socket) if rank == 0 else None,
        )
    return None

"""NCCL's rules, kept by a stand-in over Gloo, so that they are tested where no two GPUs are.

What NCCL refuses, this refuses: tags, messages outside of a batch, types it does not know, tensors
with gaps or elsewhere than on the device, bytes from odd addresses (which it moves slowly). What is
started runs as on a stream, one after the other, and between two ranks the n-th message that is
sent is the n-th that is received: ranks out of step mix rows or wait for ever, as they would.

A second group, of Gloo, may be made beside it, for rows of the host.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from siafu.comm import World
from siafu.comm.overdue import Overdue
from siafu.errors import CommError

TYPES = {
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
ALIGN = 16


class StrictWork:
    """Something on its way; `wait` takes no time limit, as that of NCCL is the group's."""

    def __init__(self, done: "Future[None]") -> None:
        self._done = done

    def wait(self) -> None:
        """Wait for it; NCCL would have the stream wait."""
        self._done.result()

    def is_completed(self) -> bool:
        """Return whether it is done."""
        return self._done.done()


class HostGroup:
    """A group of Gloo beside that of NCCL; its messages have tags, and go over the same ranks."""


class StrictNccl:
    """What stands in for torch.distributed on one rank."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches = self.host_messages = 0
        self.started = ThreadPoolExecutor(1)
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._send, self._receive, self._reduce = dist.isend, dist.irecv, dist.all_reduce
        self._limit = timedelta(seconds=world.deadline_seconds)

    def _check(self, tensor: Tensor) -> None:
        assert tensor.device.type == self.world.device.type, "NCCL takes tensors of GPUs alone"
        assert tensor.is_contiguous(), "tensors must be contiguous"
        assert tensor.dtype in TYPES, f"{tensor.dtype} is not supported for NCCL process group"
        odd = tensor.dtype == torch.uint8 and tensor.data_ptr() % ALIGN
        assert not odd, "bytes from an odd address"

    def batch_isend_irecv(self, operations: list[dist.P2POp]) -> list[StrictWork]:
        """Start messages together."""
        assert operations, "NCCL takes no empty batch"
        self.batches += 1
        calls = []
        for one in operations:
            self._check(one.tensor)
            assert not one.tag, "NCCL knows no tags"
            assert one.tensor.numel(), "NCCL matches no empty messages"
            sends = one.op == self.isend
            assert sends or one.op == self.irecv, "a send or a receive"
            counts = self._sent if sends else self._received
            calls.append((sends, one.group_peer, one.tensor, counts[one.group_peer]))
            counts[one.group_peer] += 1

        def run() -> None:
            works = [
                self._send(tensor, group=self.world.group, group_dst=peer, tag=1 << 20 | number)
                if sends
                else self._receive(
                    tensor, group=self.world.group, group_src=peer, tag=1 << 20 | number
                )
                for sends, peer, tensor, number in calls
            ]
            for work in works:
                work.wait(self._limit)

        return [StrictWork(self.started.submit(run))]

    def all_reduce(self, tensor: Tensor, group: Any, async_op: bool = False) -> StrictWork:
        """Start a sum."""
        self._check(tensor)
        assert async_op, "a sum that is waited for at once can't be watched"
        return StrictWork(self.started.submit(lambda: self._reduce(tensor, group=group)))

    def isend(self, tensor: Tensor, *, group: Any, **named: Any) -> Any:
        """Refuse, but from host to host: apart, two ranks that both send first wait for ever."""
        assert isinstance(group, HostGroup), "a message outside of a batch"
        self.host_messages += 1
        return self._send(tensor, group=self.world.group, **named)

    def irecv(self, tensor: Tensor, *, group: Any, **named: Any) -> Any:
        """Refuse, as `isend`."""
        assert isinstance(group, HostGroup), "a message outside of a batch"
        return self._receive(tensor, group=self.world.group, **named)

    def get_backend(self, group: Any) -> str:
        """Return what this stands in for."""
        return "gloo" if isinstance(group, HostGroup) else "nccl"

    def new_group(self, *, timeout: timedelta, backend: str) -> HostGroup:
        """Return a group for rows of the host."""
        assert backend == "gloo", "NCCL carries no rows of the host"
        return HostGroup()

    def destroy_process_group(self, group: Any) -> None:
        """End such a group; that of NCCL is the pool's."""
        assert isinstance(group, HostGroup), "the pool's group is not this run's"


class StandIn:
    """`dist` as modules of `comm` see it: this stand-in's functions before torch's."""

    def __init__(self, strict: StrictNccl) -> None:
        # Kept, since calls are told apart by identity.
        self.isend, self.irecv, self.all_reduce = strict.isend, strict.irecv, strict.all_reduce
        self.batch_isend_irecv, self.get_backend = strict.batch_isend_irecv, strict.get_backend
        self.new_group = strict.new_group
        self.destroy_process_group = strict.destroy_process_group

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def P2POp(self, call: Any, tensor: Tensor, **named: Any) -> Any:
        """Return the operation; torch's own checks that `call` is one of its functions."""
        peer, tag = named.pop("group_peer"), named.pop("tag", 0)
        made = type("P2POp", (), {})()
        made.op, made.tensor, made.group_peer, made.tag = call, tensor, peer, tag
        return made


MODULES = ("world", "peers", "halo", "redistribute")


@contextmanager
def strict_nccl(world: World) -> Iterator[tuple[World, StrictNccl]]:
    """Have a rank of the pool exchange as over NCCL; what it gives up on is raised at the end."""
    told: list[CommError] = []
    overdue = Overdue(world.deadline_seconds, told.append)
    strict = StrictNccl(world)
    stand_in = StandIn(strict)
    patches = [patch(f"siafu.comm.{name}.dist", stand_in) for name in MODULES]
    for one in patches:
        one.start()
    try:
        yield replace(world, overdue=overdue), strict
    finally:
        for one in patches:
            one.stop()
        strict.started.shutdown(wait=False)
        overdue.close()
    if told:
        raise told[0]

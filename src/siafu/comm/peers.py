"""Messages from rank to rank, started together.

Gloo matches messages by tag and waits on the host. NCCL knows no tags: between two ranks the n-th
that is sent is the n-th that is received, and a wait only orders streams, so what was started is
watched for its deadline (`Overdue`). In runs with TORCH_DISTRIBUTED_DEBUG set, the number that
would be the tag travels beside each message and is looked at on arrival.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DebugLevel, get_debug_level  # type: ignore[attr-defined]

from siafu.errors import CommError

if TYPE_CHECKING:
    from siafu.comm.world import World

Operation = tuple[int, Any, Tensor]
"""A peer, isend or irecv, and the tensor."""


@dataclass(frozen=True, slots=True)
class Message:
    """What was started for a peer, or for several, of whom the first is named."""

    peer: int
    work: Any
    check: Callable[[], None] | None = None

    def wait(self, world: "World", operation: str) -> None:
        """Wait until it has come or left; over NCCL, have the present stream wait."""
        with world.waiting(operation, self.peer):
            self.work.wait() if world.backend == "nccl" else self.work.wait(world.wait_timeout)
        if self.check is not None:
            self.check()


def post(operations: list[Operation], tag: int, world: "World", purpose: str) -> list[Message]:
    """Start operations with peers; return what to wait for."""
    if not operations:
        return []
    if world.backend == "nccl":
        return _post_batch(operations, tag, world, purpose)
    messages = []
    for peer, call, tensor in operations:
        side = {"group_src" if call is dist.irecv else "group_dst": world.group_rank(peer)}
        with world.waiting(purpose, peer):
            work = call(tensor, group=world.group, tag=tag, **side)
        messages.append(Message(peer, work))
    return messages


def _post_batch(
    operations: list[Operation], tag: int, world: "World", purpose: str
) -> list[Message]:
    """Start operations in one call: apart, two ranks that both send first would wait for ever."""
    first, check = operations[0][0], None
    if get_debug_level() is not DebugLevel.OFF:
        operations, check = _numbered(operations, tag, world, purpose)
    batch = [
        dist.P2POp(call, tensor, group=world.group, group_peer=world.group_rank(peer))
        for peer, call, tensor in operations
    ]
    with world.waiting(purpose, first):
        works = dist.batch_isend_irecv(batch)
    for work in works:  # one for all or one for each: NCCL may merge them
        world.watch(work, purpose, first)
    messages = [Message(first, work) for work in works]
    return messages if check is None else [*messages[:-1], Message(first, works[-1], check)]


def _numbered(
    operations: list[Operation], tag: int, world: "World", purpose: str
) -> tuple[list[Operation], Callable[[], None]]:
    """Return the operations with a number before each, and what looks at those that came."""
    all_of_them: list[Operation] = []
    received: list[tuple[int, Tensor]] = []
    for peer, call, tensor in operations:
        number = torch.full((2,), tag, dtype=torch.int64, device=tensor.device)
        if call is dist.irecv:
            received.append((peer, number.zero_()))
        all_of_them += [(peer, call, number), (peer, call, tensor)]

    def check() -> None:
        for peer, number in received:
            if int(number[0]) != tag:
                raise CommError(
                    "The ranks are out of step.",
                    seen=f"rank {world.rank} got message {int(number[0])} from rank {peer} for "
                    f"{purpose}, and expected {tag}",
                    fix="have all ranks do the same exchanges in the same order",
                )

    return all_of_them, check

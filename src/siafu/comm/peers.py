"""Messages from rank to rank, started together."""

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from siafu.comm.world import World


def post(
    operations: list[tuple[int, Any, Tensor]], tag: int, world: "World", purpose: str
) -> list[tuple[int, Any]]:
    """Start (peer, isend or irecv, tensor) operations; return the works to wait for, by peer."""
    if not operations:
        return []
    if world.backend == "nccl":
        batch = [
            dist.P2POp(call, tensor, group=world.group, group_peer=world.group_rank(peer))
            for peer, call, tensor in operations
        ]
        # One work or one an operation: NCCL may merge them.
        return [(operations[0][0], work) for work in dist.batch_isend_irecv(batch)]
    works = []
    for peer, call, tensor in operations:
        side = {"group_src" if call is dist.irecv else "group_dst": world.group_rank(peer)}
        with world.waiting(purpose, peer):
            works.append((peer, call(tensor, group=world.group, tag=tag, **side)))
    return works

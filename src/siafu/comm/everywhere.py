"""Rows of all ranks on every rank, sent once.

Shapes: N own rows, M rows of all ranks.
"""

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from siafu.comm.halo import start_exchange
from siafu.comm.world import World

_PIECE_BYTES = 1 << 27
"""Of own rows that leave at once, a copy for each of the others."""


def rows_of_all(
    read: Callable[[int, int], Tensor], counts: list[int], world: World, purpose: str
) -> Tensor:
    """Return the rows of all ranks on this one's device, one rank's after another's.

    `read` gives the own rows from one number to another, `counts` is how many each rank has. All
    ranks call this together.
    """
    starts, device = [0, *accumulate(counts)], world.device
    like = read(0, 0)
    rows_M = torch.empty(starts[-1], *like.shape[1:], dtype=like.dtype, device=device)
    others = [rank for rank in range(world.size) if rank != world.rank]
    step = max(1, _PIECE_BYTES // max(1, rows_M[:1].nbytes * len(others)))
    for low in range(0, max(counts), step):
        here = [max(0, min(step, count - low)) for count in counts]
        mine = read(low, low + here[world.rank]).to(device)
        arrived = start_exchange(
            mine.repeat(len(others), *(1 for _ in mine.shape[1:])),
            tuple(here[world.rank] if rank in others else 0 for rank in range(world.size)),
            tuple(here[rank] if rank in others else 0 for rank in range(world.size)),
            world,
            purpose,
        ).wait(world, "rows of all ranks")
        pieces = iter(arrived.split([here[rank] for rank in others]))
        for rank, start in enumerate(starts[:-1]):
            piece = mine if rank == world.rank else next(pieces)
            rows_M[start + low : start + low + len(piece)] = piece
    return rows_M

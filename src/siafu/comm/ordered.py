"""A sum over ranks whose order of additions does not depend on who holds which term.

Floating-point sums depend on their order. A ring adds in an order that follows the number of ranks;
here each rank adds one slice of the columns, term after term, and hands the result round. As many
bytes leave a rank as in a ring when every rank holds one term.

Shapes: T terms of all ranks, M terms held here, K columns, W columns of a slice.
"""

import torch
from torch import Tensor

from siafu.comm.halo import start_exchange
from siafu.comm.world import World


def sum_in_order(terms_MK: Tensor, holders_T: list[int], world: World, purpose: str) -> Tensor:
    """Return sum_K over the terms of all ranks, added in the order of `holders_T`.

    `holders_T` names the rank of each term; a rank gives its terms in that order.
    """
    if world.size == 1:
        return _added(list(terms_MK))
    counts = [holders_T.count(rank) for rank in range(world.size)]
    width = -(-terms_MK.size(1) // world.size)
    padded = terms_MK.new_zeros(len(terms_MK), world.size * width)
    padded[:, : terms_MK.size(1)] = terms_MK
    slices_PMW = padded.view(len(terms_MK), world.size, width).transpose(0, 1)
    others = [rank for rank in range(world.size) if rank != world.rank]
    held = len(terms_MK)
    arrived = start_exchange(
        slices_PMW[others].reshape(-1, width),
        tuple(0 if rank == world.rank else held for rank in range(world.size)),
        tuple(0 if rank == world.rank else count for rank, count in enumerate(counts)),
        world,
        purpose,
    ).wait(world, f"the sum of {purpose}")
    by_rank = arrived.split([0 if r == world.rank else c for r, c in enumerate(counts)])
    queues = [
        iter(slices_PMW[world.rank] if rank == world.rank else by_rank[rank])
        for rank in range(world.size)
    ]
    mine_W = _added([next(queues[rank]) for rank in holders_T])
    return _handed_round(mine_W, world, purpose)[: terms_MK.size(1)]


def _added(terms: list[Tensor]) -> Tensor:
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total


def _handed_round(mine_W: Tensor, world: World, purpose: str) -> Tensor:
    """Return the slices of all ranks, side by side."""
    once = tuple(int(rank != world.rank) for rank in range(world.size))
    copies = mine_W.expand(world.size - 1, -1)
    arrived = start_exchange(copies, once, once, world, purpose)
    others_PW = arrived.wait(world, f"the sum of {purpose}")
    before, after = others_PW.split([world.rank, world.size - 1 - world.rank])
    return torch.cat([before, mine_W[None], after]).flatten()

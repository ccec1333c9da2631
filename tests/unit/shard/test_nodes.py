"""Rows of nodes that other ranks hold: fetched with gradients, gathered without."""

import numpy as np
import torch

from siafu.comm import World
from siafu.shard import NodeShare
from tests.harness import RankPool

GROUPS = np.array([1, 0, 2, 2, 1, 0, 2, 1], np.int32)


def fetched(world: World) -> dict:
    """Return rows of some nodes, twice the same one among them, and what comes home."""
    share = NodeShare(len(GROUPS), world.part(range(world.size)), GROUPS)
    x = torch.stack([10.0 * share.ids_n, share.ids_n + 0.5], dim=1).requires_grad_()
    asked = [torch.tensor([7, 2, 2, 1]), torch.tensor([], dtype=torch.int64), torch.arange(8)]
    wanted = asked[world.rank]
    rows = share.fetch(x, wanted)
    (rows * (world.rank + 1)).sum().backward()
    gathered = share.gather(share.ids_n)
    return {
        "ids": share.ids_n,
        "wanted": wanted,
        "rows": rows.detach(),
        "grad": x.grad,
        "all": gathered,
    }


def test_rows_of_any_nodes_come_and_their_gradients_go_home(ranks: RankPool) -> None:
    counts = torch.zeros(len(GROUPS))
    found = ranks.run(fetched, 3)
    for rank, part in enumerate(found):
        want = torch.stack([10.0 * part["wanted"], part["wanted"] + 0.5], dim=1)
        assert torch.equal(part["rows"], want)
        counts.index_add_(0, part["wanted"], torch.full((len(want),), rank + 1.0))
        assert part["all"].tolist() == [1, 5, 0, 4, 7, 2, 3, 6]
    for part in found:
        assert torch.equal(part["grad"], counts[part["ids"]][:, None].expand(-1, 2))


def test_one_rank_has_every_node() -> None:
    share = NodeShare(4, World())
    x = torch.arange(8.0).view(4, 2)
    ids = torch.tensor([3, 0, 3])
    assert share.is_whole
    assert torch.equal(share.fetch(x, ids), x[ids])
    assert torch.equal(share.gather(x), x)
    assert bool(share.is_mine(ids).all())


def sums_of_parts(world: World) -> tuple[list[float], list[list[float]], int]:
    """Return the sum over this rank's part of the world, numbers from it, and a whole sum."""
    part = world.part([rank for rank in range(world.size) if rank % 2 == world.rank % 2])
    mine = torch.full((2,), float(world.rank + 1))
    found = part.sum_in_place(mine, "control").tolist()
    return found, part.gather_numbers([float(world.rank)]), int(world.gather_numbers([1.0])[0][0])


def test_parts_of_a_world_keep_to_themselves(ranks: RankPool) -> None:
    found = ranks.run(sums_of_parts, 4)
    for rank, (total, numbers, one) in enumerate(found):
        members = [rank % 2, rank % 2 + 2]
        assert total == [float(sum(member + 1 for member in members))] * 2
        assert numbers == [[float(member)] for member in members]
        assert one == 1

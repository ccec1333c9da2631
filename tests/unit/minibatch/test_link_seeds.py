"""Edges as seeds: each once, by draws that its ends key, however few are held; addresses."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.minibatch import ROW_BITS, Directory, link_seeds
from siafu.minibatch.link_seeds import EdgeOrder
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.ops import DrawKey, uniform_pairs
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard
from tests.parity.graphs import assignment, awkward_graph

SEED = 4


@pytest.fixture(params=["host", "disk"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Shard:
    """The awkward graph, whole, with loops and repeated edges."""
    graph = awkward_graph()
    part_of = assignment(graph, "hash", 1)
    write_parts(graph, part_of, tmp_path / "parts", num_parts=1, method="hash", seed=0)
    return open_shard(tmp_path / "parts", World(), place=request.param)


def _sorted_by_draws(shard: Shard, epoch: int) -> Tensor:
    reader = shard.reader("src")
    assert reader is not None
    src = reader.read(torch.arange(shard.csr.num_edges)).long()
    dst = torch.arange(shard.num_owned).repeat_interleave(shard.csr.degree())
    pairs = torch.stack([src, dst], dim=1)[src != dst].unique(dim=0)
    key = DrawKey(SEED, epoch, ORDER_PURPOSE)
    draws = uniform_pairs(key, *pairs.T.contiguous(), 1, dtype=torch.float64)
    return pairs[draws[:, 0].argsort(stable=True)]


@pytest.mark.parametrize(("piece", "bucket"), [(1 << 19, 1 << 18), (40, 16), (7, 1), (1, 1000)])
def test_edges_stand_by_their_draws_whatever_is_held(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, piece: int, bucket: int
) -> None:
    monkeypatch.setattr(link_seeds, "PIECE_EDGES", piece)
    monkeypatch.setattr(link_seeds, "BUCKET_EDGES", bucket)
    with World().second_line() as channel:
        order = EdgeOrder(shard, channel, SEED, of_all_ranks=False)
        for epoch in (1, 2):
            want = _sorted_by_draws(shard, epoch)
            total = len(want)
            assert order.totals == [total]
            spans = [range(low, min(low + 9, total)) for low in range(0, total, 9)]
            got = torch.cat([order.read(epoch, places) for places in spans])
            assert torch.equal(got, want)
            for places in (range(3, 30), range(0, 5), range(total - 4, total), range(2, 2)):
                assert torch.equal(order.read(epoch, places), want[places.start : places.stop])
        assert len(want) < shard.csr.num_edges


def test_no_more_than_the_buckets_read_is_held(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_seeds, "PIECE_EDGES", 20)
    monkeypatch.setattr(link_seeds, "BUCKET_EDGES", 10)
    with World().second_line() as channel:
        order = EdgeOrder(shard, channel, SEED, of_all_ranks=False)
        for low in range(0, order.totals[0] - 5, 5):
            order.read(1, range(low, low + 5))
            assert len(order._held) < 60


@pytest.mark.parametrize(("num_nodes", "num_parts"), [(1, 1), (255, 2), (1300, 3), (513, 4)])
def test_addresses_are_owner_and_row(num_nodes: int, num_parts: int) -> None:
    generator = np.random.default_rng(num_nodes)
    part_of = generator.integers(0, num_parts, num_nodes).astype(np.int32)
    part_of[part_of == 1] = 0  # a part may own nothing
    want = np.empty(num_nodes, np.int64)
    for part in range(num_parts):
        rows = np.flatnonzero(part_of == part)
        want[rows] = part << ROW_BITS | np.arange(len(rows))
    numbers = torch.from_numpy(generator.permutation(num_nodes))
    assert torch.equal(
        Directory(part_of, num_parts).addresses(numbers), torch.from_numpy(want)[numbers]
    )
    assert len(Directory(part_of, num_parts).addresses(numbers[:0])) == 0

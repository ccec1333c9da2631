"""Inference layer by layer: a row of another rank crosses once per layer, however many pieces."""

from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.minibatch import layerwise
from siafu.minibatch.layerwise import Room
from siafu.shard import open_shard
from tests.harness import RankPool

BASE = {"strategy": "batchgnn", "fanout": "3,2", "batch_size": 4, "macrobatch": "1", "hidden": 8}
WIDTH, HIDDEN, CLASSES = 6, 8, 3
SMALL: dict[str, Any] = {"_ROWS_AT_ONCE": 2, "_EDGES_AT_ONCE": 5, "_PIECES_BETWEEN": 2}


def inferred(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return feature bytes of setting up and of passes over small pieces, far rows, and logits."""
    torch.set_num_threads(1)
    shard = open_shard(parts, world, place="host")
    training = begin(make_config(data="a", **BASE, **settings).resolved(), shard)
    network, flow = training.workload.network, training.workload.scoring.flow
    passes, sent = [], [world.meter.bytes_sent.get("feature", 0)]
    rooms = [(1 << 20, Room()), (3, Room(ahead=True)), (3, Room(on_disk=True, ahead=True))]
    for at_once, room in rooms:
        network._inferred = None
        network.feed.room = lambda *given, room=room, **more: room
        most = at_once + world.rank  # ranks need not have room for as many rows
        few = mock.patch.object(Room, "fetched_at_once", lambda *_, most=most: most)
        with few, mock.patch.multiple(layerwise, **SMALL):
            rows = network.logit_rows() if flow is None else network.flow_rows(flow)
            asked = torch.arange(shard.num_owned) if flow is None else flow.rows[-1]
            passes.append(rows.read(asked))
        sent.append(world.meter.bytes_sent.get("feature", 0))
    training.close()
    far = [shard.num_halo] * 2 if flow is None else [len(addresses) for addresses in flow.far]
    read = [] if flow is None else [_far_sources(shard, rows) for rows in flow.rows]
    return {"sent": sent, "far": far, "read": read, "halo": shard.num_halo, "passes": passes}


def _far_sources(shard: Any, rows: torch.Tensor) -> int:
    """Return how many distinct halo rows the in-edges of some rows start at."""
    indptr, index = shard.csr.indptr.tolist(), shard.csr.index
    sources = [index[indptr[row] : indptr[row + 1]].long() for row in rows.tolist()]
    found = torch.cat(sources or [index[:0].long()]).unique()
    return int((found >= shard.num_owned).sum())


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"model": "sage"}, 0),
        ({"model": "gcn"}, 24),
        ({"model": "sage", "evaluate": "split"}, 0),
        ({"model": "sage", "evaluate": "sampled"}, 0),
    ],
)
def test_each_far_row_of_a_layer_travels_once(
    ranks: RankPool, parts_of, size: int, settings: dict[str, Any], more: int
) -> None:
    told = ranks.run(
        inferred, size, parts_of("gap" if size == 4 else "hash", size, False), settings
    )
    # Over all nodes the last layer's map, which is narrower, is applied before rows travel.
    second = HIDDEN if "evaluate" in settings else CLASSES
    a_row = [8 + 4 * width + 8 + more for width in (WIDTH, second)]  # asked by number; row, id
    far = [sum(layer) for layer in zip(*(one["far"] for one in told), strict=True)]
    want = sum(rows * row for rows, row in zip(far, a_row, strict=True))
    sent = [sum(column) for column in zip(*(one["sent"] for one in told), strict=True)]
    assert [after - before for before, after in pairwise(sent)] == [want] * 3
    for one in told:
        assert all(torch.equal(one["passes"][0], other) for other in one["passes"][1:])
        if settings.get("evaluate") == "split":
            assert one["far"] == one["read"]
        assert max(one["far"]) <= one["halo"]
    assert bool(want) == (size > 1)


def test_the_cached_input_travels_once(ranks: RankPool, parts_of) -> None:
    settings = {"model": "sage", "input_cache": True, "input_dropout": 0.0}
    told = ranks.run(inferred, 3, parts_of("hash", 3, False), settings)
    assert sum(one["sent"][0] for one in told) == (16 + 4 * WIDTH) * sum(o["halo"] for o in told)

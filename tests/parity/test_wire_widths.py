"""Bytes on the wire, widths that follow what rows matter, and rows that can't be sent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.errors import DataError
from siafu.graph import IntegerIds, graph_from_edges
from siafu.nn import Draws
from siafu.ops import row_bytes, wire_bytes
from siafu.partitioning import write_parts
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool

NUM_NODES, WIDTH, SIZE = 120, 32, 3
FIRST_ID = 5000


def skewed_graph():
    """Return a directed graph: few sources feed most rows, and their features span most."""
    generator = np.random.default_rng(2)
    src = np.minimum(generator.zipf(1.4, 1500) - 1, NUM_NODES - 1)
    dst = generator.integers(0, NUM_NODES, 1500)
    scale = generator.lognormal(0.0, 2.0, (NUM_NODES, 1))
    everyone = np.ones(NUM_NODES, bool)
    return graph_from_edges(
        src,
        dst,
        NUM_NODES,
        name="skewed",
        x=(scale * generator.standard_normal((NUM_NODES, WIDTH))).astype(np.float32),
        y=np.zeros(NUM_NODES, np.int64),
        num_classes=2,
        train=everyone,
        val=~everyone,
        test=~everyone,
        ids=IntegerIds(np.arange(NUM_NODES) + FIRST_ID),
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("widths") / "skewed"
    part_of = (np.arange(NUM_NODES) % SIZE).astype(np.int32)
    write_parts(skewed_graph(), part_of, target, num_parts=SIZE, method="hash", seed=0)
    return target


def take_halo_bytes(world: World) -> dict[str, int]:
    sent = {name: world.meter.bytes_sent.pop(name, 0) for name in ("halo_forward", "halo_backward")}
    world.meter.bytes_sent.pop("halo_refetch", None)
    return sent


def one_sum(world: World, folder: Path, bits: int, stages: int, dtype: torch.dtype) -> Any:
    """Return halo bytes of one mean and its backward, and the rows they are of."""
    shard, draws = open_shard(folder, world), Draws()
    neighbours = BlockNeighbours(shard, draws, Strategy(wire=bits, stages=stages))
    x = shard.x.to(dtype).requires_grad_()
    neighbours.mean(x)  # fetches the ids of halo rows, once
    take_halo_bytes(world)
    neighbours.mean(x).sum().backward()
    return take_halo_bytes(world), len(shard.plan.send_rows), shard.plan.num_halo


@pytest.mark.parametrize(("stages", "dtype"), [(1, torch.float32), (SIZE, torch.float64)])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_bytes_are_rows_times_those_of_an_encoded_row(
    ranks: RankPool, parts: Path, bits: int, dtype: torch.dtype, stages: int
) -> None:
    each = row_bytes(bits, WIDTH)
    assert each == 8 + WIDTH * bits // 8
    for sent, rows, halo in ranks.run(one_sum, SIZE, parts, bits, stages, dtype):
        assert sent == {"halo_forward": rows * each, "halo_backward": halo * each}


def errors_by_epoch(world: World, folder: Path, strategy: Strategy, epochs: int) -> dict[str, Any]:
    """Return squared errors of a mean in late epochs, and how many bytes went out in each."""
    shard, draws = open_shard(folder, world), Draws(seed=1)
    neighbours = BlockNeighbours(shard, draws, strategy)
    with torch.no_grad():
        exact = neighbours.mean(shard.x)
    errors, sent = [], []
    for epoch in range(1, epochs + 1):
        draws.epoch = epoch
        take_halo_bytes(world)
        got = neighbours.mean(shard.x)
        sent.append(take_halo_bytes(world)["halo_forward"])
        errors.append(float((got - exact).square().sum()))
    found = [channel for e in neighbours.book._channels.values() for channel in e.there]
    layout = sum(wire_bytes(channel.codes_K, WIDTH) for channel in found)
    counted = world.meter.bytes_sent.get("control", 0)
    return {"errors": errors, "sent": sent, "layout": layout, "control": counted}


def total(results: list[dict[str, Any]], name: str, first: int) -> float:
    """Return a sum over the ranks and the epochs from `first` on."""
    return sum(sum(result[name][first - 1 :]) for result in results)


@pytest.mark.parametrize("stages", [1, SIZE])
def test_adaptive_widths_have_less_variance_in_no_more_bytes(
    ranks: RankPool, parts: Path, stages: int
) -> None:
    epochs, first = 40, 6  # a period of 3, two epochs until widths apply
    found = {
        wire: ranks.run(
            errors_by_epoch,
            SIZE,
            parts,
            Strategy(wire=wire, stages=stages, **({} if wire == 4 else {"wire_period": 3})),
            epochs,
        )
        for wire in (4, "adaptive", "random")
    }
    bytes_of = {wire: total(results, "sent", first) for wire, results in found.items()}
    assert bytes_of["adaptive"] <= bytes_of[4]
    assert bytes_of["adaptive"] > 0.98 * bytes_of[4]
    assert bytes_of["random"] <= bytes_of[4]
    error_of = {wire: total(results, "errors", first) for wire, results in found.items()}
    assert error_of["adaptive"] < 0.25 * error_of[4]
    # Scores that do not follow their rows are worse than no scores.
    assert error_of["random"] > error_of[4]
    for result in found["adaptive"]:
        assert result["sent"][-1] == result["layout"]
        assert result["sent"][0] > 1.5 * result["sent"][-1], "the first period has 8 bits"


def deep_directed(world: World, folder: Path, epochs: int) -> Any:
    """Return gradients of twelve sums on end, and the widths that were assigned."""
    shard, draws = open_shard(folder, world), Draws(seed=1)
    strategy = Strategy(wire="adaptive", wire_period=3)
    neighbours = BlockNeighbours(shard, draws, strategy)
    x = (shard.x / shard.x.abs().max()).requires_grad_()
    for epoch in range(1, epochs + 1):
        draws.epoch = epoch
        rows = x
        for _ in range(12):
            rows = neighbours.mean(rows) + 0.1 * rows
        x.grad = None
        rows.square().sum().backward()
    return x.grad, neighbours.book.history, shard.plan


def test_twelve_layers_of_a_directed_graph_get_widths_both_ways(
    ranks: RankPool, parts: Path
) -> None:
    for grad, history, plan in ranks.run(deep_directed, SIZE, parts, 9):
        assert bool(grad.isfinite().all())
        assert {entry.epoch for entry in history} == {6, 9}
        late = [entry for entry in history if entry.epoch == 9]
        assert sorted(entry.exchange for entry in late) == sorted([*range(12), *range(12)])
        for entry in late:
            rows = len(plan.send_rows) if entry.direction == "there" else plan.num_halo
            assert sum(entry.rows.values()) == rows


def with_nan(world: World, folder: Path, node: int) -> str:
    """Return what a rank says of a row with NaN."""
    shard, draws = open_shard(folder, world), Draws()
    neighbours = BlockNeighbours(shard, draws, Strategy(wire=8))
    x = shard.x.clone()
    x[shard.row_ids == node, 3] = float("nan")
    try:
        neighbours.mean(x)
    except DataError as error:
        return str(error)
    return ""


def test_row_with_nan_is_named_by_the_users_id_where_it_is(ranks: RankPool, parts: Path) -> None:
    told = ranks.run(with_nan, SIZE, parts, 0)  # node 0 feeds everyone
    assert [bool(text) for text in told] == [True, False, False]
    assert f"row of node {FIRST_ID}" in told[0]

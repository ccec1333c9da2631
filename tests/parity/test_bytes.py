"""What the meter counts is rows sent x width x item size, for every layer and direction."""

from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import World
from siafu.engine.scores import training_loss
from siafu.nn import CARDS, GNN, Draws, Dropout, ModelSpec
from siafu.ops import Gat
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph

WORLDS = [("hash", 2), ("hash", 3), ("hash", 4), ("gap", 3), ("gap", 4)]
"""`gap` leaves part 1 without nodes, so its blocks are empty."""
HEADS = 2
Counts = dict[str, tuple[int, int]]
"""Bytes and messages by purpose."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root, graph, folders = tmp_path_factory.mktemp("bytes"), awkward_graph(weighted=True), {}
    for kind, size in WORLDS:
        folders[kind, size] = root / f"{kind}{size}"
        part_of = assignment(graph, kind, size)
        write_parts(graph, part_of, folders[kind, size], num_parts=size, method=kind, seed=0)
    return folders


def counted(world: World) -> Counts:
    """Return the halo counters and set all to zero."""
    meter = world.meter
    counts = {
        name: (meter.bytes_sent.get(name, 0), meter.messages_sent.get(name, 0))
        for name in ("halo_forward", "halo_refetch", "halo_backward")
    }
    meter.bytes_sent.clear()
    meter.messages_sent.clear()
    return counts


def facts(shard: Shard) -> dict[str, int]:
    plan = shard.plan
    return {
        "sent_rows": sum(plan.send_counts),
        "halo_rows": sum(plan.recv_counts),
        "receivers": sum(count > 0 for count in plan.send_counts),
        "owners": sum(count > 0 for count in plan.recv_counts),
    }


def one_operation(
    world: World,
    folder: Path,
    name: str,
    width: int,
    dtype: torch.dtype,
    strategy: Strategy | None = None,
) -> dict[str, Any]:
    """Return what one aggregation counts: its first call, forward, backward, without gradient."""
    shard, draws = open_shard(folder, world), Draws()
    neighbours = BlockNeighbours(shard, draws, strategy)
    x = torch.ones(shard.num_owned, width, dtype=dtype)

    def call(rows: torch.Tensor) -> torch.Tensor:
        if name != "attend":
            return getattr(neighbours, name)(rows)
        z = rows.unflatten(1, (HEADS, -1))
        score = z.sum(-1)
        return neighbours.attend(Gat(slope=0.2), (z, score), (score,), dropout=Dropout(0.0, 0))

    counted(world)
    call(x)
    first = counted(world)
    out = call(x.clone().requires_grad_())
    forward = counted(world)
    out.sum().backward()
    backward = counted(world)
    call(x)
    return {
        "first": first,
        "forward": forward,
        "backward": backward,
        "plain": counted(world),
        **facts(shard),
    }


FIRST_ROW_BYTES = {"normalised_sum": 8}
"""Fetched once a run: degrees (float64) for GCN."""
NOTHING = (0, 0)


@pytest.mark.parametrize(
    ("kind", "size", "dtype"),
    [("hash", 2, torch.float32), ("hash", 3, torch.float64), ("gap", 4, torch.float32)],
)
@pytest.mark.parametrize("name", ["sum", "mean", "normalised_sum", "max", "attend"])
def test_operation_sends_rows_times_width_times_item_size(
    ranks: RankPool, parts, name: str, dtype: torch.dtype, kind: str, size: int
) -> None:
    width = 6
    row_bytes = (width + (HEADS if name == "attend" else 0)) * dtype.itemsize
    for got in ranks.run(one_operation, size, parts[kind, size], name, width, dtype):
        messages = 2 if name == "attend" else 1  # rows and their scores
        there = (got["sent_rows"] * row_bytes, messages * got["receivers"])
        back = (got["halo_rows"] * row_bytes, messages * got["owners"])
        assert got["forward"] == only(halo_forward=there)
        assert got["backward"] == only(halo_backward=back)
        assert got["plain"] == got["forward"]
        once = FIRST_ROW_BYTES.get(name, 0)
        extra = (got["sent_rows"] * once, got["receivers"] * (once > 0))
        want = (there[0] + extra[0], there[1] + extra[1])
        assert got["first"] == only(halo_forward=want)


def only(**counts: tuple[int, int]) -> Counts:
    """Return these counters and zeros for the others."""
    return dict.fromkeys(("halo_forward", "halo_refetch", "halo_backward"), NOTHING) | counts


@pytest.mark.parametrize(("stages", "kind", "size"), [(4, "gap", 3), (2, "hash", 4), (4, "gap", 4)])
@pytest.mark.parametrize("name", ["sum", "mean", "normalised_sum", "max", "attend"])
def test_stages_send_the_same_bytes_and_attention_half_as_many_again(
    ranks: RankPool, parts, name: str, stages: int, kind: str, size: int
) -> None:
    strategy = Strategy(stages=stages, recompute=True)
    arguments = (parts[kind, size], name, 6, torch.float32, strategy)
    row_bytes = 4 * (6 + (HEADS if name == "attend" else 0))
    for got in ranks.run(one_operation, size, *arguments):
        there, back = got["sent_rows"] * row_bytes, got["halo_rows"] * row_bytes
        assert got["forward"]["halo_forward"][0] == there
        assert got["backward"]["halo_backward"][0] == back
        assert got["backward"]["halo_forward"] == NOTHING
        assert got["backward"]["halo_refetch"][0] == (there if name == "attend" else 0)


def rows_again(world: World, folder: Path, strategy: Strategy) -> dict[str, Any]:
    """Return what an attention counts, and how many rows each stage sends."""
    got = one_operation(world, folder, "attend", 6, torch.float32, strategy)
    reach = BlockNeighbours(open_shard(folder, world), Draws(), strategy).reach
    return got | {"by_stage": [len(block.plan.send_rows) for block in reach.stages]}


@pytest.mark.parametrize("share", [0.3, 1 / 3, 0.5, 2 / 3])
def test_rows_of_the_first_stages_alone_come_again(ranks: RankPool, parts, share: float) -> None:
    strategy = Strategy(stages=4, recompute=share)
    row_bytes = 4 * (6 + HEADS)
    for got in ranks.run(rows_again, 4, parts["hash", 4], strategy):
        again = {0.3: 1, 1 / 3: 1, 0.5: 2, 2 / 3: 2}[share]
        assert len(got["by_stage"]) == 3, "one for each peer"
        assert got["forward"]["halo_forward"][0] == sum(got["by_stage"]) * row_bytes
        assert got["backward"]["halo_refetch"][0] == sum(got["by_stage"][:again]) * row_bytes
        assert got["backward"]["halo_backward"][0] == got["halo_rows"] * row_bytes


def one_step(world: World, folder: Path, spec: ModelSpec) -> dict[str, Any]:
    """Return the halo bytes of each layer's forward, of the whole backward, of evaluation."""
    shard, draws = open_shard(folder, world), Draws()
    neighbours = BlockNeighbours(shard, draws)
    model = GNN(spec)
    with torch.no_grad():
        model(shard.x, neighbours, draws)  # what is fetched once a run
    by_layer: list[Counts] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: by_layer.append(counted(world)))
    counted(world)
    loss = training_loss(model(shard.x, neighbours, draws)[shard.train], shard)
    forward = by_layer[:]
    loss.backward()
    backward = counted(world)
    with torch.no_grad():
        model(shard.x, neighbours, draws)
    return {"forward": forward, "backward": backward, "evaluation": by_layer[2:], **facts(shard)}


def layer_row(name: str, in_width: int, out_width: int, heads: int) -> tuple[int, bool]:
    """Return the width that crosses and whether a layer of constant input has a backward."""
    if name in ("gat", "typed-gat"):
        return out_width * heads + heads, True
    if name in ("gatv2", "transformer"):
        return out_width * heads * (2 if name == "transformer" else 1), True
    if name == "rgcn":  # three bases
        return min(in_width, 3 * out_width), 3 * out_width < in_width
    if name == "sage-max":
        return out_width, True
    return min(in_width, out_width), out_width <= in_width


@pytest.mark.parametrize(("kind", "size", "hidden"), [("hash", 3, 4), ("gap", 4, 10)])
@pytest.mark.parametrize("name", CARDS)
def test_layer_sends_the_narrower_side(
    ranks: RankPool, parts, name: str, hidden: int, kind: str, size: int
) -> None:
    spec = ModelSpec(
        name=name, in_width=6, out_width=3, hidden=hidden, heads=HEADS, dropout=0.0, num_types=3
    )
    attends = name in ("gat", "gatv2", "transformer", "typed-gat")
    first, first_returns = layer_row(name, 6, hidden // HEADS if attends else hidden, HEADS)
    second, _ = layer_row(name, hidden, 3, 1)
    for got in ranks.run(one_step, size, parts[kind, size], spec):
        sent = [layer["halo_forward"][0] for layer in got["forward"]]
        assert sent == [4 * got["sent_rows"] * first, 4 * got["sent_rows"] * second]
        assert all(layer["halo_backward"] == NOTHING for layer in got["forward"])
        # A first layer that aggregates its constant input before mapping has no gradient to send.
        widths = second + (first if first_returns else 0)
        assert got["backward"]["halo_backward"][0] == 4 * got["halo_rows"] * widths
        assert got["backward"]["halo_forward"] == got["backward"]["halo_refetch"] == NOTHING
        assert got["evaluation"] == got["forward"]


def test_rows_sent_are_rows_received(ranks: RankPool, parts) -> None:
    for kind, size in WORLDS:
        got = ranks.run(one_operation, size, parts[kind, size], "sum", 2, torch.float32)
        assert sum(part["sent_rows"] for part in got) == sum(part["halo_rows"] for part in got) > 0

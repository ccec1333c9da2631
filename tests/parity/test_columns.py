"""By columns a step equals one process too, at any number of ranks, columns and heads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from siafu.comm import Turn, World
from siafu.errors import PlanError
from siafu.nn import CARDS, Draws, Dropout, cards_that
from siafu.ops import Gat
from siafu.shard import open_shard
from siafu.strategy import Strategy, neighbours_of, parallelize
from tests.harness import RankPool
from tests.parity.steps import assert_same, distributed_steps, single_steps
from tests.parity.test_models import EXACT, OPTIONS, spec_of

COLUMNS = Strategy(by_columns=True)
COUNTED = {"column_forward", "column_backward"}


@pytest.mark.parametrize(("kind", "size"), [("hash", 1), ("hash", 2), ("metis", 3), ("gap", 4)])
@pytest.mark.parametrize("model", CARDS)
def test_columns_change_nothing(ranks: RankPool, parts_of, model, kind, size) -> None:
    # 6 and 8 columns, 2 heads and then 1, 3 classes: more ranks than heads, and than columns.
    spec = spec_of(model, "plain")
    want = single_steps(parts_of("hash", 1, True), spec)
    got = ranks.run(distributed_steps, size, parts_of(kind, size, True), spec, COLUMNS)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "plain"])
@pytest.mark.parametrize("model", ["gcn", "sage-max", "gat"])
def test_what_is_between_aggregations_changes_nothing(
    ranks: RankPool, parts_of, model, option
) -> None:
    spec = spec_of(model, option)
    want = single_steps(parts_of("hash", 1, True), spec)
    got = ranks.run(distributed_steps, 3, parts_of("hash", 3, True), spec, COLUMNS)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize("heads", [5, 6])
@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer"])
def test_heads_are_dropped_by_the_same_draws(ranks: RankPool, parts_of, model, heads) -> None:
    # Slices of heads begin in the middle of a block of four draws.
    spec = replace(spec_of(model, "plain"), heads=heads, hidden=2 * heads, edge_width=2)
    want = single_steps(parts_of("hash", 1, True), spec)
    got = ranks.run(distributed_steps, 4, parts_of("hash", 4, True), spec, COLUMNS)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(("kind", "size"), [("hash", 3), ("gap", 4)])
@pytest.mark.parametrize("model", CARDS)
def test_pruned_columns_change_nothing(ranks: RankPool, parts_of, model, kind, size) -> None:
    spec = spec_of(model, "layer-jk-cat")
    want = single_steps(parts_of("hash", 1, True), spec)
    strategy = Strategy(by_columns=True, prune=True)
    got = ranks.run(distributed_steps, size, parts_of(kind, size, True), spec, strategy)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(
    "model", [*cards_that(lambda card: card.input_aggregation is not None), "rgcn"]
)
def test_cached_input_changes_nothing(ranks: RankPool, parts_of, model) -> None:
    spec = replace(spec_of(model, "plain"), input_dropout=0.0)
    want = single_steps(parts_of("hash", 1, True), spec)
    strategy = Strategy(by_columns=True, input_cache=True)
    got = ranks.run(distributed_steps, 3, parts_of("hash", 3, True), spec, strategy)
    assert_same(got, want, **EXACT)


def one_operation(world: World, parts: Path, name: str, width: int) -> dict[str, Any]:
    """Return what one aggregation sends, forward and backward, and this rank's rows."""
    shard, draws = open_shard(parts, world), Draws()
    neighbours = neighbours_of(shard, draws, COLUMNS)
    x = torch.ones(shard.num_owned, width, requires_grad=True)
    world.meter.bytes_sent.clear()
    if name == "attend":
        z = x.unflatten(1, (3, -1))
        score = z.sum(-1)
        out = neighbours.attend(Gat(slope=0.2), (z, score), (score,), dropout=Dropout(0.0, 0))
    else:
        out = getattr(neighbours, name)(x)
    forward = dict(world.meter.bytes_sent)
    world.meter.bytes_sent.clear()
    out.sum().backward()
    return {"forward": forward, "backward": dict(world.meter.bytes_sent), "rows": shard.num_owned}


@pytest.mark.parametrize(("kind", "size"), [("hash", 2), ("hash", 3), ("gap", 4)])
@pytest.mark.parametrize(
    ("name", "width"), [("sum", 6), ("normalised_sum", 1), ("max", 7), ("attend", 6)]
)
def test_bytes_are_those_of_the_formula(ranks: RankPool, parts_of, name, width, kind, size) -> None:
    got = ranks.run(one_operation, size, parts_of(kind, size, True), name, width)
    rows = tuple(part["rows"] for part in got)
    turn = Turn.even(rows, 3 if name == "attend" else width)
    # Of attention, z and a score on each side go there, z comes back.
    there, back = (width // 3 + 2, width // 3) if name == "attend" else (1, 1)
    for rank, part in enumerate(got):
        sent, returned = turn.columns_sent(rank), turn.columns_returned(rank)
        # A rank without rows or columns may send nothing.
        assert part["forward"].get("column_forward", 0) == 4 * (there * sent + back * returned)
        assert part["backward"].get("column_backward", 0) == 4 * (back * sent + there * returned)
        assert part["forward"].keys() | part["backward"].keys() <= COUNTED
    total = sum(turn.columns_sent(rank) + turn.columns_returned(rank) for rank in range(size))
    assert total == 2 * (sum(rows) * sum(turn.columns)) - 2 * sum(
        n * d for n, d in zip(rows, turn.columns, strict=True)
    )


@pytest.mark.parametrize("size", [1, 3])
def test_what_reads_whole_rows_is_refused_by_name(ranks: RankPool, parts_of, size) -> None:
    parts = parts_of("hash", size, True)
    assert all(ranks.run(refused_model, size, parts))
    if size > 1:
        assert all(ranks.run(refused_message, size, parts))


def refused_message(world: World, parts: Path) -> bool:
    shard = open_shard(parts, world)
    neighbours = neighbours_of(shard, Draws(), COLUMNS)
    with pytest.raises(PlanError, match=r"reads whole rows"):
        neighbours.reduce(lambda x_j: x_j, torch.ones(shard.num_owned, 2))
    return True


def refused_model(world: World, parts: Path) -> bool:
    with pytest.raises(PlanError, match=r"by columns no rank has them"):
        parallelize(nn.Linear(2, 2), open_shard(parts, world), "columns")
    return True

"""Predicted memory, and the strategy that a budget leads to."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine.networks.network import model_spec
from siafu.errors import ConfigError, PlanError
from siafu.ingest import load
from siafu.nn import CARDS, Draws, ModelSpec
from siafu.options import read_bytes
from siafu.partitioning import partition_graph
from siafu.plan import Sizes, choice, choose_strategy, measure_sizes, predict_bytes
from siafu.plan.bytes import full_graph_traffic
from siafu.plan.memory import KEPT, least_offload, predict_kinds
from siafu.shard import open_shard
from siafu.strategy import IN_HAND, BlockNeighbours, Strategy, group_rounds, smallest_piece
from tests.harness import RankPool


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root, folders = tmp_path_factory.mktemp("plan"), {}
    for size in (1, 2, 4):
        folders[size] = root / f"{size}.parts"
        partition_graph(load("planted:500"), folders[size], num_parts=size, method="hash")
    return folders


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("4GB", 4 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("2000000", 2_000_000),
        (" 2 kib ", 2048),
        ("1T", 10**12),
        ("7B", 7),
    ],
)
def test_bytes_are_read(text: str, want: int) -> None:
    assert read_bytes(text) == want


@pytest.mark.parametrize("text", ["", "much", "4 parsecs", "-1GB", "1.2.3GB", ".", "GB", "4GBs"])
def test_bytes_that_can_not_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="memory budget can't be read") as caught:
        read_bytes(text)
    assert caught.value.seen == text
    assert "4GB" in caught.value.fix


NUMBERED = ("sage-max", "rgcn", "typed-gat")
"""Models that read edges by number: a place per column is held for every stage."""


def needed(model: str, sizes: Sizes, strategy: Strategy) -> int:
    """Return the prediction without those places, 4 bytes each, which do not fall."""
    places = (sizes.stages + 1) * (sizes.rows + sizes.read) if model in NUMBERED else 0
    return predict_bytes(spec_of(model), sizes, strategy) - 4 * places


def even_sizes(ranks: int, stages: int, *, rows: int = 1_000_000, degree: int = 10) -> Sizes:
    """Return what a rank holds where every rank reads half of each other's rows."""
    owned = rows // ranks
    table = [[0 if p == q else owned // 2 for q in range(ranks)] for p in range(ranks)]
    groups = group_rounds(table, stages, smallest_piece([owned] * ranks))
    tall = [sum(owned / 2 / share.of for share in group) for group in groups]
    read = (ranks - 1) * (owned // 2)
    largest = round(max(tall, default=0))
    return Sizes(owned, owned * degree, read, read, largest, len(groups))


def spec_of(model: str) -> ModelSpec:
    return ModelSpec(name=model, in_width=100, out_width=10, hidden=64, num_types=3)


@pytest.mark.parametrize("model", CARDS)
def test_prediction_falls_with_more_stages(model: str) -> None:
    ranks = 16
    strategy = Strategy(recompute=True)
    needs = [
        needed(model, even_sizes(ranks, stages), replace(strategy, stages=stages))
        for stages in (1, 5, 8, 15)
    ]
    assert needs == sorted(needs, reverse=True)
    assert needs[-1] < 0.8 * needs[0]


@pytest.mark.parametrize("strategy", [Strategy(), Strategy(stages=1000, recompute=True)])
@pytest.mark.parametrize("model", CARDS)
def test_prediction_falls_with_more_ranks(model: str, strategy: Strategy) -> None:
    needs = [
        needed(model, even_sizes(ranks, strategy.stages_of(ranks)), strategy)
        for ranks in (2, 4, 8, 16, 32)
    ]
    assert needs == sorted(needs, reverse=True)
    if strategy.stages != 1:  # a rank then holds little but its own rows
        assert needs[-1] < needs[0] / 8


@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer", "rgcn"])
def test_prediction_falls_when_rows_are_not_kept(model: str) -> None:
    spec, sizes = spec_of(model), even_sizes(8, 8)
    kept, fetched = (Strategy(stages=8, recompute=recompute) for recompute in (False, True))
    assert predict_bytes(spec, sizes, fetched) < predict_bytes(spec, sizes, kept)


def test_rows_kept_of_more_stages_take_more_and_send_less() -> None:
    spec, sizes = spec_of("gat"), even_sizes(9, 8)
    strategies = [Strategy(stages=8, recompute=share) for share in (1, 0.75, 0.5, 0.25)]
    needs = [predict_bytes(spec, sizes, strategy) for strategy in strategies]
    steps = [after - before for before, after in pairwise(needs)]
    assert min(steps) == max(steps) > 0
    sent = [full_graph_traffic(spec, 1000, 9, strategy) for strategy in strategies]
    again = [sum(layer.again for layer in traffic.layers) for traffic in sent]
    first = sum(layer.forward for layer in sent[0].layers)
    assert again == [first, first * 3 // 4, first // 2, first // 4]


def sizes_and_stages(world: World, parts: Path, stages: int) -> tuple[Sizes, list[int], int]:
    """Return the measured sizes, the rows of each real stage, and the halo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siafu.strategy.blocks._SMALLEST_PIECE", 20)
        shard = open_shard(parts, world)
        sizes = measure_sizes(shard, [stages])[0]
        reach = BlockNeighbours(shard, Draws(seed=0), Strategy(stages=stages)).reach
        return sizes, [block.csr.num_cols for block in reach.stages], shard.num_halo


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_measured_sizes_are_those_of_the_real_stages(ranks: RankPool, parts, stages: int) -> None:
    got = ranks.run(sizes_and_stages, 4, parts[4], stages)
    largest = max(rows for _, stage_rows, _ in got for rows in stage_rows)
    for sizes, stage_rows, halo in got:
        assert sizes.stages == len(stage_rows)
        assert sizes.read == halo
        assert largest - 1 <= sizes.largest_stage <= 1.2 * largest + 1


def choices(world: World, parts: Path, budgets: list[int], base: int, settings: dict) -> list[Any]:
    """Return the strategy for each budget, or the error's texts; `base` is in use before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siafu.plan.choice.memory_in_use", lambda world: base)
        patch.setattr("siafu.plan.choice.RUNTIME_BYTES", 0)
        # As on a large graph, where a peer's rows come in pieces.
        patch.setattr("siafu.strategy.blocks._SMALLEST_PIECE", 20)
        shard, found = open_shard(parts, world), []
        for budget in budgets:
            config = make_config(data="planted", ranks=world.size, memory=f"{budget}B", **settings)
            config = config.resolved()
            try:
                found.append(choose_strategy(config, model_spec(config, shard), shard))
            except PlanError as error:
                found.append((error.problem, error.seen, error.fix))
    return found


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_smaller_budgets_take_more_stages_until_none_fits(ranks: RankPool, parts, model) -> None:
    budgets = [int(2e7 * 0.95**n) for n in range(100)]
    settings = {"model": model, "hidden": 256, "layers": 3}
    by_rank = ranks.run(choices, 4, parts[4], budgets, 0, settings)
    assert all(got == by_rank[0] for got in by_rank), "ranks choose alike"
    found = [got for got in by_rank[0] if isinstance(got, Strategy)]
    assert found == by_rank[0][: len(found)], "what fits a budget fits a larger one"
    assert (found[0].stages, found[0].recompute) == (1, False)
    stages = [strategy.stages for strategy in found]
    assert stages == sorted(stages)
    assert stages[-1] > 1
    assert len(found) < len(budgets)


def test_budgets_in_between_keep_rows_of_some_stages(ranks: RankPool, parts) -> None:
    budgets = [int(2e7 * 0.97**n) for n in range(100)]
    settings = {"model": "gat", "hidden": 256, "layers": 3, "stages": "4"}
    by_rank = ranks.run(choices, 4, parts[4], budgets, 0, settings)
    assert all(got == by_rank[0] for got in by_rank), "ranks choose alike"
    found = [got.recompute for got in by_rank[0] if isinstance(got, Strategy)]
    assert found == sorted(found), "less memory, more rows that come again"
    assert (found[0], found[-1]) == (False, True)
    assert len(set(found)) > 3
    assert len(found) < len(budgets)


@pytest.mark.parametrize("base", [0, 123_456_789, 5 * 10**9 + 7])
def test_budget_that_is_too_small_names_one_that_works(ranks: RankPool, parts, base: int) -> None:
    (told, *_) = ranks.run(choices, 2, parts[2], [base + 10], base, {"model": "gat"})[0]
    problem, seen, fix = told
    assert "budget is too small" in problem
    assert f"--memory {base + 10}" in seen
    budget = re.search(r"--memory ([0-9.]+ ?[KMGT]?i?B)", fix)
    assert budget is not None, fix
    again = ranks.run(choices, 2, parts[2], [read_bytes(budget[1])], base, {"model": "gat"})
    assert isinstance(again[0][0], Strategy)


def test_recompute_that_is_asked_for_is_kept(ranks: RankPool, parts) -> None:
    for recompute in (True, 0.5, False):
        settings = {"model": "gat", "recompute": recompute}
        (got,) = ranks.run(choices, 2, parts[2], [10**9], 0, settings)[0]
        assert got.recompute == recompute


def test_what_a_rank_is_predicted_to_need_is_said(parts, monkeypatch) -> None:
    monkeypatch.setattr("siafu.plan.choice.memory_in_use", lambda world: 3 * 10**9)
    config = make_config(data="planted", memory="4GB").resolved()
    shard = open_shard(parts[1], World())
    spec, said = model_spec(config, shard), []
    strategy = choose_strategy(config, spec, shard, say=said.append)
    need = 3.12e9 + predict_bytes(spec, measure_sizes(shard, [1])[0], strategy)
    (line,) = said
    assert "1 stage:" in line
    assert f"{need / 1e9:.2f} GB at its peak, of --memory 4GB" in line
    choose_strategy(make_config(data="planted").resolved(), spec, shard, say=said.append)
    assert len(said) == 1, "without a budget nothing is predicted"


def test_auto_needs_a_budget(parts) -> None:
    config = make_config(data="planted", stages="auto").resolved()
    shard = open_shard(parts[1], World())
    with pytest.raises(ConfigError, match="can't be chosen") as caught:
        choose_strategy(config, model_spec(config, shard), shard)
    assert "memory budget" in caught.value.seen
    assert "--memory" in caught.value.fix
    assert "--stages" in caught.value.fix


def test_auto_needs_a_known_model(parts) -> None:
    config = make_config(data="planted", memory="4GB", model="mine.py:Net").resolved()
    with pytest.raises(ConfigError, match="model of your own") as caught:
        choose_strategy(config, None, open_shard(parts[1], World()))
    assert "--stages" in caught.value.fix


@pytest.mark.parametrize("stages", ["many", "1.5", "", "0", "-1"])
def test_stages_that_can_not_be_used(stages: str) -> None:
    with pytest.raises(ConfigError, match="number of stages") as caught:
        _ = make_config(data="planted", stages=stages).chosen
    assert caught.value.seen == f"stages={stages}"
    assert "auto" in caught.value.fix


def test_names_and_choices_make_a_strategy() -> None:
    assert make_config(data="planted").chosen == Strategy()
    sar = make_config(data="planted", strategy="sar").chosen
    assert sar.recompute
    assert sar.stages_of(6) == 6
    settings = {"strategy": "sar", "stages": "2", "recompute": False, "prune": True}
    changed = make_config(data="planted", **settings).chosen
    assert changed == Strategy(stages=2, prune=True)
    assert make_config(data="planted", memory="4GB").chosen.stages == "auto"


@pytest.mark.parametrize("model", CARDS)
def test_rows_in_the_hosts_memory_are_as_few_as_the_room_asks_for(model: str) -> None:
    sizes, spec = even_sizes(1, 1), replace(spec_of(model), layers=6)
    whole = predict_bytes(spec, sizes, Strategy())
    for share in (1.0, 0.9, 0.8):
        found = least_offload(spec, sizes, Strategy(), share * whole)
        assert found is not None
        assert predict_bytes(spec, sizes, found) <= share * whole
        assert bool(found.offload) is (share < 1)
    assert least_offload(spec, sizes, Strategy(), 0.01 * whole) is None
    most = predict_kinds(spec, sizes, Strategy(offload=1 << 60))
    kept = predict_kinds(spec, sizes, Strategy())
    assert 0 < most[KEPT] < kept[KEPT], "what is in hand stays"
    hand = IN_HAND * sizes.rows * spec.hidden * Strategy().item_bytes
    few = predict_kinds(spec, sizes, Strategy(offload=hand))
    assert few == kept, "the last that leave are not gone before backward brings them back"


def test_no_more_rows_leave_than_there_are() -> None:
    spec, sizes = replace(spec_of("sage"), layers=6), even_sizes(2, 1)
    plain, all_away = Strategy(unit="column"), Strategy(unit="column", offload=1 << 60)
    assert predict_bytes(spec, sizes, all_away) < predict_bytes(spec, sizes, plain)
    with pytest.raises(ConfigError, match="No rows"):
        _ = make_config(data="planted", offload="0").chosen


def chosen_with_room(world: World, folder: Path, shares: list[float], **more: Any) -> list[Any]:
    """Return what is chosen where a GPU has so many times the room that a step needs."""
    config = make_config(data="planted", ranks=world.size, model="sage", layers=6, **more)
    config, shard, found = config.resolved(), open_shard(folder, world), []
    spec = model_spec(config, shard)
    need = predict_bytes(spec, measure_sizes(shard, [1])[0], Strategy())
    worst = max(row[0] for row in world.gather_numbers([float(need)]))
    may, there = choice._may_offload, choice.device_bytes
    choice._may_offload = lambda strategy, world: strategy.unit == "graph"
    try:
        for share in shares:
            room = round(share * worst * world.size)  # which all ranks share
            choice.device_bytes = lambda device, room=room: room
            said: list[str] = []
            strategy = choose_strategy(config, spec, shard, say=said.append)
            fits = predict_bytes(spec, measure_sizes(shard, [1])[0], strategy)
            found.append((strategy, said, fits <= room / world.size))
    finally:
        choice._may_offload, choice.device_bytes = may, there
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_leave_a_gpu_that_is_too_small_alike_on_all_ranks(
    ranks: RankPool, parts: dict[int, Path], size: int
) -> None:
    told = ranks.run(chosen_with_room, size, parts[size], [1.01, 0.9, 0.01])
    for enough, short, hopeless in told:
        assert enough[0] == hopeless[0] == Strategy()
        assert not enough[1]
        assert short[0].offload > 0
        assert short[0].choices(size)["offload"] == short[0].offload
        assert short[2]
        assert "host's memory until backward" in short[1][0]
    assert len({one[1][0] for one in told}) == 1


def test_rows_of_a_cpu_do_not_leave(parts: dict[int, Path]) -> None:
    config = make_config(data="planted", offload="1GB").resolved()
    shard = open_shard(parts[1], World())
    with pytest.raises(ConfigError, match="host's memory already"):
        choose_strategy(config, model_spec(config, shard), shard)
    with pytest.raises(ConfigError, match="can't be read"):
        _ = make_config(data="planted", offload="much").chosen

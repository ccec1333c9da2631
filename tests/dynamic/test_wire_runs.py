"""Whole runs whose rows along time are rounded: close to exact ones, repeatable, reported."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from siafu.comm import World
from siafu.engine.dynamic.network import exchange_costs
from siafu.nn import NodeLSTM
from siafu.partitioning import plan_time
from siafu.plan import TYPICAL, Link
from siafu.strategy.time.cost import Costs, choose_exchange
from tests.command import Command
from tests.dynamic.runs import run_engine
from tests.harness import RankPool

SETTINGS = {"epochs": 9, "checkpoint_every": 3, "hidden": 16, "bandwidth": 4, "seed": 2}
SETTINGS |= {"task": "node", "time_exchange": "all-to-all", "time_block": 4, "eval_every": 3}


@pytest.mark.parametrize(
    ("model", "exchange"),
    [("tm-gcn", "all-to-all"), ("tm-gcn", "banded"), ("wd-gcn", "all-to-all")],
)
def test_losses_stay_close_to_exact_ones(
    ranks: RankPool, store: Path, tmp_path: Path, model: str, exchange: str
) -> None:
    settings = {**SETTINGS, "model": model, "time_exchange": exchange}
    exact, whole, eight, two = (
        ranks.run(run_engine, 3, store, tmp_path / str(wire), False, {**settings, "wire": wire})[0]
        for wire in (None, 32, 8, 2)
    )
    assert whole["result"]["losses"] == exact["result"]["losses"], "bit for bit"
    assert exact["result"]["exactness"] == "exact"
    assert exact["result"]["choices"]["rounded"] == []
    losses = torch.tensor([run["result"]["losses"] for run in (exact, eight, two)])
    gap = (losses - losses[0]).abs().amax(dim=1) / losses[0].min()
    assert 0 < gap[1] < 0.01, "8 bits"
    assert gap[1] < gap[2] < 0.2, "2 bits"
    result = two["result"]
    assert result["exactness"] == "unbiased"
    assert result["choices"]["wire"] == 2
    number = 2 if model == "tm-gcn" else 1
    assert result["choices"]["rounded"][0].startswith(f"part {number} ")
    sent = [run["result"]["bytes_sent"]["time_forward"] for run in (exact, two)]
    assert sent[1] < 0.5 * sent[0], "12 bytes a row instead of 64, but for evaluation"


@pytest.mark.parametrize(
    ("wire", "period"), [({"wire": 2}, None), ({"wire": "adaptive", "wire_bits": 3}, 3)]
)
def test_resumed_rounded_run_ends_bit_for_bit_alike(
    ranks: RankPool, store: Path, tmp_path: Path, wire: dict, period: int | None
) -> None:
    """It stops after epoch 6, with widths assigned that are not in use yet."""
    settings = {**SETTINGS, **wire, "model": "gcrn", "wire_period": period}
    straight = ranks.run(run_engine, 3, store, tmp_path / "straight", False, settings)[0]
    short = {**settings, "epochs": 6}
    ranks.run(run_engine, 3, store, tmp_path / "broken", False, short)
    resumed = ranks.run(run_engine, 3, store, tmp_path / "broken", True, settings)[0]
    assert resumed["result"]["losses"] == straight["result"]["losses"]
    for name, tensor in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], tensor), name
    widths = straight["result"]["widths"]
    if period is None:
        assert widths == []
        return
    assert {entry["epoch"] for entry in widths} == {6, 9}
    assert [e for e in widths if e["epoch"] == 9] == resumed["result"]["widths"]
    late = [entry["rows"] for entry in widths if entry["epoch"] == 9]
    rows = {bits: sum(entry[bits] for entry in late) for bits in "248"}
    mean = sum(int(bits) * count for bits, count in rows.items()) / sum(rows.values())
    assert 2.7 < mean <= 3.0  # every row has 16 columns, so bits are bytes
    # All rows of the training blocks, on both ways of both layers, but one's own.
    assert sum(rows.values()) == sum(late[0].values()) * 8
    assert straight["result"]["bytes_sent"]["control"] > 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--model", "evolvegcn-o", "--wire", "8"), "only summaries"),
        (("--model", "evolvegcn-h", "--wire", "8"), "only summaries"),
        (("--model", "gcrn", "--wire", "8", "--time-exchange", "wavefront"), "handed on whole"),
        (("--model", "gcrn", "--wire", "8", "--hidden", 8), "travel whole"),
        (("--model", "gcrn", "--wire", "3"), "Unknown wire width"),
        (("--model", "gcrn", "--wire", "8", "--wire-bits", "4"), "all rows have one width"),
    ],
)
def test_rounding_that_would_do_nothing_is_refused(command: Command, arguments, problem) -> None:
    answer = command("train", "drifting", *arguments, "--epochs", 1)
    assert answer.code == 2
    assert problem in answer.err
    left = [run for run in command.here.glob("runs/*") if not (run / "data.parts").exists()]
    assert not left, "nothing is left behind but data that was prepared"


def test_one_rank_has_nothing_to_round_and_says_so(command: Command) -> None:
    answer = command("train", "drifting", "--model", "gcrn", "--wire", "4", "--epochs", 1)
    assert answer.code == 0, answer
    assert "nothing quantised" in answer.out


def test_narrow_rows_change_which_exchange_is_cheapest() -> None:
    """Handing states on takes fewer bytes, but ranks wait for each other."""
    part, plan = NodeLSTM(16, 16), plan_time([1] * 8, 4, train_steps=8)
    assert choose_exchange(part, plan, 20_000, 16) == "wavefront"
    assert choose_exchange(part, plan, 20_000, 16, 2) == "all-to-all"


def test_costs_decide_which_exchange_is_cheapest() -> None:
    part, plan = NodeLSTM(16, 16), plan_time([1] * 8, 4, train_steps=8)
    found = [choose_exchange(part, plan, 20_000, 16, costs=Costs(byte=b)) for b in (1e-7, 1e-12)]
    assert found == ["wavefront", "all-to-all"]


def costs_of(world: World) -> Costs:
    """Return what a rank counts with whose machine has a link of its own."""
    link = Link(bytes_per_second=1e9 * (1 + world.rank), latency_seconds=1e-5 * world.rank)
    here = TYPICAL.model_copy(update={"link": link})
    with patch("siafu.engine.dynamic.network.kept_machine", return_value=here):
        return exchange_costs(world, 16)


def test_all_ranks_count_with_the_slowest_ones_costs(ranks: RankPool) -> None:
    found = ranks.run(costs_of, 3)
    assert found == [found[0]] * 3
    assert (found[0].byte, found[0].message) == (1e-9, 2e-5)

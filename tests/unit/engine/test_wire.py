"""Quantised runs of the engine, together with other choices."""

from pathlib import Path

import pytest

from siafu.ingest import load
from siafu.partitioning import open_parts, partition_graph
from tests.harness import RankPool
from tests.unit.engine.runs import run_engine


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wire") / "2.parts"
    partition_graph(load("planted:300"), folder, num_parts=2, method="hash")
    return folder


def test_cached_input_is_not_rounded(ranks: RankPool, parts: Path, tmp_path: Path) -> None:
    settings = {"epochs": 3, "layers": 1, "input_cache": True, "input_dropout": 0.0}
    losses = [
        ranks.run(run_engine, 2, parts, tmp_path / str(wire), False, {**settings, "wire": wire})[0][
            "losses"
        ]
        for wire in (32, 2)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("prune", [False, True])
def test_layers_share_one_budget(ranks: RankPool, parts: Path, tmp_path: Path, prune: bool) -> None:
    settings = {"epochs": 8, "layers": 4, "hidden": 32, "prune": prune, "wire_period": 3}
    settings |= {"strategy": "adaqp", "wire_bits": 3.0}
    summary = ranks.run(run_engine, 2, parts, tmp_path / "run", False, settings)[0]["summary"]
    assert {entry["epoch"] for entry in summary["widths"]} == {6}
    places = [(entry["exchange"], entry["direction"]) for entry in summary["widths"]]
    assert places == [(number, way) for number in range(3) for way in ("there", "back")]
    rows = {bits: sum(entry["rows"][bits] for entry in summary["widths"]) for bits in "248"}
    mean = sum(int(bits) * count for bits, count in rows.items()) / sum(rows.values())
    assert 2.9 < mean <= 3.0  # every row has 32 columns, so bits are bytes
    mixes = {tuple(entry["rows"].values()) for entry in summary["widths"]}
    assert len(mixes) > 1
    assert summary["bytes_sent"]["control"] > 0


@pytest.mark.parametrize("bits", [32, 16])
def test_rows_kept_for_changes_are_told(
    ranks: RankPool, parts: Path, tmp_path: Path, bits: int
) -> None:
    settings = {"epochs": 2, "layers": 3, "hidden": 32, "wire": 4, "changes": True, "model": "sage"}
    settings["kept_bits"] = bits
    summary = ranks.run(run_engine, 2, parts, tmp_path / "run", False, settings)[0]["summary"]
    halo = sum(open_parts(parts).facts["quality"]["halo_rows"])
    there = [entry for entry in summary["kept"] if entry["direction"] == "there"]
    assert [entry["exchange"] for entry in there] == list(range(len(there)))
    assert [entry["name"] for entry in there] == [f"layer {n + 1}" for n in range(len(there))]
    assert [entry["rows"] for entry in there] == [2 * halo] * len(there), "at both ends"
    assert there[-1]["bytes"] == 2 * halo * 32 * bits // 8


def test_a_default_run_of_rounded_rows_saves_what_it_promises(
    ranks: RankPool, parts: Path, tmp_path: Path
) -> None:
    settings = {"epochs": 30, "model": "sage", "layers": 3, "hidden": 64}
    whole, rounded = (
        ranks.run(run_engine, 2, parts, tmp_path / name, False, {**settings, "strategy": name})[0][
            "summary"
        ]
        for name in ("halo", "adaqp")
    )
    halo = [sum(v for k, v in r["bytes_sent"].items() if "halo" in k) for r in (whole, rounded)]
    assert halo[0] > 4 * halo[1], "evaluation in every epoch would leave 2.3 x"
    assert [r["evaluation"]["passes"] for r in (whole, rounded)] == [30, 3]
    assert 0 < rounded["evaluation"]["bytes_sent"] < 0.2 * whole["evaluation"]["bytes_sent"]
    assert {entry["epoch"] for entry in rounded["widths"]} == {8}, "long before 50 epochs"


def test_the_last_epoch_of_rounded_rows_is_evaluated(
    ranks: RankPool, parts: Path, tmp_path: Path
) -> None:
    settings = {"epochs": 4, "strategy": "adaqp"}
    summary = ranks.run(run_engine, 2, parts, tmp_path / "run", False, settings)[0]["summary"]
    assert summary["best_epoch"] == 4
    assert summary["evaluation"]["passes"] == 1
    assert summary["evaluation"]["seconds"] > 0


@pytest.mark.parametrize("choice", [{"wire": 4, "changes": True}, {"staleness": 1}])
def test_scores_leave_what_is_kept_alone(
    ranks: RankPool, parts: Path, tmp_path: Path, choice: dict
) -> None:
    settings = {"epochs": 6, "model": "sage", "hidden": 16, "dropout": 0.2, **choice}
    often, once = (
        ranks.run(run_engine, 2, parts, tmp_path / str(n), False, {**settings, "eval_every": n})[0]
        for n in (1, 6)
    )
    assert often["losses"] == once["losses"]

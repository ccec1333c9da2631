"""`--strategy auto`: chosen once, told in one line, noted in the run, and exact."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.config import make_config, read_run_config
from siafu.ingest import load
from siafu.launch import resume_run, start_run
from siafu.launch.automatic import choose, with_chosen_strategy
from siafu.launch.checks import with_strategy
from siafu.partitioning import partition_graph
from siafu.plan import Link


@dataclass
class Choice:
    """As much of a forecast as is compared."""

    name: str
    seconds: float
    memory_bytes: int = 1
    budget: int = 10
    exactness: str = "exact"

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.budget


@pytest.mark.parametrize(
    ("choices", "want"),
    [
        ([Choice("halo", 1.0), Choice("columns", 0.95)], "halo"),
        ([Choice("halo", 1.0), Choice("columns", 0.5)], "columns"),
        ([Choice("halo", 1.0), Choice("columns", 0.5, 10)], "halo"),  # too close to the budget
        ([Choice("halo", 1.0, 11), Choice("sar", 1.4, 10)], "sar"),
        ([Choice("halo", 1.0, 13), Choice("columns", 1.0, 11), Choice("sar", 2.0, 12)], "sar"),
        ([Choice("halo", 1.0), Choice("adaqp", 0.5, exactness="unbiased")], "adaqp"),
        ([Choice("halo", 1.0), Choice("batchgnn", 0.1, exactness="sampled")], "halo"),
        ([Choice("halo", 1.0, 11), Choice("batchgnn", 3.0, exactness="sampled")], "batchgnn"),
    ],
)
def test_the_usual_is_taken_unless_another_is_clearly_faster(choices: list[Any], want: str) -> None:
    assert choose(choices).name == want


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ({}, "auto"),
        ({"wire": "8"}, "auto"),
        ({"stages": "2"}, "auto"),
        ({"staleness": 1}, "auto"),
        ({"memory": "1GB", "model": "net.py:Net"}, "auto"),  # loss is not what was asked for
        ({"smoothing": 0.5}, "auto"),  # means nothing anywhere: refused later
        ({"wire_bits": 3.0}, "adaqp"),
        ({"changes": True}, "adaqp"),
        ({"macrobatch": "4"}, "batchgnn"),
        ({"fanout": "5,5", "batch_size": 10}, "batchgnn"),
        ({"staleness": 2}, "dorylus"),
        ({"pool": "none"}, "dorylus"),
        ({"fanout": "5,5", "pool": "none"}, "auto"),
    ],
)
def test_settings_of_one_strategy_take_it(asked: dict[str, Any], want: str) -> None:
    said: list[str] = []
    found = with_strategy("planted", make_config(data="planted", **asked), said.append)
    assert found.strategy == want
    assert len(said) == (want != "auto")
    assert all(f"Strategy: {want}, which --" in line for line in said)
    if want == "dorylus":
        assert found.device == "cpu"


def test_a_strategy_that_was_named_is_kept_whatever_else_is_asked() -> None:
    config = make_config(data="planted", strategy="halo", fanout="5,5")
    assert with_strategy("planted", config, print) is config


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto") / "parts"
    partition_graph(load("planted:400"), folder, num_parts=2, method="hash")
    return folder


def chosen(parts: Path, **settings: Any) -> tuple[str, str]:
    """Return the strategy, and what was said of it."""
    said: list[str] = []
    config = make_config(data=str(parts), **settings)
    found = with_chosen_strategy(config, parts, said.append)
    assert with_chosen_strategy(found, parts, said.append) is found  # and says nothing more
    assert found.allow == "exact"  # so that the settings of the run start another
    return found.strategy, "".join(said)


def test_choice_is_told_with_its_reason_and_how_to_take_another(parts: Path) -> None:
    name, line = chosen(parts, ranks=2, model="sage")
    assert line.startswith(f"Strategy: {name} (predicted ")
    assert "per epoch" in line
    assert "--strategy NAME takes another" in line


def test_settings_that_others_can_not_take_leave_what_can(parts: Path) -> None:
    name, line = chosen(parts, ranks=2, model="sage", wire="8")
    assert name in ("halo", "sar")
    assert "columns" not in line


def test_one_rank_and_unknown_models_take_the_usual(parts: Path) -> None:
    assert chosen(parts, ranks=1) == ("halo", "")
    name, line = chosen(parts, ranks=2, model="net.py:Net")
    assert name == "halo"
    assert "nothing is predicted of this model" in line


def test_a_forecast_that_fails_keeps_nobody_from_training(parts: Path, monkeypatch) -> None:
    def fail(*given: Any) -> None:
        raise ZeroDivisionError("no edges")

    monkeypatch.setattr("siafu.launch.automatic.foresee", fail)
    lines: list[str] = []
    config = make_config(data="x", ranks=2)
    assert with_chosen_strategy(config, parts, lines.append).strategy == "halo"
    assert "its forecast failed: no edges" in lines[0]


def test_by_columns_takes_columns_and_adaptive_widths_adaqp(parts: Path) -> None:
    assert chosen(parts, ranks=2, model="sage", by_columns=True)[0] == "columns"
    assert chosen(parts, ranks=2, model="sage", wire="adaptive")[0] == "adaqp"


def test_memory_decides_and_sampling_is_taken_only_where_it_is_allowed(parts: Path) -> None:
    tight = {"ranks": 2, "model": "sage", "memory": "1MB"}
    name, line = chosen(parts, **tight)
    assert name == "halo"
    assert "do not fit" in line
    assert "batchgnn" not in line
    assert "batchgnn" in chosen(parts, **tight, allow="sampled")[1]


def test_rounding_is_weighed_where_it_is_allowed_and_wins_over_slow_links(parts: Path) -> None:
    config = make_config(data=str(parts), ranks=2, model="sage", allow="rounded")
    said: list[str] = []
    link = Link(bytes_per_second=1e5, latency_seconds=1e-4)
    found = with_chosen_strategy(config, parts, said.append, link)
    assert (found.strategy, found.resolved().eval_every) == ("adaqp", 10)


@pytest.mark.usefixtures("runs_on_pool")
def test_run_notes_what_was_chosen_and_equals_it(parts: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "gcn", "epochs": 2, "ranks": 2}
    said: list[str] = []
    config = make_config(data=str(parts), out=str(tmp_path / "auto"), **settings)
    run = start_run(config, say=said.append, quiet=True)
    name = run.result["strategy"]
    assert name in ("halo", "columns", "sar")
    assert any(line.startswith(f"Strategy: {name}") for line in said)
    assert read_run_config(tmp_path / "auto" / "config.yaml")["strategy"] == name
    plain = siafu.fit(
        str(parts), strategy=name, out=str(tmp_path / "plain"), quiet=True, **settings
    )
    assert run.result["losses"] == plain.result["losses"]
    again = resume_run(tmp_path / "auto", {"epochs": 3})
    assert again.result["strategy"] == name
    assert again.result["epochs"] == 3


def test_a_link_that_was_measured_counts_and_is_told(parts: Path) -> None:
    config = make_config(data=str(parts), ranks=2, model="sage")
    said: list[str] = []
    for speed in (1e9, 1e4):
        link = Link(bytes_per_second=speed, latency_seconds=1e-4)
        with_chosen_strategy(config, parts, said.append, link)
    found = [re.search(r"predicted ([\d.]+) (m?s)", line) for line in said]
    fast, slow = (float(one[1]) * (1e-3 if one[2] == "ms" else 1) for one in found if one)
    assert slow > 10 * fast
    assert "over 10 kB/s" in said[1]

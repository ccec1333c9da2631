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
from siafu.launch.automatic import _best, with_chosen_strategy
from siafu.partitioning import partition_graph
from siafu.plan import Link


@dataclass
class Choice:
    """As much of a forecast as is compared."""

    name: str
    seconds: float
    memory_bytes: int = 1
    fits: bool = True


@pytest.mark.parametrize(
    ("choices", "want"),
    [
        ([Choice("halo", 1.0), Choice("columns", 0.95)], "halo"),
        ([Choice("halo", 1.0), Choice("columns", 0.5)], "columns"),
        ([Choice("halo", 1.0, fits=False), Choice("sar", 1.4)], "sar"),
        ([Choice("halo", 1.0, 9, fits=False), Choice("sar", 2.0, 5, fits=False)], "sar"),
    ],
)
def test_the_usual_is_taken_unless_another_is_clearly_faster(choices: list[Any], want: str) -> None:
    found = _best(choices)
    assert found is not None
    assert found.name == want


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto") / "parts"
    partition_graph(load("planted:400"), folder, num_parts=2, method="hash")
    return folder


def chosen(parts: Path, **settings: Any) -> tuple[str, str]:
    """Return the strategy, and what was said of it."""
    said: list[str] = []
    config = make_config(data=str(parts), strategy="auto", **settings)
    found = with_chosen_strategy(config, parts, said.append)
    assert with_chosen_strategy(found, parts, said.append) is found  # and says nothing more
    (line,) = said
    return found.strategy, line


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
    assert chosen(parts, ranks=1)[0] == "halo"
    name, line = chosen(parts, ranks=2, model="net.py:Net")
    assert name == "halo"
    assert "not one that predictions are made for" in line


@pytest.mark.usefixtures("runs_on_pool")
def test_run_notes_what_was_chosen_and_equals_it(parts: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "gcn", "epochs": 2, "ranks": 2}
    said: list[str] = []
    config = make_config(data=str(parts), strategy="auto", out=str(tmp_path / "auto"), **settings)
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
    config = make_config(data=str(parts), strategy="auto", ranks=2, model="sage")
    said: list[str] = []
    for speed in (1e9, 1e4):
        link = Link(bytes_per_second=speed, latency_seconds=1e-4)
        with_chosen_strategy(config, parts, said.append, link)
    found = [re.search(r"predicted ([\d.]+) (m?s)", line) for line in said]
    fast, slow = (float(one[1]) * (1e-3 if one[2] == "ms" else 1) for one in found if one)
    assert slow > 10 * fast
    assert "over 10 kB/s" in said[1]

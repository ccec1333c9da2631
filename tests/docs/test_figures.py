"""The figures of the README and of docs/benchmarks.md are those of the committed results."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


README = (ROOT / "README.md").read_text()
EVERY = (ROOT / "docs" / "benchmarks.md").read_text()
FIGURES = README.split("<!-- figures")[1].split("<!-- end of figures")[0]


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|") and "`benchmarks." in line]


def test_figures_and_plots_come_from_the_results() -> None:
    command = [sys.executable, "-m", "benchmarks.table", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_figures_beside_others_say_who_is_ahead() -> None:
    unclear = [
        found
        for text in (EVERY, FIGURES)
        for found in re.findall(
            r"[0-9.]+ x (?!faster|slower|fewer|less|an equal share|its edges|[0-9(])[^|;,]*", text
        )
    ]
    assert not unclear


def test_readme_has_eight_figures_that_are_wins_and_says_where_it_is_behind() -> None:
    assert len(rows(FIGURES)) == 8
    assert all(re.search(r"\*\*[0-9.]+ x (faster|less)\*\*", row) for row in rows(FIGURES))
    assert "Where a peer is ahead" in FIGURES


def test_every_figure_has_the_command_that_measures_it() -> None:
    for row in rows(EVERY) + rows(FIGURES):
        command = re.findall(r"`(benchmarks\.\w+)", row)[-1]
        assert (ROOT / f"{command.replace('.', '/')}.py").exists(), row


def test_numbers_of_the_readme_stand_among_the_figures() -> None:
    prose = README.replace(FIGURES, "")
    told = re.findall(r"\b[\d.,]+ (?:x (?:faster|less)|MB|ms|s)\b", prose)
    assert told
    assert not [number for number in told if number not in EVERY and number not in FIGURES]


def test_simulated_workers_that_share_cores_stand_for_no_latency() -> None:
    assert "ms away" not in README + EVERY
    for line in (ROOT / "benchmarks" / "results" / "pipeline.jsonl").read_text().splitlines():
        rows = json.loads(line)["rows"]
        assert not [row for row in rows if {"workers", "times_zero_latency"} <= row.keys()]

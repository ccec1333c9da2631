"""The README's figures are those of the committed results."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_figures_come_from_the_results() -> None:
    command = [sys.executable, "-m", "benchmarks.table", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_figures_beside_others_say_who_is_ahead() -> None:
    readme = (ROOT / "README.md").read_text()
    figures = readme.split("<!-- figures")[1].split("<!-- end of figures")[0]
    unclear = re.findall(
        r"[0-9.]+ x (?!faster|slower|fewer|an equal share|its edges|[0-9(])[^|;,]*", figures
    )
    assert not unclear


def test_simulated_workers_that_share_cores_stand_for_no_latency() -> None:
    assert "ms away" not in (ROOT / "README.md").read_text()
    for line in (ROOT / "benchmarks" / "results" / "pipeline.jsonl").read_text().splitlines():
        rows = json.loads(line)["rows"]
        assert not [row for row in rows if {"workers", "times_zero_latency"} <= row.keys()]

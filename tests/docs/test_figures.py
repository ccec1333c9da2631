"""The README's figures are those of the committed results."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_figures_come_from_the_results() -> None:
    command = [sys.executable, "-m", "benchmarks.table", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""mypy finds nothing, in strict mode, in the package, the benchmarks and the tests."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600


@pytest.mark.skipif(find_spec("mypy") is None, reason="types: pip install 'siafu[dev]'")
def test_types_are_right() -> None:
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

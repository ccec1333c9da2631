"""The Triton kernels on a machine without CUDA: the same cases in Triton's interpreter."""

import re
from importlib.util import find_spec

import pytest

from tests.unit.ops.interpreter import INTERPRETED, run_cases

SECONDS = 600.0
FEWEST = 200
"""Cases that must have run."""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_triton_kernels_pass_the_same_cases_in_the_interpreter():
    code, said = run_cases(SECONDS)
    assert code == 0, said[-6000:]
    assert int(re.search(r"(\d+) passed", said)[1]) >= FEWEST
    assert "skipped" not in said

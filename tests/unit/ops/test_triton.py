"""The Triton kernels on a machine without CUDA: the same cases in Triton's interpreter."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

AROUND = ("gradcheck", "registered", "awkward", "slices", "gaps", "cuts0", "cuts1", "left_alone")
CASES = " and not ".join(["triton", *AROUND])
"""What is around the kernels is the same for all implementations, and the interpreter is slow."""

FILES = (
    "test_csr_sum.py",
    "test_csr_max.py",
    "test_philox.py",
    "test_attention.py",
    "test_attention_blocks.py",
    "test_attention_weights.py",
    "test_wire.py",
)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is the interpreter")
def test_triton_kernels_pass_the_same_cases_in_the_interpreter():
    # in a process of its own: Triton reads the setting when it is imported
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", CASES, "-p", "no:cacheprovider"]
        + [str(Path(__file__).with_name(name)) for name in FILES],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 105
    assert "skipped" not in run.stdout

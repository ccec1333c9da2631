"""Triton's interpreter in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True in that process. Triton reads the setting when it is imported, so it can't be changed."""

AROUND = (
    "gradcheck",
    "registered",
    "compiled_function",
    "awkward",
    "slices",
    "gaps",
    "cuts0",
    "cuts1",
    "left_alone",
    "below_a_step",
    "least_weights",
    "there_and_back",
)
CASES = " and not ".join(["triton", *AROUND])
"""What is around the kernels, or follows from bytes equal to the reference's, is left out: the
interpreter is slow."""

FILES = (
    "test_csr_sum.py",
    "test_csr_max.py",
    "test_delta.py",
    "test_philox.py",
    "test_rows.py",
    "test_sample.py",
    "test_sampled_subgraphs.py",
    "test_attention.py",
    "test_attention_blocks.py",
    "test_attention_weights.py",
    "test_window.py",
    "test_wire.py",
)


def run_cases(seconds: float) -> tuple[int, str]:
    """Return the exit code of a run of the Triton cases, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", CASES, "-p", "no:cacheprovider"]
        + [str(Path(__file__).with_name(name)) for name in FILES],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout

"""Triton's interpreter in a process of its own, at work beside other tests."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True in that process. Triton reads the setting when it is imported, so it can't be changed."""

AROUND = (
    "gradcheck",
    "registered",
    "awkward",
    "slices",
    "gaps",
    "cuts0",
    "cuts1",
    "left_alone",
    "below_a_step",
    "least_weights",
)
CASES = " and not ".join(["triton", *AROUND])
"""What is around the kernels, or follows from bytes equal to the reference's, is left out: the
interpreter is slow."""

FILES = (
    "test_csr_sum.py",
    "test_csr_max.py",
    "test_philox.py",
    "test_rows.py",
    "test_sample.py",
    "test_sampled_subgraphs.py",
    "test_attention.py",
    "test_attention_blocks.py",
    "test_attention_weights.py",
    "test_wire.py",
)


class Interpreter:
    """A run of the Triton cases, begun when made."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the run
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-k", CASES, "-p", "no:cacheprovider"]
            + [str(Path(__file__).with_name(name)) for name in FILES],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def wait(self, seconds: float) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        code = self._process.wait(seconds)
        self._said.seek(0)
        return code, self._said.read()

    def close(self) -> None:
        """End the run if it goes on."""
        self._process.kill()
        self._process.wait()
        self._said.close()

"""Starting the ranks of a benchmark as processes, and collecting what each measured."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from siafu.comm import STORE_VARIABLE


def run_module(
    module: str,
    size: int,
    job: dict[str, Any],
    *,
    deadline_seconds: float = 1800.0,
    variables: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return what `python -m MODULE --rank JOB` wrote on each of `size` ranks of this machine.

    A rank writes its answer to the file that SIAFU_ANSWER names. All ranks end when one fails.
    """
    with tempfile.TemporaryDirectory(prefix="siafu-bench-") as scratch:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", module, "--rank", json.dumps(job)],
                env={**os.environ, **_environment(rank, size, scratch), **(variables or {})},
                start_new_session=True,
            )
            for rank in range(size)
        ]
        try:
            _wait(ranks, time.monotonic() + deadline_seconds)
        finally:
            for process in ranks:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        answers = [Path(scratch) / f"{rank}.json" for rank in range(size)]
        return [json.loads(answer.read_text()) for answer in answers]


def _wait(ranks: list[subprocess.Popen[bytes]], end: float) -> None:
    while any(process.poll() is None for process in ranks):
        codes = [process.poll() for process in ranks]
        if any(code for code in codes):
            raise RuntimeError(f"a rank failed: exit codes {codes}")
        if time.monotonic() > end:
            raise TimeoutError("the ranks did not end in time")
        time.sleep(0.1)
    if any(process.returncode for process in ranks):
        raise RuntimeError(f"a rank failed: {[process.returncode for process in ranks]}")


def _environment(rank: int, size: int, scratch: str) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        STORE_VARIABLE: f"{scratch}/rendezvous",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "SIAFU_ANSWER": f"{scratch}/{rank}.json",
    }


def answer(row: dict[str, Any]) -> None:
    """Write what this rank measured."""
    Path(os.environ["SIAFU_ANSWER"]).write_text(json.dumps(row))

"""Starting ranks on this machine through torch's elastic process API, and ending them together.

Ranks meet in a file and talk over loopback: no port is fixed, none is open to the network.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.api import PContext, RunProcsResult

from siafu.comm import STORE_VARIABLE
from siafu.errors import RankError, SiafuError

ERRORS_VARIABLE = "SIAFU_ERRORS"
"""Where ranks tell their failures: not the run folder, whose disk may be full."""
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5
"""Time ranks get to end by themselves before they are killed."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """What a failed rank left behind."""

    rank: int
    time: float
    kind: str
    text: str
    traceback: str
    user_error: tuple[str, str, str] | None
    """Problem, seen and fix of an error the user can act on."""


def threads_for(num_ranks: int, asked: int = 0) -> int:
    """Return the threads each of `num_ranks` ranks on this machine should use."""
    return asked or max(1, len(os.sched_getaffinity(0)) // num_ranks)


def run_ranks(
    num_ranks: int, run: Path, job: str, *, threads: int, variables: dict[str, str] | None = None
) -> None:
    """Run `python -m siafu.launch RUN JOB` on every rank; raise the first failure at the end.

    `variables` are added to the ranks' environment.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with own_signals(), tempfile.TemporaryDirectory(prefix="siafu-") as scratch:
        arguments = ("-m", "siafu.launch", str(run), job)
        context = start_processes(
            name="siafu",
            entrypoint=sys.executable,
            args={rank: arguments for rank in range(num_ranks)},
            envs={
                rank: _environment(rank, num_ranks, scratch, threads) | (variables or {})
                for rank in range(num_ranks)
            },
            logs_specs=DefaultLogsSpecs(log_dir=scratch, redirects=Std.NONE, tee=Std.NONE),
        )
        result = _wait(context)
        if result.is_failed():
            raise first_failure(result, Path(scratch))


@contextmanager
def own_signals() -> Iterator[None]:
    """Put back the caller's signal handlers, which torch's process API replaces for good."""
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in before.items():
                signal.signal(name, handler)


def _wait(context: PContext) -> RunProcsResult:
    try:
        while True:
            result = context.wait(timeout=1.0, period=_POLL_SECONDS)
            if result is not None:
                return result
    except SignalException as error:
        context.close(signal.SIGTERM, timeout=_GRACE_SECONDS)
        raise KeyboardInterrupt from error
    except BaseException:
        context.close(signal.SIGKILL)
        raise


def _environment(rank: int, size: int, scratch: str, threads: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        STORE_VARIABLE: f"{scratch}/rendezvous",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "SIAFU_PARENT": str(os.getpid()),
        ERRORS_VARIABLE: scratch,
    }


def first_failure(result: RunProcsResult, errors: Path) -> SiafuError:
    """Return the error that began it: a rank's own before those who only lost a peer."""
    ended = sorted(result.failures.items(), key=lambda item: item[1].timestamp)
    return first_error(read_failures(errors), {rank: end.exitcode for rank, end in ended})


def first_error(failures: list[RankFailure], ended: dict[int, int]) -> SiafuError:
    """Return the error that began it, of what ranks told and of exit codes, the first end first."""
    told = sorted(failures, key=lambda failure: (failure.kind == "CommError", failure.time))
    silent = {
        rank: code
        for rank, code in ended.items()
        if rank not in {failure.rank for failure in told} and code != -signal.SIGTERM
    }
    own = [failure for failure in told if failure.kind != "CommError"]
    if silent and not own:
        return _killed(*next(iter(silent.items())))
    if not told:
        return RankError(
            "The ranks ended.", seen="no rank told why", fix="run again with --ranks 1"
        )
    first = told[0]
    if first.user_error is not None:
        return RankError(first.user_error[0], seen=first.user_error[1], fix=first.user_error[2])
    return RankError(
        f"Rank {first.rank} failed; the others were stopped.",
        seen=f"{first.kind}: {first.text}\n{first.traceback.rstrip()}",
        fix="the traceback above is that rank's own",
    )


def _killed(rank: int, exit_code: int) -> RankError:
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = "memory ran out" if name == "SIGKILL" else "native code crashed"
        return RankError(
            f"Rank {rank} was killed; the others were stopped.",
            seen=f"signal {name}",
            fix=f"if nobody killed it, {hint}: use more ranks or a narrower model, then --resume",
        )
    return RankError(
        f"Rank {rank} ended without a word; the others were stopped.",
        seen=f"exit code {exit_code}",
        fix="run again with --ranks 1 to see its output",
    )


def read_failures(errors: Path) -> list[RankFailure]:
    """Return what failed ranks left behind, each in one file."""
    files = sorted(errors.glob("rank*.json"))
    return [RankFailure(**json.loads(file.read_text())) for file in files]

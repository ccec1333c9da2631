"""Ranks for tests: a pool of real Gloo processes, started once for the whole test run.

They are forks of a process that has loaded what they need: torch, siafu and PyG take each of four
ranks 5 s of a core, and with PyG twice that.
"""

import multiprocessing as mp
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from siafu.comm import World
from siafu.launch.rank import Job, work
from siafu.record import RunFolder

POOL_SIZE = 4
DEADLINE_SECONDS = 90.0
"""Longer than the slowest kernel compiles on a busy machine while the peers wait for that rank."""
PEERS_SECONDS = 15.0
"""After the first rank's error, for those of others to be told too."""


def forking() -> ForkServerContext | SpawnContext:
    """Return what starts processes of tests; the first of them has the one to fork from load.

    Beside a GPU they start anew: what is loaded asks CUDA for devices, which then fails in forks.
    """
    if torch.cuda.is_available():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    return context


class RankPool:
    """Four processes; `run(function, size, *args)` calls it on the first `size` of them."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = forking()
        self._scratch = tempfile.TemporaryDirectory(prefix="siafu-test-")
        self._pipes, self._processes = [], []
        for rank in range(POOL_SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, f"{self._scratch.name}/store", theirs), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
        """Return each rank's result of function(world, *args); a rank's error fails the test."""
        pipes = self._pipes[:size]
        for pipe in pipes:
            pipe.send_bytes(pickle.dumps((function, size, args)))
        found: dict[Any, tuple[bool, Any]] = {}
        patience = 2 * DEADLINE_SECONDS
        while len(found) < size and (ready := wait([p for p in pipes if p not in found], patience)):
            connections = [pipe for pipe in ready if isinstance(pipe, Connection)]
            found |= {pipe: pickle.loads(pipe.recv_bytes()) for pipe in connections}
            # Peers of a rank that failed wait for it until their deadline: the test does not.
            if not all(ok for ok, _ in found.values()):
                patience = PEERS_SECONDS
        answers = [found.get(pipe, (False, "did not answer")) for pipe in pipes]
        errors = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if errors:
            # A rank that failed has left its peers waiting; the next test gets fresh ones.
            self._stop()
            self._start()
        assert not errors, "\n".join(errors)
        return [value for _, value in answers]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps(None))
        for process in self._processes:
            process.join(10)
        self._stop()

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(10)
        self._scratch.cleanup()


def work_of_run(world: World, run: str, job: str) -> None:
    """Do what `python -m siafu.launch RUN JOB` does on a rank."""
    work(RunFolder(Path(run)), Job.from_text(job), world)


def skip_sync(descriptor: Any) -> None:
    """Stand in for `os.fsync`, of which a run has 60, and each waits for the disk."""


def _serve(rank: int, file: str, pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.fsync = skip_sync
    torch.set_num_threads(1)
    timeout = timedelta(seconds=DEADLINE_SECONDS)
    store = dist.FileStore(file, POOL_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=POOL_SIZE, timeout=timeout)
    groups = {size: dist.new_group(list(range(size)), timeout=timeout) for size in range(1, 5)}
    # Plain pickles: multiprocessing makes a file of each tensor, and a connection to fetch it by.
    while (request := pickle.loads(pipe.recv_bytes())) is not None:
        function, size, args = request
        world = World.over(groups[size], deadline_seconds=DEADLINE_SECONDS)
        try:
            answer = pickle.dumps((True, function(world, *args)))
        except BaseException:  # noqa: BLE001 - the test process shows it
            answer = pickle.dumps((False, traceback.format_exc()))
        pipe.send_bytes(answer)
    dist.destroy_process_group()
    os._exit(0)  # ending Python looks at all that torch and its compiler have loaded, for seconds

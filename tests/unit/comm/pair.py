"""Two ranks that a test may leave waiting: each call gets a process group of its own."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from siafu.comm import World
from tests.harness import forking

DEADLINE_SECONDS = 2.0
GROUP_SECONDS = 4.0
"""What a collective waits, which takes its deadline from the group; also time to connect."""


class Pair:
    """Two processes; `run(function, *args)` calls function(world, *args) on both."""

    def __init__(self) -> None:
        context = forking()
        self._scratch = tempfile.TemporaryDirectory(prefix="siafu-pair-")
        self._calls = 0
        self._pipes, self._processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return both ranks' results."""
        self._calls += 1
        for pipe in self._pipes:
            pipe.send((function, f"{self._scratch.name}/{self._calls}", args))
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join(10)
        self._scratch.cleanup()


def _serve(rank: int, pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        function, file, args = pipe.recv()
        limit = timedelta(seconds=GROUP_SECONDS)
        store = dist.FileStore(file, 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
        world = World.over(dist.group.WORLD, deadline_seconds=DEADLINE_SECONDS)
        world.gather_numbers([0.0])  # connected before the clock matters
        result = function(world, *args)
        dist.destroy_process_group()
        pipe.send(result)

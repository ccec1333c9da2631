"""More ranks than the pool has: threads of one process, each with a Gloo group of its own."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from siafu.comm import World

DEADLINE_SECONDS = 90.0


def run_threads(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Return each rank's result of function(world, *args)."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store, answers, errors = dist.HashStore(), [None] * size, []

    def serve(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=DEADLINE_SECONDS))
        known = dist.distributed_c10d._world.pg_map
        known[group] = ("gloo", store)
        try:
            world = World(rank=rank, size=size, group=group, deadline_seconds=DEADLINE_SECONDS)
            answers[rank] = function(world, *args)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        finally:
            del known[group]

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers

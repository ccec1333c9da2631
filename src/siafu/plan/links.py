"""What lies between the ranks of a run, by sums over all of them: the slowest link tells."""

import os
import time
from collections.abc import Callable

import torch

from siafu.comm import World
from siafu.plan.machine import Link

_FIRST_BYTES, _LAST_BYTES = 1 << 18, 1 << 25
_ENOUGH_SECONDS = 0.02
_TURNS = 3


def measured_link(world: World, clock: Callable[[], float] = time.perf_counter) -> Link | None:
    """Return what is between ranks of several hosts; None on one. Every rank calls this."""
    if world.size == 1 or int(os.environ.get("LOCAL_WORLD_SIZE", world.size)) == world.size:
        return None
    _seconds(world, 1, clock)  # connections are made by the first
    # Sums go round in 2 (P - 1) messages, one after the other.
    latency = _seconds(world, 1, clock) / (2 * (world.size - 1))
    size = _FIRST_BYTES
    while (taken := _seconds(world, size, clock)) < _ENOUGH_SECONDS and size < _LAST_BYTES:
        size *= 4
    sent = 2 * (world.size - 1) / world.size * size
    return Link(bytes_per_second=sent / max(taken, 1e-9), latency_seconds=latency)


def _seconds(world: World, size: int, clock: Callable[[], float]) -> float:
    """Return what a sum of so many bytes takes the slowest rank, at the best of some turns."""
    numbers = torch.zeros(max(1, size // 4), device=world.device)
    best = float("inf")
    for _ in range(_TURNS):
        world.gather_numbers([0.0])  # all begin together
        began = clock()
        world.sum_in_place(numbers, "control")
        if numbers.is_cuda:  # NCCL's wait orders streams alone
            torch.cuda.synchronize(numbers.device)
        mine = clock() - began
        best = min(best, max(row[0] for row in world.gather_numbers([mine])))
    return best

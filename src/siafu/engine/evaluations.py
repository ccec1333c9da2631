"""What scoring costs beside training: passes over the graph, seconds and bytes of their own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from siafu.comm import World


@dataclass(slots=True)
class Evaluations:
    """Counters of this rank since its process began, as the meter's are."""

    passes: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0

    @contextmanager
    def counted(self, world: World) -> Iterator[None]:
        """Count what happens inside as one evaluation."""
        before, started = sum(world.meter.bytes_sent.values()), time.perf_counter()
        yield
        synchronise(world)
        self.passes += 1
        self.seconds += time.perf_counter() - started
        self.bytes_sent += sum(world.meter.bytes_sent.values()) - before

    def report(self, world: World) -> dict[str, Any]:
        """Return passes, seconds of the slowest rank, bytes of all; every rank calls this."""
        table = world.gather_numbers([self.seconds, float(self.bytes_sent)])
        return {
            "passes": self.passes,
            "seconds": max(row[0] for row in table),
            "bytes_sent": int(sum(row[1] for row in table)),
        }


def synchronise(world: World) -> None:
    """Wait until the device has done all that it was told."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)

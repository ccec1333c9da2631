"""Rows asked for by number: who asks whom for how many is not known beforehand.

Shapes: Q requests of this rank, grouped by the rank that answers; A requests it is to answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from siafu.comm.halo import start_exchange
from siafu.comm.world import World


@dataclass(frozen=True)
class Inquiry:
    """Requests that have reached their ranks; each answer follows by `reply`."""

    asked: Tensor
    """[A] what others ask of this rank, by asker."""
    asked_counts: tuple[int, ...]
    """Requests of each other rank; 0 for this one."""
    sent_counts: tuple[int, ...]
    """Requests to each other rank; 0 for this one."""

    def start_reply(self, rows_A: Tensor, world: World, purpose: str) -> Callable[[], Tensor]:
        """Send our answers; what is returned waits for the others', as they were requested."""
        pending = start_exchange(rows_A, self.asked_counts, self.sent_counts, world, purpose)
        return partial(pending.wait, world, f"answers to {purpose}")

    def reply(self, rows_A: Tensor, world: World, purpose: str) -> Tensor:
        """Return the others' answers, in the order of the requests; `rows_A` are ours."""
        return self.start_reply(rows_A, world, purpose)()

    def start_ragged(
        self, rows_B: Tensor, counts_A: Tensor, counts_Q: Tensor, world: World, purpose: str
    ) -> Callable[[], Tensor]:
        """Do the same with answers of several rows each, whose counts `reply` has exchanged."""
        sent = _sums(counts_A, self.asked_counts)
        pending = start_exchange(rows_B, sent, _sums(counts_Q, self.sent_counts), world, purpose)
        return partial(pending.wait, world, f"answers to {purpose}")


def tell(values: list[float], world: World, purpose: str) -> list[list[float]]:
    """Return every rank's numbers, by rank, from peer to peer: over a second line too.

    All ranks give the same count of them.
    """
    mine = torch.tensor([values], dtype=torch.float64, device=world.device)
    once = tuple(int(rank != world.rank) for rank in range(world.size))
    pending = start_exchange(mine.expand(world.size - 1, -1), once, once, world, purpose)
    others = pending.wait(world, f"numbers for {purpose}").tolist()
    return [*others[: world.rank], values, *others[world.rank :]]


def ask(requests_Q: Tensor, counts: list[int], world: World, purpose: str) -> Inquiry:
    """Send each rank its requests; `counts` has none for this rank. All ranks call together."""
    assert counts[world.rank] == 0, "a rank needs not ask itself"
    table = tell([float(count) for count in counts], world, "control")
    asked_counts = tuple(int(row[world.rank]) for row in table)
    pending = start_exchange(requests_Q, tuple(counts), asked_counts, world, purpose)
    return Inquiry(pending.wait(world, f"requests for {purpose}"), asked_counts, tuple(counts))


def _sums(counts: Tensor, groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(group.sum()) for group in counts.split(list(groups)))

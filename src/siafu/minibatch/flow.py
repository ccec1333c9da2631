"""Which rows each layer must write so that some nodes have their answers: their message flow.

From the last layer backwards, a layer's rows and the sources of their in-edges are what the layer
before it writes, on whichever rank owns them. Planned once, since weights change nothing about it.

Shapes: N owned rows, R halo rows, V nodes of a piece.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.comm import World, ask, tell
from siafu.minibatch.layerwise import Some, drawn_degree, row_spans
from siafu.minibatch.relay import Relay
from siafu.minibatch.served import owners_of, rows_of

Cost = Callable[[int, int, int], float]
"""What a layer costs, by its number, the rows it writes and the in-edges it reads."""

_EDGES_AT_ONCE = 1 << 19
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Flow:
    """Owned rows that layers write, of this rank."""

    relays: tuple[Relay, ...]
    """One for each layer, which draws one hop."""
    rows: tuple[Tensor, ...]
    """int64, rising: of each layer."""
    far: tuple[Tensor, ...]
    """Addresses of the rows of other ranks that each layer reads, rising."""
    cost: float
    """Of the dearest rank, all layers together."""

    def some(self, number: int) -> Some:
        """Return what a layer writes and reads."""
        return Some(self.rows[number], self.far[number])


def plan_flow(
    relays: Sequence[Relay], seeds: Tensor, cost: Cost, most: float = float("inf")
) -> Flow | None:
    """Return the flow of nodes by address, whoever owns them; all ranks call this together.

    None where it would cost more than `most`: then the layers that are left were not looked at.
    """
    channel, num_owned = relays[0].channel, relays[0].served.shard.num_owned
    own_N = torch.zeros(num_owned, dtype=torch.bool)
    _mark(own_N, seeds.unique(), channel)
    rows: list[Tensor] = []
    far: list[Tensor] = []
    total = 0.0
    for number in reversed(range(len(relays))):
        rows_M = own_N.nonzero()[:, 0]
        rows.insert(0, rows_M)
        edges = int(drawn_degree(relays[number], rows_M).sum())
        mine = [cost(number, len(rows_M), edges)]
        total += max(row[0] for row in tell(mine, channel, "control"))
        if total > most:
            return None
        far.insert(0, relays[number].served.far_R)
        if number or channel.size > 1:
            far[0] = _mark_sources(relays[number], number, rows_M, own_N)
        if number:
            _mark(own_N, far[0], channel)
    return Flow(tuple(relays), tuple(rows), tuple(far), total)


def _mark(own_N: Tensor, addresses: Tensor, channel: World) -> None:
    """Mark rows on the ranks that own them; `addresses` rise."""
    mine = owners_of(addresses) == channel.rank
    own_N[rows_of(addresses[mine])] = True
    if channel.size > 1:
        far = addresses[~mine]
        counts = torch.bincount(owners_of(far), minlength=channel.size).tolist()
        own_N[ask(rows_of(far), counts, channel, "sample").asked] = True


def _mark_sources(relay: Relay, number: int, rows_M: Tensor, own_N: Tensor) -> Tensor:
    """Mark the owned sources of some rows, and return the addresses of the others, rising."""
    halo_R = relay.served.far_R
    is_read_R = torch.zeros(len(halo_R), dtype=torch.bool)
    indptr = _offsets(drawn_degree(relay, rows_M))
    for low, high in row_spans(indptr, _EDGES_AT_ONCE, _ROWS_AT_ONCE):
        piece = relay.sample_own(number, rows_M[low:high].to(relay.device))
        addresses = piece.addresses.cpu()
        mine = owners_of(addresses) == relay.channel.rank
        own_N[rows_of(addresses[mine])] = True
        is_read_R[torch.searchsorted(halo_R, addresses[~mine])] = True
    return halo_R[is_read_R]


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

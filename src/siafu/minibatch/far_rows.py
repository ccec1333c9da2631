"""Rows of other ranks that a pass over the graph reads: fetched once, kept until it has ended.

Shapes: R distinct rows of others, V nodes of a piece, P ranks.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from siafu.comm import World, tell
from siafu.minibatch.relay import Relay
from siafu.minibatch.served import owners_of, rows_of
from siafu.ops import sum_type
from siafu.shard import RowReader, WrittenRows


@dataclass(frozen=True, eq=False)
class RowsNear:
    """Columns of every node that a pass reads, own ones and others', without asking anybody."""

    rank: int
    own: dict[str, RowReader]
    far_R: Tensor
    """Addresses, rising."""
    far: dict[str, WrittenRows]
    """Their rows, by column; empty where there are no others."""

    def of(self, addresses_V: Tensor) -> dict[str, Tensor]:
        """Return the rows of these nodes, by column."""
        if not self.far:
            return {name: reader.read(rows_of(addresses_V)) for name, reader in self.own.items()}
        is_own_V = owners_of(addresses_V) == self.rank
        own, others = is_own_V.nonzero()[:, 0], (~is_own_V).nonzero()[:, 0]
        rows = rows_of(addresses_V[own])
        place = torch.searchsorted(self.far_R, addresses_V[others])
        found = {}
        for name, reader in self.own.items():
            mine = reader.read(rows)
            out = mine.new_empty(len(addresses_V), *mine.shape[1:]).index_copy_(0, own, mine)
            del mine
            found[name] = out.index_copy_(0, others, self.far[name].read(place).to(out.dtype))
        return found


def fetch_near(
    relay: Relay, columns: tuple[str, ...], far_R: Tensor, at_once: int, *, on_disk: bool
) -> RowsNear:
    """Return columns of own rows and of those at `far_R`, which rise; all ranks call together.

    No rank asks for or answers more than about `at_once` rows in a round.
    """
    channel = relay.channel
    own = {name: relay.served.node_columns[name] for name in columns}
    if channel.size == 1:
        return RowsNear(channel.rank, own, far_R, {})
    counts = torch.bincount(owners_of(far_R), minlength=channel.size).tolist()
    rounds = _rounds(counts, channel, at_once)
    far = {}
    for name, reader in own.items():
        shape, is_file = (len(far_R), *reader.shape[1:]), on_disk and len(far_R) > 0
        kind = sum_type(reader.dtype) if is_file else reader.dtype  # numpy has no bfloat16
        far[name] = relay.new_rows(shape, kind, on_disk=is_file)
    starts = [0, *accumulate(counts)]
    for at in range(rounds):
        # A share of every owner's: all that asked the same one first would wait for it together.
        spans = [
            (start + count * at // rounds, start + count * (at + 1) // rounds)
            for start, count in zip(starts, counts, strict=False)
        ]
        found = relay.fetch(torch.cat([far_R[low:high] for low, high in spans]), columns)
        for name in columns:
            pieces = found.pop(name).split([high - low for low, high in spans])
            for (low, high), rows in zip(spans, pieces, strict=True):
                if high > low:
                    far[name].write(low, rows)
    return RowsNear(channel.rank, own, far_R, far)


def _rounds(counts: list[int], channel: World, at_once: int) -> int:
    """Return in how many rounds all ranks fetch so many rows of each other.

    Ranks may have room for other numbers of rows at once; all go by the least.
    """
    told = tell([float(number) for number in (at_once, *counts)], channel, "control")
    at_once, table = int(min(row[0] for row in told)), [row[1:] for row in told]
    asked, answered = [sum(row) for row in table], [sum(row) for row in zip(*table, strict=True)]
    return math.ceil(max(*asked, *answered) / at_once)

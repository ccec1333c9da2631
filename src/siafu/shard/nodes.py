"""The nodes of each snapshot that one rank works on, and rows of the others'.

Shapes: N nodes, n of them mine, R of others, E asked for, D columns of a row.
"""

import numpy as np
import torch
from torch import Tensor

from siafu.comm import HaloPlan, World, ask, exchange_halo, start_exchange, tell
from siafu.graph import Array


class NodeShare:
    """One group of nodes; `world` is that of the ranks that hold the groups of a snapshot."""

    def __init__(self, num_nodes: int, world: World, part_of_N: Array | None = None) -> None:
        """Without `part_of_N` all nodes are this rank's."""
        self.num_nodes, self.world = num_nodes, world
        self._part_of_N: Tensor | None = None
        self.ids_n = torch.arange(num_nodes, device=world.device)
        if part_of_N is not None:
            self._part_of_N = torch.tensor(
                np.asarray(part_of_N), dtype=torch.int64, device=world.device
            )
            self.ids_n = (self._part_of_N == world.rank).nonzero().squeeze(1)

    @property
    def is_whole(self) -> bool:
        """True where this rank has every node."""
        return self._part_of_N is None

    @property
    def speaks(self) -> bool:
        """True on the one rank that tells what all ranks of a snapshot know."""
        return self.world.rank == 0

    def owners(self, ids_E: Tensor) -> Tensor:
        """Return the rank that holds each node."""
        return torch.zeros_like(ids_E) if self._part_of_N is None else self._part_of_N[ids_E]

    def is_mine(self, ids_E: Tensor) -> Tensor:
        """Return which nodes this rank holds."""
        return self.owners(ids_E) == self.world.rank

    def rows(self, ids_E: Tensor) -> Tensor:
        """Return where nodes of this rank stand among its own."""
        return ids_E if self._part_of_N is None else torch.searchsorted(self.ids_n, ids_E)

    def plan(self, ids_R: Tensor, owner_R: Tensor) -> HaloPlan:
        """Return how rows of others come here; `owner_R` rises. All ranks call it together."""
        counts = torch.bincount(owner_R, minlength=self.world.size).tolist()
        inquiry = ask(ids_R, counts, self.world, "control")
        send_rows = self.rows(inquiry.asked)
        return HaloPlan.build(send_rows, list(inquiry.asked_counts), counts, len(self.ids_n))

    def fetch(self, x_nD: Tensor, ids_E: Tensor) -> Tensor:
        """Return the rows of any nodes, differentiably. All ranks call it together."""
        if self.is_whole:
            return x_nD.index_select(0, ids_E)
        ids_R, place_E = ids_E.unique(return_inverse=True)
        owner_R, order = self.owners(ids_R).sort(stable=True)
        column_R = torch.empty_like(ids_R)
        mine = owner_R == self.world.rank
        column_R[order[mine]] = self.rows(ids_R[order[mine]])
        asked = order[~mine]
        column_R[asked] = len(x_nD) + torch.arange(len(asked), device=ids_R.device)
        plan = self.plan(ids_R[asked], owner_R[~mine])
        halo_RD = exchange_halo(x_nD, plan, self.world)
        return torch.cat([x_nD, halo_RD]).index_select(0, column_R[place_E])

    def gather(self, x_E: Tensor) -> Tensor:
        """Return the entries of all ranks in their order, without gradients."""
        if self.is_whole:
            return x_E
        own, size = self.world.rank, self.world.size
        lengths = [int(row[0]) for row in tell([float(len(x_E))], self.world, "control")]
        sent = tuple(0 if rank == own else len(x_E) for rank in range(size))
        counts = [0 if rank == own else count for rank, count in enumerate(lengths)]
        rows = x_E.detach().repeat(size - 1, *[1] * (x_E.dim() - 1))
        pending = start_exchange(rows, sent, tuple(counts), self.world, "metric")
        parts = list(pending.wait(self.world, "gathering scores").split(counts))
        parts[own] = x_E.detach()
        return torch.cat(parts)

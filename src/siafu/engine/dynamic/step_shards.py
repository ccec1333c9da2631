"""Ranks in a grid of time and nodes, and a snapshot as the shard of a group of nodes.

Shapes: n nodes of this rank, R of others that they ever meet, C = n + R, E edges.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siafu.comm import HaloPlan, World, exchange_halo, gather_steps, start_return
from siafu.errors import ConfigError
from siafu.graph import Array, DynamicGraph, GroupGraph, Snapshot, normalised
from siafu.graph.snapshot import normalised_entries
from siafu.nn import Draws, StepGraph
from siafu.ops import CSR
from siafu.shard import NodeShare, Shard
from siafu.strategy import BlockNeighbours


class StepShards:
    """Turns the edges of a group of nodes into snapshots over the ranks that share them.

    All of these ranks make the same snapshots in the same order.
    """

    def __init__(
        self, graph: DynamicGraph, part: GroupGraph, share: NodeShare, draws: Draws
    ) -> None:
        self.graph, self.part, self.share, self.draws = graph, part, share, draws
        device = share.world.device
        self._own_n = torch.from_numpy(part.own_n).to(device)
        nodes_C = torch.from_numpy(part.nodes_C).to(device)
        is_other_C = torch.ones(len(nodes_C), dtype=torch.bool, device=device)
        is_other_C[self._own_n] = False
        others_R = is_other_C.nonzero().squeeze(1)
        owner_R, order = share.owners(nodes_C[others_R]).sort(stable=True)
        self._others_R = others_R[order]
        self._plan = share.plan(nodes_C[self._others_R], owner_R)
        self._plans: dict[int, HaloPlan] = {}
        self._ids = graph.ids.take(share.ids_n.cpu().numpy())

    def normalise(self, snapshot: Snapshot) -> Snapshot:
        """Return the group's rows of the normalised adjacency."""
        return normalised(snapshot, self.part.own_n, self._completed)

    def normalised_entries(self, snapshot: Snapshot) -> tuple[Array, Array]:
        """Return its keys and entries."""
        return normalised_entries(snapshot, self.part.own_n, self._completed)

    def _completed(self, degree_C: Array) -> Array:
        degrees = torch.from_numpy(degree_C).to(self._own_n.device)
        mine_n1 = degrees[self._own_n].unsqueeze(1)
        degrees[self._others_R] = exchange_halo(mine_n1, self._plan, self.share.world).squeeze(1)
        return degrees.cpu().numpy()

    def step_graph(self, csr: CSR, step: int) -> StepGraph:
        """Return a snapshot as layers see it; `csr` is C x C, without edges in others' rows."""
        used_C = torch.zeros(csr.num_cols, dtype=torch.bool, device=csr.device)
        used_C[csr.index.long()] = True
        used_R = used_C[self._others_R]
        if step not in self._plans:
            self._plans[step] = self._plan.narrowed(self._needed(used_R), used_R)
        plan, num_owned = self._plans[step], len(self._own_n)
        column_C = torch.empty(csr.num_cols, dtype=csr.index.dtype, device=csr.device)
        numbers = torch.arange(num_owned + plan.num_halo, device=csr.device).to(csr.index.dtype)
        column_C[self._own_n] = numbers[:num_owned]
        column_C[self._others_R[used_R]] = numbers[num_owned:]
        # Between rows of the group there are no edges: each ends where the next begins.
        indptr = torch.cat([csr.indptr[self._own_n], csr.indptr[-1:]])
        rows = CSR(indptr, column_C[csr.index.long()], len(numbers), csr.weight)
        active_n = (rows.degree() > 0) | used_C[self._own_n]
        active_n[plan.send_rows] = True
        neighbours = BlockNeighbours(self._shard(rows, plan, step), self.draws)
        return StepGraph(neighbours, lambda: active_n, self._gather)

    def _needed(self, used_R: Tensor) -> Tensor:
        """Return which of the rows that this rank may send are used by others."""
        world = self.share.world
        asked = start_return(used_R.to(torch.uint8)[:, None], self._plan, world, "control")
        return asked.wait(world, "finding which rows a snapshot needs").squeeze(1) > 0

    def _gather(self, found: Tensor) -> Tensor:
        world = self.share.world
        return gather_steps(found, (len(found),) * world.size, world)

    def _shard(self, csr: CSR, plan: HaloPlan, step: int) -> Shard:
        share, num_nodes = self.share, self.graph.num_nodes
        return Shard(
            world=share.world,
            name=self.graph.name,
            num_nodes=num_nodes,
            num_classes=0,
            multi_label=False,
            class_names=(),
            csr=csr,
            plan=plan,
            row_ids=step * num_nodes + share.ids_n,
            ids=self._ids,
            x=None,
            y=None,
            masks={},
            mask_totals={},
            edge_attr=None,
            edge_type=None,
            num_edge_types=0,
            edge_type_names=(),
            part_of=np.empty(0, np.int32),
            fingerprint="",
        )


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """This rank's place, among those with its nodes and among those with its snapshots."""

    world: World
    """All ranks."""
    times: World
    """The ranks with the same nodes, in order of time: rows travel along time among them."""
    share: NodeShare
    """The nodes, and the ranks with the same snapshots: halo rows travel among those."""


def make_grid(world: World, graph: DynamicGraph, num_parts: int) -> Grid:
    """Return this rank's place; ranks that share snapshots follow one another."""
    if num_parts == 1:
        share = NodeShare(graph.num_nodes, World(device=world.device))
        return Grid(world, world, share)
    assert graph.part_of is not None, "nodes are cut before a run starts"
    check_grid(world.size, num_parts)
    stretch, part = divmod(world.rank, num_parts)
    times = world.part(range(part, world.size, num_parts))
    nodes = world.part(range(stretch * num_parts, (stretch + 1) * num_parts))
    return Grid(world, times, NodeShare(graph.num_nodes, nodes, graph.part_of))


def check_grid(num_ranks: int, num_parts: int) -> None:
    """Raise unless every group of nodes gets as many ranks."""
    if num_ranks % num_parts:
        raise ConfigError(
            "The ranks can't be shared out among groups of nodes.",
            seen=f"--ranks {num_ranks} --node-parts {num_parts}",
            fix="use a number of ranks that the groups divide",
        )

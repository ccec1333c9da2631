"""Sub-graphs drawn on the device that trains, by a rank that has the whole graph there.

The same numbers as `Relay` gives: draws are keyed by minibatch, hop and node, and nodes numbered as
they are met. Several minibatches grow together, so a kernel serves all of them and the host waits
for sizes a few times per macrobatch, in the thread ahead of training.

Shapes: G minibatches grown together, N nodes, E edges, Q requests, S sampled edges.
"""

import math
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from siafu.comm import World
from siafu.minibatch.placement import PinnedRows, free_bytes
from siafu.minibatch.relay import Relay, epoch_of_draws
from siafu.minibatch.schedule import ORDER_PURPOSE, Minibatch
from siafu.minibatch.served import EdgeColumn, Sampling, Served, rows_of
from siafu.minibatch.subgraph import Subgraph
from siafu.ops import (
    ALL,
    DrawKey,
    GroupNumbering,
    NewKeys,
    Requests,
    draw_positions,
    key_words,
    running_sums,
    shared_positions,
)
from siafu.shard import HeldRows, WrittenRows

_TABLE_BYTES = 1 << 28
"""Of the table that numbers nodes: as many minibatches grow together as fit."""
_MOST = 64
_NODE_BYTES = 64
"""Of each node beside its features: number, label, degrees."""
_LAYER_SHARE = 0.25
"""Of the device's free memory that a layer's rows of all nodes may take: two are there at once."""


@dataclass(frozen=True, eq=False)
class DeviceGraph:
    """Edges on the device that samples them."""

    indptr: Tensor
    index: Tensor
    ids_N: Tensor
    edge_columns: dict[EdgeColumn, Tensor]
    weight_E: Tensor | None = None
    sums_E: Tensor | None = None
    """Weights added up along rows, where edges are drawn by them."""

    @classmethod
    def build(cls, served: Served, device: torch.device) -> "DeviceGraph":
        """Return the edges of a rank that owns every node."""
        csr, weight_E = served.shard.csr, served.weight_E
        everything = {name: served.shard.reader(name) for name in served.edge_columns}
        columns = {
            name: reader.rows.to(device)
            for name, reader in everything.items()
            if reader is not None and hasattr(reader, "rows")
        }
        assert len(columns) == len(served.edge_columns), "edges are in memory"
        sums = None if weight_E is None else running_sums(csr.indptr, weight_E).to(device)
        return cls(
            csr.indptr.to(device),
            csr.index.to(device),
            served.shard.row_ids.to(device),
            columns,
            None if weight_E is None else weight_E.to(device),
            sums,
        )

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.index.device

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.ids_N)


@dataclass(frozen=True, eq=False)
class _Hop:
    """In-edges of the nodes that one hop asked for, for all minibatches that grow together."""

    counts_Q: Tensor
    numbers_S: Tensor
    edges: dict[EdgeColumn, Tensor]


class DeviceRelay(Relay):
    """Draws from a graph on the device; rows come from readers that lie there too."""

    def __init__(
        self,
        graph: DeviceGraph,
        served: Served,
        channel: World,
        sampling: Sampling,
        seed: int,
        *,
        holds_rows: bool = True,
    ) -> None:
        super().__init__(served, channel, sampling, seed)
        self.graph, self._holds_rows = graph, holds_rows
        self._numbering: GroupNumbering | None = None
        self._room = 0
        """Sub-graphs that the numbering has room for."""

    @property
    def device(self) -> torch.device:
        """Where sub-graphs come to lie."""
        return self.graph.device

    @property
    def holds_rows(self) -> bool:
        """Whether all rows are on the device."""
        return self._holds_rows

    def fetch(self, addresses_U: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return rows of nodes, by column; nobody else is asked."""
        readers, rows_U = self.served.node_columns, rows_of(addresses_U)
        return {name: readers[name].read(rows_U) for name in names}

    def new_rows(self, shape: tuple[int, ...], dtype: torch.dtype, *, on_disk: bool) -> WrittenRows:
        """Return rows to be written: on the device while there is room, else pinned."""
        if on_disk:
            return super().new_rows(shape, dtype, on_disk=True)
        fits = math.prod(shape) * dtype.itemsize < _LAYER_SHARE * free_bytes(self.device)
        if fits and self.holds_rows:
            return HeldRows(torch.empty(shape, dtype=dtype, device=self.device))
        on_cuda = self.device.type == "cuda"
        return PinnedRows(torch.empty(shape, dtype=dtype, pin_memory=on_cuda), self.device)

    def sample(self, epoch: int, minibatches: list[Minibatch]) -> list[Subgraph]:
        """Return the sub-graph of each minibatch."""
        most = most_together(self.graph.num_nodes)
        groups = [minibatches[low : low + most] for low in range(0, len(minibatches), most)]
        return [graph for group in groups for graph in self._grow(epoch, group)]

    def sample_own(self, number: int, rows: Tensor) -> Subgraph:
        """Return rows with the one hop that this relay draws."""
        return self.sample(0, [Minibatch(number, rows)])[0]

    def _grow(self, epoch: int, batches: list[Minibatch]) -> list[Subgraph]:
        numbering, device = self._numbering_for(len(batches)), self.device
        sizes = to_device(torch.tensor([len(batch.seeds) for batch in batches]), device)
        seeds_S = torch.cat([to_device(batch.seeds, device) for batch in batches])
        group_S = torch.arange(len(batches), device=device).repeat_interleave(
            sizes, output_size=len(seeds_S)
        )
        keys_HG2 = to_device(self._keys(epoch, batches), device)
        met = [numbering.add(seeds_S, group_S)[1]]
        hops = []
        for keys_G2, fanout in zip(keys_HG2, self.sampling.fanouts, strict=True):
            hop, new = self._draw(numbering, met[-1], keys_G2, fanout)
            hops.append(hop)
            met.append(new)
        numbering.clear()
        fanouts = self.sampling.fanouts
        longest = max(fanouts) if min(fanouts) > 0 else None
        graphs = _subgraphs([batch.number for batch in batches], met, hops)
        return [replace(graph, longest=longest) for graph in graphs]

    def _numbering_for(self, count: int) -> GroupNumbering:
        if self._numbering is None or count > self._room:
            self._room = count
            self._numbering = GroupNumbering(count, self.graph.num_nodes, self.device)
        return self._numbering

    def _keys(self, epoch: int, batches: list[Minibatch]) -> Tensor:
        """Return int64 [hops, G, 2]: the cipher's keys."""
        hops = len(self.sampling.fanouts)
        keys = [
            DrawKey(self.seed, epoch_of_draws(epoch, batch.keyed), ORDER_PURPOSE + 1 + hop)
            for hop in range(hops)
            for batch in batches
        ]
        return key_words(keys).view(hops, len(batches), 2)

    def _draw(
        self, numbering: GroupNumbering, frontier: NewKeys, keys_G2: Tensor, fanout: int
    ) -> tuple[_Hop, NewKeys]:
        graph, weighted = self.graph, self.sampling.weighted
        rows_Q, group_Q = frontier.keys_U, frontier.group_U
        if self.sampling.shared and fanout != ALL:
            counts_Q, positions_S = shared_positions(
                graph.indptr,
                rows_Q,
                group_Q,
                keys_G2,
                fanout,
                lambda edges_E: graph.ids_N.index_select(0, graph.index.index_select(0, edges_E)),
            )
        else:
            requests = Requests(rows_Q, graph.ids_N.index_select(0, rows_Q), group_Q, keys_G2)
            counts_Q, positions_S = draw_positions(
                graph.indptr,
                requests,
                fanout,
                graph.weight_E if weighted else None,
                replace=self.sampling.replace,
                sums_E=graph.sums_E,
            )
        edges = {
            name: column.index_select(0, positions_S)
            for name, column in graph.edge_columns.items()
            if not (weighted and name == "edge_weight")  # they are in the draw already
        }
        source_S = graph.index.index_select(0, positions_S).long()
        group_S = group_Q.repeat_interleave(counts_Q, output_size=len(positions_S))
        numbers_S, new = numbering.add(source_S, group_S)
        return _Hop(counts_Q, numbers_S, edges), new


def device_bytes(served: Served, count: int, edges: int) -> int:
    """Return what edges, small columns of nodes and the numbering would take on a device."""
    of_edges = sum(
        reader.dtype.itemsize * math.prod(reader.shape[1:])
        for reader in served.edge_columns.values()
    )
    chances = 0 if served.weight_E is None else 8 + served.weight_E.itemsize
    numbering = 4 * count * (most_together(count) + 1)
    of_edges += served.shard.csr.index.itemsize
    return edges * (of_edges + chances) + (8 + _NODE_BYTES) * count + numbering


def most_together(num_nodes: int) -> int:
    """Return how many minibatches may grow together."""
    return max(1, min(_MOST, _TABLE_BYTES // max(1, 4 * num_nodes)))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device, through pinned memory, so that no one waits for the copy."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _subgraphs(numbers: list[int], met: list[NewKeys], hops: list[_Hop]) -> list[Subgraph]:
    """Return what each minibatch has of every hop, as slices of tensors that all of them share."""
    groups = range(len(numbers))
    nodes = [[slice(*new.bounds[g : g + 2]) for new in met] for g in groups]
    edges = [[slice(*new.added[g : g + 2]) for new in met[1:]] for g in groups]
    addresses = torch.cat([new.keys_U[nodes[g][h]] for g in groups for h, new in enumerate(met)])
    counts = torch.cat([hop.counts_Q[nodes[g][h]] for g in groups for h, hop in enumerate(hops)])

    def joined(columns: list[Tensor]) -> Tensor:
        return torch.cat([column[edges[g][h]] for g in groups for h, column in enumerate(columns)])

    index = joined([hop.numbers_S for hop in hops])
    columns = {name: joined([hop.edges[name] for hop in hops]) for name in hops[0].edges}
    indptr = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=indptr[1:])
    graphs, node, row, edge = [], 0, 0, 0
    for g, number in enumerate(numbers):
        reached = tuple(accumulate(span.stop - span.start for span in nodes[g]))
        ends = tuple(accumulate(span.stop - span.start for span in edges[g]))
        rows, mine = slice(row, row + reached[-2]), slice(edge, edge + ends[-1])
        graphs.append(
            Subgraph(
                number,
                addresses[node : node + reached[-1]],
                reached,
                indptr[row : rows.stop + 1] - edge,
                index[mine],
                {name: column[mine] for name, column in columns.items()},
                ends,
                counts=counts[rows],
            )
        )
        node, row, edge = node + reached[-1], rows.stop, mine.stop
    return graphs

"""The whole graph on the device of every rank, where it has room: each draws alone then.

Nodes are numbered through, one rank's after another's, as addresses are where one rank owns all.

Shapes: N nodes and E edges of all ranks, C columns of a shard, A addresses.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from siafu.comm import rows_of_all
from siafu.minibatch.device_relay import DeviceGraph
from siafu.minibatch.schedule import Schedule
from siafu.minibatch.served import Served, owners_of, rows_of
from siafu.ops import running_sums
from siafu.shard import HeldRows, RowReader

_MOST_INT32 = 2**31 - 1


class WholeGraph:
    """What all ranks own, as each of them is to have it; all of them call every method together."""

    def __init__(self, served: Served) -> None:
        self._served, self._world = served, served.shard.world
        shard = served.shard
        told = self._world.gather_numbers([float(shard.num_owned), float(shard.csr.num_edges)])
        self.nodes, self.edges = ([int(row[k]) for row in told] for k in range(2))
        """Of each rank."""
        self._starts = torch.tensor([0, *accumulate(self.nodes)])

    def rows_of(self, addresses_A: Tensor) -> Tensor:
        """Return the numbers of nodes that go by address."""
        return self._starts[owners_of(addresses_A)] + rows_of(addresses_A)

    def dealt(self, schedule: Schedule) -> Schedule:
        """Return a schedule with these numbers of its seeds."""
        assert schedule.dealt is not None, "edges are not dealt to ranks that draw alone"
        return replace(schedule, dealt=self.rows_of(schedule.dealt))

    def graph(self) -> DeviceGraph:
        """Return the edges of all ranks."""
        served, csr = self._served, self._served.shard.csr
        num_nodes = sum(self.nodes)
        kind = torch.int32 if num_nodes <= _MOST_INT32 else torch.int64
        number_C = self.rows_of(served.address_C).to(kind)
        degree_N = self._of_nodes(csr.degree())
        indptr = degree_N.new_zeros(num_nodes + 1)
        torch.cumsum(degree_N, 0, out=indptr[1:])
        chances, sums = served.weight_E, None
        if chances is not None:
            sums, chances = running_sums(csr.indptr, chances), self._of_edges(chances)
        return DeviceGraph(
            indptr,
            self._of_edges(csr.index, number_C),
            self._of_nodes(served.shard.row_ids),
            {name: self._read(reader, self.edges) for name, reader in served.edge_columns.items()},
            chances,
            None if sums is None else self._of_edges(sums),
        )

    def served(self, names: Collection[str]) -> Served:
        """Return what all ranks serve of their nodes, in some columns."""
        found = self._served.node_columns
        columns = {name: self.rows(reader) for name, reader in found.items() if name in names}
        return replace(self._served, node_columns=columns)

    def rows(self, reader: RowReader) -> RowReader:
        """Return a column of all nodes."""
        return HeldRows(self._read(reader, self.nodes))

    def _of_nodes(self, rows: Tensor) -> Tensor:
        return self._read(HeldRows(rows), self.nodes)

    def _of_edges(self, rows: Tensor, number_C: Tensor | None = None) -> Tensor:
        def read(low: int, high: int) -> Tensor:
            piece = rows[low:high]
            return piece if number_C is None else number_C.index_select(0, piece)

        return rows_of_all(read, self.edges, self._world, "sample")

    def _read(self, reader: RowReader, counts: list[int]) -> Tensor:
        purpose = "sample" if counts is self.edges else "feature"
        return rows_of_all(
            lambda low, high: reader.read(torch.arange(low, high)), counts, self._world, purpose
        )
